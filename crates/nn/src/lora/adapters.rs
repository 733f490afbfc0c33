//! The adapters of a model.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use highwater_tensor::{DType, Result, Rng, Tensor};

use super::error::LoraError;
use super::options::Lora;
use super::targets::{Target, linear_layers, select};
use crate::modules::adapter::{LowRank, LowRankOptions};
use crate::modules::{Linear, Module, Parameter, PartRef, PartVisitor, Parts};

/// Freezes a model and attaches adapters to its linear layers that the options select.
///
/// A and B have the element type f32, also beside 16-bit weights, and f64 beside f64. They are computed in the element type
/// of the layer's output. The update is zero at first: A is random as in PEFT, and B is zero. Dropout draws from `rng` too,
/// which checkpoints of the [`Adapters`] store.
///
/// ```
/// use highwater::nn::{Linear, Lora, Module, Relu, Sequential, lora};
/// use highwater::optim::{AdamW, Optimizer};
/// use highwater::{Device, Rng, Tensor};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let model = Sequential::new()
///     .with("fc1", Linear::new(&device, 16, 32, &rng)?)
///     .with("relu", Relu)
///     .with("fc2", Linear::new(&device, 32, 4, &rng)?);
/// let x = Tensor::ones(&device, [8, 16])?;
/// let before = model.forward(&x)?.to_vec::<f32>()?;
///
/// let adapters = lora(&model, &Lora { rank: 2, ..Lora::default() }.with_targets(["fc1"]), &rng)?;
/// let mut adam = AdamW::new(adapters.parameters(), 1e-2)?;
/// assert_eq!(adapters.parameters()[0].0, "fc1.lora_A.weight");
/// assert_eq!(model.forward(&x)?.to_vec::<f32>()?, before);
/// let gradients = adapters.forward(&x)?.square()?.mean_all()?.backward()?;
/// assert_eq!(gradients.len(), 2); // only of A and B
/// adam.step(gradients)?;
///
/// adapters.merge()?; // no more products than in the plain model
/// let trained = model.forward(&x)?.to_vec::<f32>()?;
/// adapters.unmerge()?;
/// adapters.detach();
/// assert_eq!(model.forward(&x)?.to_vec::<f32>()?, before);
/// assert_ne!(trained, before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`LoraError::BadOption`] for an option out of range, [`LoraError::NoMatch`] for a pattern that matches no layer
/// - [`LoraError::AlreadyAttached`] if a selected layer has an adapter
/// - [`LoraError::Tensor`] if there is no memory
///
/// The model is unchanged then.
pub fn lora<'m, M: Module + ?Sized>(
    model: &'m M,
    options: &Lora,
    rng: &Rng,
) -> Result<Adapters<'m, M>, LoraError> {
    options.check()?;
    let targets = select(linear_layers(model), &options.targets)?;
    let adapted = targets.into_iter().map(|target| AdaptedLayer::new(target, options, Some(rng), rng));
    Adapters::attach(model, adapted.collect::<Result<_, _>>()?, options.clone())
}

/// A linear layer with its adapter.
pub(super) struct AdaptedLayer {
    pub(super) path: String,
    pub(super) linear: Linear,
    pub(super) adapter: Arc<LowRank>,
}

impl AdaptedLayer {
    /// Creates an adapter for a layer, without attaching it. A is zero without a generator.
    pub(super) fn new(
        target: Target,
        options: &Lora,
        init: Option<&Rng>,
        dropout: &Rng,
    ) -> Result<Self, LoraError> {
        let Target { path, linear } = target;
        if linear.adapter().get().is_some() {
            return Err(LoraError::AlreadyAttached { layer: path });
        }
        let [inputs, outputs] = linear.sizes();
        let (weight_type, device) = linear.place();
        let adapter = LowRank::new(
            LowRankOptions {
                device: &device,
                inputs,
                outputs,
                rank: options.rank,
                scale: options.scale(),
                dropout: options.dropout,
                dtype: if weight_type == DType::F64 { DType::F64 } else { DType::F32 },
            },
            init,
            dropout,
        )?;
        Ok(Self { path, linear, adapter: Arc::new(adapter) })
    }

    /// Returns the names and parameters of A and B.
    pub(super) fn matrices(&self) -> [(String, &Parameter); 2] {
        let dot = if self.path.is_empty() { "" } else { "." };
        let [a, b] = self.adapter.matrices();
        [("lora_A", a), ("lora_B", b)]
            .map(|(name, matrix)| (format!("{}{dot}{name}.weight", self.path), matrix))
    }
}

/// The adapters of a model: a module whose parameters are those of the adapters, and whose forward pass is that of the model.
///
/// Train it like a model: optimizers, training loops and checkpoints of this module hold the adapters, and the random
/// generators of the whole model. The model's other parameters are frozen; its buffers, such as running means, still
/// move in training, and no checkpoint of the adapters stores them.
///
/// Adapters stay attached when this value is dropped, and the model then computes with them. [`detach`](Self::detach)
/// removes them.
pub struct Adapters<'m, M: Module + ?Sized> {
    pub(super) model: &'m M,
    pub(super) options: Lora,
    pub(super) layers: Vec<AdaptedLayer>,
    /// The model's random generators, without those of adapters.
    rngs: Vec<(String, Rng)>,
}

