//! The trait `Module`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bfc_core::OwnerId;
use highwater_tensor::{Activation, DType, Parameter, Result, Rng, Tensor};
use highwater_tracking::{ModuleGuard, Scope, enter_path};

use super::outputs::output;
use super::parts::{PartVisitor, Visited};

/// A module: a function of a tensor with parameters, such as a layer or a network.
///
/// A module of modules lists its fields once, with [`visit_parts!`](crate::visit_parts). That gives each part a path, such
/// as `block.layer.weight`, which optimizers, checkpoints, reports and errors use. Call modules of your own with
/// [`call`](Self::call), so that the ops in their `forward` also count toward their paths.
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor, memory_report};
/// use highwater::nn::{Linear, Module};
/// use highwater::visit_parts;
///
/// /// y = x + layer(x)
/// #[derive(Debug)]
/// struct Residual {
///     layer: Linear,
/// }
///
/// impl Module for Residual {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         x.add(&self.layer.forward(x)?)
///     }
///
///     visit_parts!(layer);
/// }
///
/// #[derive(Debug)]
/// struct Network {
///     blocks: Vec<Residual>,
/// }
///
/// impl Module for Network {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.blocks.iter().try_fold(x.clone(), |x, block| block.call(&x))
///     }
///
///     visit_parts!(blocks);
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let layer = || Linear::new(&device, 3, 3, &rng);
/// let net = Network { blocks: vec![Residual { layer: layer()? }, Residual { layer: layer()? }] };
/// assert_eq!(net.parameters()[0].0, "blocks.0.layer.weight");
/// assert_eq!(net.parameter_count(), 24);
/// assert_eq!(net.call(&Tensor::ones(&device, [5, 3])?)?.dims(), [5, 3]);
/// let report = memory_report(&device)?;
/// let paths: Vec<String> = report.places.iter().map(|row| row.path()).collect();
/// assert!(paths.contains(&"blocks.0.layer.linear".to_owned()));
/// assert!(paths.contains(&"blocks.1.add".to_owned()));
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Module: fmt::Debug + Send + Sync {
    /// Computes the module's output for `x`. Callers use [`call`](Self::call), except for layers of this crate, which
    /// enter their paths themselves.
    ///
    /// # Errors
    /// The errors of the ops inside, for example for a shape that does not match.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// Computes [`forward`](Self::forward) in the module's path, so that its ops and their memory have the module's
    /// name in reports, recordings and errors.
    ///
    /// # Errors
    /// See [`forward`](Self::forward).
    fn call(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.enter();
        output(self.forward(x))
    }

    /// Enters the module's path until the guard is dropped, for methods other than [`call`](Self::call), for example
    /// with several inputs.
    fn enter(&self) -> ModuleGuard {
        if !Scope::now().is_in_model() && self.path().is_none() {
            // The outermost module, before an optimizer or a checkpoint has listed its parameters.
            self.walk(&mut |_, _| {});
        }
        self.path().map_or_else(|| Scope::now().enter(), enter_path)
    }

    /// Visits the parts of the module, always in the same order. [`visit_parts!`](crate::visit_parts) defines it. Write
    /// it by hand if the names of parts are no fields.
    ///
    /// ```
    /// use highwater::{Device, Result, Rng, Tensor};
    /// use highwater::nn::{Linear, Module, PartVisitor};
    ///
    /// #[derive(Debug)]
    /// struct Pair([Linear; 2]);
    ///
    /// impl Module for Pair {
    ///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
    ///         self.0[1].forward(&self.0[0].forward(x)?)
    ///     }
    ///
    ///     fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
    ///         visitor.part("first", &self.0[0]);
    ///         visitor.part("second", &self.0[1]);
    ///     }
    /// }
    ///
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let pair = Pair([Linear::new(&device, 2, 3, &rng)?, Linear::new(&device, 3, 1, &rng)?]);
    /// assert_eq!(pair.parameters()[2].0, "second.weight");
    /// # Ok::<(), highwater::Error>(())
    /// ```
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        let _ = visitor;
    }

    /// Returns the name of the module's type for summaries: `Linear`.
    fn kind(&self) -> String {
        short_name(std::any::type_name::<Self>())
    }

    /// Returns the module's path in its model, if a [walk](Self::walk) has told it to a part of the module.
    /// [`visit_parts!`](crate::visit_parts) defines it.
    fn path(&self) -> Option<OwnerId> {
        None
    }

    /// Returns the activation that this module consists of, if any. The preceding module may then fuse it.
    fn as_activation(&self) -> Option<Activation> {
        None
    }

    /// Computes [`forward`](Self::forward) and an activation in one op, for [`Sequential`](super::Sequential). Modules
    /// without such an op return `None` and do nothing.
    ///
    /// # Errors
    /// See [`forward`](Self::forward).
    fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
        let _ = (x, activation);
        None
    }

    /// Returns the names of the module's own parameters that PyTorch stores transposed, such as the weight of a
    /// [`Linear`](super::Linear). [`Checkpoint::converted_from_pytorch`](crate::checkpoint::Checkpoint::converted_from_pytorch)
    /// reads it.
    fn pytorch_transposes(&self) -> &[&str] {
        &[]
    }

    /// Shows all parts below this module with their paths, always in the same order, and tells layers and parameters
    /// their paths. Memory of parameters counts toward their modules from then on.
    ///
    /// [`parameters`](Self::parameters), [`buffers`](Self::buffers) and [`rngs`](Self::rngs) are walks too, so creating
    /// an optimizer or loading a checkpoint names all layers.
    fn walk(&self, found: &mut dyn FnMut(&str, Visited<'_>)) {
        self.visit_parts(&mut PartVisitor::new(found));
    }

    /// Converts all parameters to another float type. Convert before you create an optimizer, because its state depends
    /// on the type.
    ///
    /// ```
    /// use highwater::{DType, Device, Rng, Tensor};
    /// use highwater::nn::{Linear, Module};
    /// let device = Device::cpu()?;
    /// let layer = Linear::new(&device, 3, 2, &Rng::new(0))?;
    /// layer.convert(DType::BF16)?;
    /// assert_eq!(layer.forward(&Tensor::ones_of(&device, [5, 3], DType::BF16)?)?.dtype(), DType::BF16);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Parameter::convert`]. The parameters before the failed one are converted.
    fn convert(&self, dtype: DType) -> Result<()> {
        self.parameters().iter().try_for_each(|(_, parameter)| {
            let _scope = parameter.module().enter();
            parameter.convert(dtype)
        })
    }

    /// [Freezes](Parameter::freeze) all parameters: training does not change them, and the backward pass computes no
    /// gradients for them.
    ///
    /// Running means are buffers and still move in training. To keep them and to disable dropout, run the module inside
    /// [`evaluating`](highwater_tensor::evaluating). An optimizer allocates state for all parameters that it gets, so
    /// give it only the trainable ones.
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// use highwater::nn::{Linear, Module, Relu, Sequential};
    /// use highwater::optim::Adam;
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let backbone = Sequential::new().with("fc", Linear::new(&device, 8, 8, &rng)?).with("relu", Relu);
    /// backbone.freeze(); // once it has its weights, for instance from a checkpoint
    /// let network = Sequential::new().with("backbone", backbone).with("head", Linear::new(&device, 8, 2, &rng)?);
    ///
    /// let trained = network.parameters().into_iter().filter(|(_, parameter)| !parameter.is_frozen());
    /// let adam = Adam::new(trained.collect(), 1e-3)?;
    /// let loss = network.forward(&Tensor::ones(&device, [4, 8])?)?.square()?.mean_all()?;
    /// assert_eq!(loss.backward()?.len(), 2); // the head's weight and bias
    /// # Ok::<(), highwater::Error>(())
    /// ```
    fn freeze(&self) {
        self.parameters().iter().for_each(|(_, parameter)| parameter.freeze());
    }

    /// Unfreezes all parameters: the opposite of [`freeze`](Self::freeze).
    fn unfreeze(&self) {
        self.parameters().iter().for_each(|(_, parameter)| parameter.unfreeze());
    }

    /// Returns all parameters with their paths. A shared parameter occurs once per use.
    fn parameters(&self) -> Vec<(String, Parameter)> {
        let mut parameters = Vec::new();
        self.walk(&mut |path, part| {
            if let Visited::Parameter(parameter) = part {
                parameters.push((path.to_owned(), parameter.clone()));
            }
        });
        parameters
    }

    /// Returns all buffers with their paths.
    fn buffers(&self) -> Vec<(String, Parameter)> {
        let mut buffers = Vec::new();
        self.walk(&mut |path, part| {
            if let Visited::Buffer(buffer) = part {
                buffers.push((path.to_owned(), buffer.clone()));
            }
        });
        buffers
    }

    /// Returns all random generators with their paths. A clone draws from the same sequence.
    fn rngs(&self) -> Vec<(String, Rng)> {
        let mut rngs = Vec::new();
        self.walk(&mut |path, part| {
            if let Visited::Rng(rng) = part {
                rngs.push((path.to_owned(), rng.clone()));
            }
        });
        rngs
    }

    /// Returns the number of trainable values. A shared parameter counts once.
    fn parameter_count(&self) -> usize {
        let parameters = self.parameters();
        let unique: HashMap<usize, &Parameter> =
            parameters.iter().map(|(_, parameter)| (parameter.address(), parameter)).collect();
        unique.values().map(|parameter| parameter.tensor().elements()).sum()
    }
}

