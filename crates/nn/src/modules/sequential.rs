//! Modules in sequence.

use std::fmt;
use std::sync::Arc;

use highwater_tensor::{Result, Tensor};
use highwater_tracking::ModulePath;

use super::module::Module;
use super::names::Names;
use super::outputs::output;
use super::parts::{ModulePart, PartVisitor, Parts};
use super::unchanged;
use crate::recompute::{self, Input};

/// Applies modules in sequence. Each module has its name in paths.
///
/// `Sequential` fuses an activation into a preceding [`Linear`](super::Linear), and a `Relu` into a preceding
/// [`BatchNorm`](super::BatchNorm): one op computes both, with bit-identical results. Reports then show `linear_relu` in `fc1`, and no separate `relu`. To keep two ops, put a
/// custom module between them or call the layers individually.
///
/// A `Sequential` is a chain for [`recompute`](crate::recompute): each module is a block. A module and the activation
/// after it are one block.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Linear, Module, Relu, Sequential};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let net = Sequential::new()
///     .with("fc1", Linear::new(&device, 64, 32, &rng)?)
///     .with("relu", Relu)
///     .with("fc2", Linear::new(&device, 32, 10, &rng)?);
/// assert_eq!(net.forward(&Tensor::zeros(&device, [7, 64])?)?.dims(), [7, 10]);
/// let paths: Vec<_> = net.parameters().into_iter().map(|(path, _)| path).collect();
/// assert_eq!(paths, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    path: ModulePath,
    // Shared with the parts of the graph that run again in the backward pass.
    layers: Vec<Arc<Layer>>,
    names: Names,
}

/// A module of the sequence.
pub(super) struct Layer {
    pub(super) name: String,
    path: ModulePath,
    pub(super) module: Box<dyn Module>,
}

impl Sequential {
    /// Creates an empty sequence: the identity.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a module. Dots in the name create nested scopes. An empty or used name gets a number, so that every path
    /// is unique: the second `relu` becomes `relu2`.
    #[must_use]
    pub fn with(mut self, name: &str, module: impl Module + 'static) -> Self {
        let name = self.names.take(name, &module, &self.layers);
        self.layers.push(Arc::new(Layer { name, path: ModulePath::new(), module: Box::new(module) }));
        self
    }

    /// Returns the number of modules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no modules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns the blocks: each module, together with the activation after it.
    fn blocks(&self) -> impl Iterator<Item = &[Arc<Layer>]> {
        let mut rest = &self.layers[..];
        std::iter::from_fn(move || {
            let has_activation = rest.get(1).is_some_and(|next| next.module.as_activation().is_some());
            let (block, later) = rest.split_at_checked(if has_activation { 2 } else { 1 })?;
            rest = later;
            Some(block)
        })
    }

    /// Applies the modules, each in its path.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let blocks = || self.blocks().map(<[_]>::to_vec).collect();
        if let Some(y) = recompute::run(self.path(), x, blocks, |block: &Vec<_>, x| run_block(block, x))? {
            return Ok(y);
        }
        let mut result = None;
        for block in self.blocks() {
            result = Some(run_block(block, Input::new(result, x))?);
        }
        Ok(result.unwrap_or_else(|| unchanged(x)))
    }
}

/// Applies a module and the activation after it, in one op if the module supports that.
fn run_block(block: &[Arc<Layer>], x: Input<'_>) -> Result<Tensor> {
    let [layer, after @ ..] = block else { return Ok(unchanged(&x)) };
    let activation = after.first().and_then(|after| after.module.as_activation());
    let y = {
        let _scope = layer.path.enter();
        match activation.and_then(|activation| layer.module.forward_activated(&x, activation)) {
            Some(y) => return output(y),
            None => output(layer.module.forward(&x))?,
        }
    };
    // Before the activation runs, unless backward needs it.
    drop(x);
    match after {
        [] => Ok(y),
        after => run_block(after, Input::Owned(y)),
    }
}

impl Parts for Sequential {
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        visitor.part("", &self.path);
        for layer in &self.layers {
            visitor.part(&layer.name, &**layer);
        }
    }
}

impl Module for Sequential {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.enter();
        output(self.apply(x))
    }
}

impl ModulePart for Layer {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.held_path(&self.path);
        self.module.visit_part(visitor);
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Sequential");
        for layer in &self.layers {
            fields.field(&layer.name, &layer.module);
        }
        fields.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{Gelu, Linear, LinearOptions, Relu, Silu, Tanh};
    use highwater_tensor::{Activation, DType, Parameter, Rng, Runtime};

    #[test]
    fn a_fused_activation_is_bit_identical() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let device = runtime.cpu().unwrap();
        let bits = |tensor: &Tensor| {
            let values = tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            values.into_iter().map(f64::to_bits).collect::<Vec<_>>()
        };
        // With the ops that each comes to in a sequence.
        let layers = || -> Vec<(Box<dyn Module>, &[&str])> {
            let rng = Rng::new(7);
            let layer = |inputs, outputs| Linear::new(&device, inputs, outputs, &rng).unwrap();
            let without_bias = LinearOptions { bias: None, ..Default::default() };
            vec![
                (Box::new(layer(6, 5)), &["linear_relu"]),
                (Box::new(Relu), &[]),
                (Box::new(layer(5, 4)), &["linear_gelu"]),
                (Box::new(Gelu), &[]),
                // The next module is no activation, or the layer already has one or does not support one.
                (Box::new(layer(4, 4)), &["linear"]),
                (Box::new(Tanh), &["tanh"]),
                (Box::new(layer(4, 4).with_activation(Activation::Silu)), &["linear_silu"]),
                (Box::new(Relu), &["relu"]),
                (Box::new(Linear::with_options(&device, 4, 3, without_bias, &rng).unwrap()), &["matmul"]),
                (Box::new(Silu), &["silu"]),
                (Box::new(layer(3, 3)), &["linear"]),
            ]
        };
        for dtype in [DType::F32, DType::BF16] {
            let x = Tensor::normal(&device, [8, 6], 0.0, 1.0, &Rng::new(8)).unwrap().to_dtype(dtype).unwrap();
            let (apart, mut expected) = (layers(), Vec::new());
            let mut y_apart = x.clone();
            for (layer, ops) in &apart {
                layer.convert(dtype).unwrap();
                y_apart = layer.forward(&y_apart).unwrap();
                expected.extend_from_slice(ops);
            }
            let together =
                layers().into_iter().fold(Sequential::new(), |net, (layer, _)| net.with("", layer));
            together.convert(dtype).unwrap();
            runtime.tracker().reset();
            let y_together = together.forward(&x).unwrap();
            let totals = runtime.tracker().op_totals();
            let calls =
                totals.iter().flat_map(|row| vec![row.op; usize::try_from(row.totals.calls).unwrap()]);
            let mut counted: Vec<_> = calls.collect();
            counted.sort_unstable();
            expected.sort_unstable();
            assert_eq!(counted, expected, "{dtype}");
            assert_eq!(bits(&y_together), bits(&y_apart), "{dtype}");
            let gradients = |y: &Tensor, parameters: Vec<(String, Parameter)>| {
                let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
                let of = |(_, own): (_, Parameter)| bits(gradients.get(&own.tensor()).unwrap());
                parameters.into_iter().map(of).collect::<Vec<_>>()
            };
            let of_apart = apart.iter().flat_map(|(layer, _)| layer.parameters()).collect();
            let (of_apart, of_together) =
                (gradients(&y_apart, of_apart), gradients(&y_together, together.parameters()));
            assert_eq!(of_apart, of_together, "{dtype}");
        }
    }
}