impl<'m, M: Module + ?Sized> Adapters<'m, M> {
    /// Freezes the model and attaches adapters, all or none.
    pub(super) fn attach(model: &'m M, layers: Vec<AdaptedLayer>, options: Lora) -> Result<Self, LoraError> {
        let rngs = model.rngs();
        for (number, layer) in layers.iter().enumerate() {
            if !layer.linear.adapter().attach(&layer.adapter) {
                layers[..number].iter().for_each(|layer| layer.linear.adapter().detach(&layer.adapter));
                return Err(LoraError::AlreadyAttached { layer: layer.path.clone() });
            }
        }
        // The walk tells the adapters their paths.
        let parameters = model.parameters();
        let adapters = linear_layers(model).into_iter().filter_map(|layer| layer.linear.adapter().get());
        let trained: HashSet<usize> =
            adapters.flat_map(|adapter| adapter.matrices().map(Parameter::address)).collect();
        let frozen = parameters.iter().filter(|(_, parameter)| !trained.contains(&parameter.address()));
        frozen.for_each(|(_, parameter)| parameter.freeze());
        Ok(Self { model, options, layers, rngs })
    }

    /// Returns the model.
    #[must_use]
    pub const fn model(&self) -> &'m M {
        self.model
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> &Lora {
        &self.options
    }

    /// Returns the paths of the layers with adapters, in the order of the model.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layers.iter().map(|layer| layer.path.as_str())
    }

    /// Adds the updates to the weights, so that the forward pass has no further products. Does nothing if that has
    /// happened. The adapters get no gradients while they are merged.
    ///
    /// The sum is rounded to the element type of the weight. The old weights stay in memory for
    /// [`unmerge`](Self::unmerge), which restores them to the bit; subtracting the update would leave rounding errors. To
    /// keep only the merged weights, [`detach`](Self::detach) the adapters.
    ///
    /// # Errors
    /// [`LoraError::Quantized`] for quantized weights, [`LoraError::SharedWeight`] if a layer without this adapter uses
    /// the weight, [`LoraError::Tensor`] if there is no memory. No weight has changed then.
    pub fn merge(&self) -> Result<(), LoraError> {
        let uses = Uses::of(self.model);
        let mut weights = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let Some((weight, is_transposed)) = layer.linear.dense_weight() else {
                return Err(LoraError::Quantized { layer: layer.path.clone() });
            };
            if uses.has_other(weight, &layer.linear) {
                return Err(LoraError::SharedWeight { layer: layer.path.clone() });
            }
            weights.push((&layer.adapter, weight, is_transposed));
        }
        weights.retain(|(adapter, ..)| !adapter.is_merged());
        for (number, &(adapter, weight, is_transposed)) in weights.iter().enumerate() {
            if let Err(error) = adapter.merge(weight, is_transposed) {
                for (adapter, weight, _) in &weights[..number] {
                    adapter.unmerge(weight)?;
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Restores the weights from before [`merge`](Self::merge) to the bit. Does nothing if the adapters are not merged.
    ///
    /// # Errors
    /// [`LoraError::Tensor`] if the element type of the model changed since.
    pub fn unmerge(&self) -> Result<(), LoraError> {
        for layer in &self.layers {
            if let Some((weight, _)) = layer.linear.dense_weight() {
                layer.adapter.unmerge(weight)?;
            }
        }
        Ok(())
    }

    /// Returns whether the adapters are merged into the weights.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        self.layers.iter().any(|layer| layer.adapter.is_merged())
    }

    /// Removes the adapters from the model. Merged weights stay merged, and the memory of the old weights is freed.
    ///
    /// The model stays frozen; [`unfreeze`](Module::unfreeze) it to train its parameters.
    pub fn detach(self) {
        self.layers.iter().for_each(|layer| layer.linear.adapter().detach(&layer.adapter));
    }
}

/// How often parameters occur in a model, and how often in which linear layer.
#[derive(Default)]
struct Uses {
    all: HashMap<usize, usize>,
    of_layers: HashMap<(usize, usize), usize>,
}

impl Uses {
    fn of<M: Module + ?Sized>(model: &M) -> Self {
        let mut uses = Self::default();
        let mut layer = |linear: &Linear| {
            if let Some((weight, _)) = linear.dense_weight() {
                *uses.of_layers.entry((weight.address(), linear.adapter().address())).or_default() += 1;
            }
        };
        model.as_linear().into_iter().for_each(&mut layer);
        model.walk(&mut |_, part| match part {
            PartRef::Module(module) => module.as_linear().into_iter().for_each(&mut layer),
            PartRef::Parameter(parameter) => *uses.all.entry(parameter.address()).or_default() += 1,
            PartRef::Buffer(_) | PartRef::Rng(_) => {}
        });
        uses
    }

    /// Whether a weight occurs outside of a linear layer.
    fn has_other(&self, weight: &Parameter, linear: &Linear) -> bool {
        let address = weight.address();
        self.all.get(&address) != self.of_layers.get(&(address, linear.adapter().address()))
    }
}

impl<M: Module + ?Sized> Parts for Adapters<'_, M> {
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        self.layers.iter().for_each(|layer| visitor.part(&layer.path, &*layer.adapter));
        self.rngs.iter().for_each(|(path, rng)| visitor.part(path, rng));
    }
}

impl<M: Module + ?Sized> Module for Adapters<'_, M> {
    fn the_attribute_module_above_this_impl(&self) {}

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.model.forward(x)
    }
}

impl<M: Module + ?Sized> fmt::Debug for Adapters<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lora { rank, alpha, .. } = self.options;
        let merged = if self.is_merged() { ", merged" } else { "" };
        write!(f, "Adapters(rank {rank}, alpha {alpha}, {} layers{merged})", self.layers.len())
    }
}
