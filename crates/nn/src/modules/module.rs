//! The trait `Module`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bfc_core::OwnerId;
/// Lists the fields of a struct or enum as the parts of a module: implements [`Parts`].
///
/// Each part has the name of its field, or its index in a tuple. Optimizers, checkpoints, reports and errors use these
/// names. Fields are [parts](super::ModulePart) or plain data; another field does not compile. Options of a field:
///
/// | | |
/// |---|---|
/// | `#[module(buffer)]` | parameters that are not trained, such as running means |
/// | `#[module(skip)]` | no part |
/// | `#[module(rename = "…")]` | another name; an empty one gives the part the path of its owner |
///
/// A module finds its path by a part of its own. If it has no part that can know a path, or if other modules share all
/// of them, add the field `path: ModulePath` ([`ModulePath`](super::ModulePath)).
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor, is_training, no_grad};
/// use highwater::nn::{Module, Parameter, module};
///
/// /// x over the largest value seen so far, scaled, with noise in training.
/// #[derive(Debug, Module)]
/// struct Level {
///     scale: Parameter,
///     noise: Rng,
///     spread: f64,
///     #[module(buffer)]
///     largest: Parameter,
/// }
///
/// #[module]
/// impl Module for Level {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let largest = self.largest.tensor().detach();
///         if !is_training() {
///             return x.div(&largest)?.mul(&self.scale.tensor());
///         }
///         let largest = no_grad(|| x.abs()?.max_all()?.maximum(&largest))?;
///         self.largest.set(&largest)?;
///         let noise = Tensor::normal(x.device(), x.shape(), 0.0, self.spread, &self.noise)?;
///         x.div(&largest)?.add(&noise)?.mul(&self.scale.tensor())
///     }
/// }
///
/// let one = |device: &Device| Parameter::new(Tensor::ones(device, ())?);
/// let device = Device::cpu()?;
/// let (scale, largest) = (one(&device)?, one(&device)?);
/// let level = Level { scale, noise: Rng::new(0), spread: 0.1, largest };
/// level.forward(&Tensor::full(&device, [3], -5.0)?)?;
/// assert_eq!((level.parameters()[0].0.as_str(), level.buffers()[0].0.as_str()), ("scale", "largest"));
/// assert_eq!(level.buffers()[0].1.tensor().item::<f32>()?, 5.0);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A field that is no part:
///
/// ```compile_fail,E0277
/// use highwater::nn::{Linear, Module};
///
/// struct Config;
///
/// #[derive(Debug, Module)]
/// struct Head {
///     layer: Linear,
///     config: Config, // error: `Config` is no module and no other part of one
/// }
/// ```
///
/// Only plain data:
///
/// ```compile_fail,E0080
/// #[derive(highwater::nn::Module)]
/// struct Scale {
///     by: f64, // error: no field of `Scale` knows its path in the model: add the field `path: ModulePath`
/// }
/// ```
pub use highwater_macros::Module;
use highwater_tensor::{Activation, DType, Parameter, Result, Rng, Tensor};
use highwater_tracking::{ModuleGuard, Scope, enter_path};

use super::linear::Linear;
use super::parts::{PartRef, PartVisitor, Parts};

/// A module: a function of a tensor with parameters, such as a layer or a network.
///
/// Write `#[derive(Module)]` above the struct, and [`#[module]`](super::module) above its `impl` blocks. Then call
/// `forward` and other methods as usual. The derive names each part by its field, and the attribute lets methods run in
/// the path of their module, such as `blocks.0`. Optimizers, checkpoints, reports and errors use these paths.
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor, memory_report};
/// use highwater::nn::{Linear, Module, module};
///
/// /// y = x + layer(x)
/// #[derive(Debug, Module)]
/// struct Residual {
///     layer: Linear,
/// }
///
/// #[module]
/// impl Module for Residual {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         x.add(&self.layer.forward(x)?)
///     }
/// }
///
/// #[derive(Debug, Module)]
/// struct Network {
///     blocks: Vec<Residual>,
/// }
///
/// #[module]
/// impl Module for Network {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x))
///     }
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let layer = || Linear::new(&device, 3, 3, &rng);
/// let net = Network { blocks: vec![Residual { layer: layer()? }, Residual { layer: layer()? }] };
/// assert_eq!(net.parameters()[0].0, "blocks.0.layer.weight");
/// assert_eq!(net.parameter_count(), 24);
/// assert_eq!(net.forward(&Tensor::ones(&device, [5, 3])?)?.dims(), [5, 3]);
/// let report = memory_report(&device)?;
/// let paths: Vec<String> = report.places.iter().map(|row| row.path()).collect();
/// assert!(paths.contains(&"blocks.0.layer.linear".to_owned()));
/// assert!(paths.contains(&"blocks.1.add".to_owned()));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// The `impl` does not compile without the attribute:
///
/// ```compile_fail,E0046
/// # use highwater::{Result, Tensor};
/// # use highwater::nn::{Linear, Module};
/// # #[derive(Debug, Module)]
/// # struct Residual {
/// #     layer: Linear,
/// # }
/// impl Module for Residual { // error: missing: `the_attribute_module_above_this_impl`
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         x.add(&self.layer.forward(x)?)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module and no other part of one",
    label = "not a module",
    note = "parts are modules, `Parameter`, `Rng`, and `Option`, `Vec`, arrays, tuples, `Box` and `Arc` of them",
    note = "write `#[module(skip)]` above a field that is no part"
)]
pub trait Module: Parts + fmt::Debug + Send + Sync {
    /// Computes the module's output for `x`.
    ///
    /// # Errors
    /// The errors of the ops inside, for example for a shape that does not match.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// The attribute `#[module]` writes this method, so that no `impl` lacks the attribute.
    #[doc(hidden)]
    fn the_attribute_module_above_this_impl(&self);