/// Removes the paths from a type's name: `a::Checkpointed<b::Block>` becomes `Checkpointed<Block>`.
fn short_name(name: &str) -> String {
    let mut short = String::new();
    for part in name.split_inclusive(['<', '>', ',', ' ', '(', ')', '[', ']', '&', ';']) {
        short.push_str(part.rsplit("::").next().unwrap_or(part));
    }
    short
}

/// Forwards all methods to the module behind the pointer.
macro_rules! module_behind {
    ($(#[$doc:meta])* $pointer:ident) => {
        $(#[$doc])*
        impl<M: Module + ?Sized> Module for $pointer<M> {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                (**self).forward(x)
            }

            fn as_activation(&self) -> Option<Activation> {
                (**self).as_activation()
            }

            fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
                (**self).forward_activated(x, activation)
            }

            fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
                (**self).visit_parts(visitor);
            }

            fn kind(&self) -> String {
                (**self).kind()
            }

            fn pytorch_transposes(&self) -> &[&str] {
                (**self).pytorch_transposes()
            }

            fn path(&self) -> Option<OwnerId> {
                (**self).path()
            }
        }
    };
}

module_behind! {
    /// A boxed module, so that fields may have the type `Box<dyn Module>`.
    Box
}
module_behind! {
    /// A shared module. It reports under the first path that a walk finds.
    Arc
}
