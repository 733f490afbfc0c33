//! The trait `Module`.

use std::collections::HashMap;
use std::fmt;

use highwater_tensor::{Activation, DType, Parameter, Result, Rng, Tensor};
use highwater_tracking::module;

/// A module: a function of a tensor with parameters, such as a layer or a network.
///
/// A module of modules gives each child a name in three calls: [`named`](Self::named) when it is built,
/// [`forward_as`](Self::forward_as) to call it, and [`visit_as`](Self::visit_as) to list its parameters. Parameters and
/// memory accounts then have the same paths. [`Sequential`](super::Sequential) does this automatically.
/// [`visit_parts!`](crate::visit_parts) lists all children, with their buffers and random generators, in one line.
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor};
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
///         x.add(&self.layer.forward_as("layer", x)?)
///     }
///
///     visit_parts!(layer);
/// }
///
/// let device = Device::cpu()?;
/// let net = Residual { layer: Linear::new(&device, 3, 3, &Rng::new(0))?.named("layer") };
/// assert_eq!(net.forward(&Tensor::ones(&device, [5, 3])?)?.dims(), [5, 3]);
/// assert_eq!(net.parameters()[0].0, "layer.weight");
/// assert_eq!(net.parameter_count(), 12);
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Module: fmt::Debug + Send + Sync {
    /// Computes the module's output for `x`.
    ///
    /// # Errors
    /// The errors of the ops inside, for example for a shape that does not match.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

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

    /// Visits each parameter with its path in this module, always in the same order.
    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        let _ = visitor;
    }

    /// Visits each buffer with its path: tensors that training changes without gradients, such as running means.
    /// Checkpoints store them with the parameters.
    fn visit_buffers(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        let _ = visitor;
    }

    /// Visits each random generator of the forward pass with its path. Checkpoints store their states.
    fn visit_rngs(&self, visitor: &mut dyn FnMut(&str, &Rng)) {
        let _ = visitor;
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
        let mut result = Ok(());
        self.visit(&mut |path, parameter| {
            let _scope = module(path.rsplit_once('.').map_or("", |(layer, _)| layer));
            if result.is_ok() {
                result = parameter.convert(dtype);
            }
        });
        result
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
        self.visit(&mut |_, parameter| parameter.freeze());
    }

    /// Unfreezes all parameters: the opposite of [`freeze`](Self::freeze).
    fn unfreeze(&self) {
        self.visit(&mut |_, parameter| parameter.unfreeze());
    }

    /// Calls [`forward`](Self::forward) inside the scope `name`, for the children of a module.
    ///
    /// # Errors
    /// See [`forward`](Self::forward).
    fn forward_as(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let _scope = module(name);
        self.forward(x)
    }

    /// Calls [`visit`](Self::visit) with `name` before each path, for the children of a module.
    fn visit_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.visit(&mut |path, parameter| visitor(&format!("{name}.{path}"), parameter));
    }

    /// Calls [`visit_buffers`](Self::visit_buffers) with `name` before each path, for the children of a module.
    fn visit_buffers_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.visit_buffers(&mut |path, buffer| visitor(&format!("{name}.{path}"), buffer));
    }

    /// Calls [`visit_rngs`](Self::visit_rngs) with `name` before each path, for the children of a module.
    fn visit_rngs_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        self.visit_rngs(&mut |path, rng| visitor(&format!("{name}.{path}"), rng));
    }

    /// Charges the memory of the module's parameters to the scope `name`, in which [`forward_as`](Self::forward_as)
    /// runs its ops. For the children of a module, when it is built.
    #[must_use]
    fn named(self, name: &str) -> Self
    where
        Self: Sized,
    {
        let _scope = module(name);
        self.charge_memory();
        self
    }

    /// Charges the memory of the parameters and buffers to this thread's current scope, and to scopes below it for
    /// their paths. [`named`](Self::named) calls this inside the scope of a name.
    fn charge_memory(&self) {
        let mut charge = |path: &str, parameter: &Parameter| {
            let _scope = module(path.rsplit_once('.').map_or("", |(layer, _)| layer));
            parameter.charge_memory();
        };
        self.visit(&mut charge);
        self.visit_buffers(&mut charge);
    }

    /// Returns all buffers with their paths.
    fn buffers(&self) -> Vec<(String, Parameter)> {
        let mut buffers = Vec::new();
        self.visit_buffers(&mut |path, buffer| buffers.push((path.to_owned(), buffer.clone())));
        buffers
    }

    /// Returns all parameters with their paths. A shared parameter occurs once per use.
    fn parameters(&self) -> Vec<(String, Parameter)> {
        let mut parameters = Vec::new();
        self.visit(&mut |path, parameter| parameters.push((path.to_owned(), parameter.clone())));
        parameters
    }

    /// Returns the number of trainable values. A shared parameter counts once.
    fn parameter_count(&self) -> usize {
        let mut seen: HashMap<usize, Parameter> = HashMap::new();
        self.visit(&mut |_, parameter| {
            seen.entry(parameter.address()).or_insert_with(|| parameter.clone());
        });
        seen.values().map(|parameter| parameter.tensor().elements()).sum()
    }
}

/// Forwards to the boxed module, so that fields may have the type `Box<dyn Module>`.
impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }

    fn as_activation(&self) -> Option<Activation> {
        (**self).as_activation()
    }

    fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
        (**self).forward_activated(x, activation)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        (**self).visit(visitor);
    }

    fn visit_buffers(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        (**self).visit_buffers(visitor);
    }

    fn visit_rngs(&self, visitor: &mut dyn FnMut(&str, &Rng)) {
        (**self).visit_rngs(visitor);
    }

    fn visit_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        (**self).visit_as(name, visitor);
    }

    fn visit_buffers_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        (**self).visit_buffers_as(name, visitor);
    }

    fn visit_rngs_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        (**self).visit_rngs_as(name, visitor);
    }

    fn charge_memory(&self) {
        (**self).charge_memory();
    }
}