    /// Enters the module's path until the guard is dropped. [`#[module]`](super::module) begins methods with it.
    fn enter(&self) -> ModuleGuard {
        self.path().map_or_else(|| enter_unknown(self), enter_path)
    }

    /// Returns the name of the module's type for summaries: `Linear`.
    fn kind(&self) -> String {
        short_name(std::any::type_name::<Self>())
    }

    /// Returns the module's path in its model, if a [walk](Self::walk) has told it: the path of the first part that no
    /// other module shares, without the names of the part.
    fn path(&self) -> Option<OwnerId> {
        PartVisitor::path_of(|visitor| self.visit_parts(visitor))
    }

    /// Returns the address and type, which a walk recognizes a shared module by.
    #[doc(hidden)]
    fn identity(&self) -> (usize, &'static str) {
        (std::ptr::from_ref(self).addr(), std::any::type_name::<Self>())
    }

    /// Returns the activation that this module consists of, if any. The preceding module may then fuse it.
    fn as_activation(&self) -> Option<Activation> {
        None
    }

    /// Returns the linear layer that this module is, if any. Adapters find their layers by it.
    #[doc(hidden)]
    fn as_linear(&self) -> Option<&Linear> {
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
    fn walk(&self, found: &mut dyn FnMut(&str, PartRef<'_>)) {
        self.visit_parts(&mut PartVisitor::walk(found));
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
    /// let adam = Adam::new(trained.collect::<Vec<_>>(), 1e-3)?;
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
            if let PartRef::Parameter(parameter) = part {
                parameters.push((path.to_owned(), parameter.clone()));
            }
        });
        parameters
    }

    /// Returns all buffers with their paths.
    fn buffers(&self) -> Vec<(String, Parameter)> {
        let mut buffers = Vec::new();
        self.walk(&mut |path, part| {
            if let PartRef::Buffer(buffer) = part {
                buffers.push((path.to_owned(), buffer.clone()));
            }
        });
        buffers
    }

    /// Returns all random generators with their paths. A clone draws from the same sequence.
    fn rngs(&self) -> Vec<(String, Rng)> {
        let mut rngs = Vec::new();
        self.walk(&mut |path, part| {
            if let PartRef::Rng(rng) = part {
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

/// Enters the path of a module that does not know it yet.
#[cold]
fn enter_unknown<M: Module + ?Sized>(module: &M) -> ModuleGuard {
    if !Scope::now().is_in_model() {
        // The outermost module, before an optimizer or a checkpoint has listed its parameters.
        module.walk(&mut |_, _| {});
    }
    module.path().map_or_else(|| Scope::now().enter(), enter_path)
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
        impl<M: Module + ?Sized> Parts for $pointer<M> {
            fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
                (**self).visit_parts(visitor);
            }
        }

        $(#[$doc])*
        impl<M: Module + ?Sized> Module for $pointer<M> {
            enters_itself!();

            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                (**self).forward(x)
            }

            fn as_activation(&self) -> Option<Activation> {
                (**self).as_activation()
            }

            fn as_linear(&self) -> Option<&Linear> {
                (**self).as_linear()
            }

            fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
                (**self).forward_activated(x, activation)
            }

            fn kind(&self) -> String {
                (**self).kind()
            }

            fn pytorch_transposes(&self) -> &[&str] {
                (**self).pytorch_transposes()
            }

            fn identity(&self) -> (usize, &'static str) {
                (**self).identity()
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
