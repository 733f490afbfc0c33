//! The trait of everything that has parameters and a forward.

use std::collections::HashMap;
use std::fmt;

use highwater_tensor::{Activation, DType, Parameter, Result, Rng, Tensor};
use highwater_tracking::module;

/// A function with parameters.
///
/// A module made of modules takes each child in by [`named`](Self::named), calls it by
/// [`forward_as`](Self::forward_as) and lists it by [`visit_as`](Self::visit_as), all with one name: so parameters and
/// memory accounts bear the same paths. [`Sequential`](super::Sequential) does this by itself, and
/// [`visit_parts!`](crate::visit_parts) lists all children, with their buffers and sources of randomness, in one line.
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
    /// The function's value at `x`.
    ///
    /// # Errors
    /// What the ops inside say, for instance that a shape does not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// The activation that this module is, if it is one and nothing else: a module before it may compute it along with itself.
    fn as_activation(&self) -> Option<Activation> {
        None
    }

    /// [`forward`](Self::forward) and an activation of its result in one op, for [`Sequential`](super::Sequential); `None`, and nothing
    /// done, from modules that have no such op.
    ///
    /// # Errors
    /// See [`forward`](Self::forward).
    fn forward_activated(&self, x: &Tensor, activation: Activation) -> Option<Result<Tensor>> {
        let _ = (x, activation);
        None
    }

    /// Shows each parameter, with its path in this module, always in the same order.
    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        let _ = visitor;
    }

    /// Shows each tensor that changes with training without being trained, as running means, with its path: a checkpoint
    /// keeps them beside the parameters.
    fn visit_buffers(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        let _ = visitor;
    }

    /// Shows each source of randomness that a forward draws from, with its path: a checkpoint keeps their states.
    fn visit_rngs(&self, visitor: &mut dyn FnMut(&str, &Rng)) {
        let _ = visitor;
    }

    /// Converts all parameters to another floating-point type; before an optimizer is made, as its state is made for a type.
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
    /// See [`Parameter::convert`], where the parameters before the one that failed are converted.
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

    /// [Freezes](Parameter::freeze) all parameters: this part of a network stays as it is while others are trained, and the backward pass
    /// goes through it without computing gradients of it.
    ///
    /// Running means are no parameters: in training they move. Where they shall stay too, and dropout shall not act, run the module inside
    /// [`evaluating`](highwater_tensor::evaluating). An optimizer keeps state for all parameters that it is made for: give it those that are trained.
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

    /// Trains all parameters again: the opposite of [`freeze`](Self::freeze).
    fn unfreeze(&self) {
        self.visit(&mut |_, parameter| parameter.unfreeze());
    }

    /// [`forward`](Self::forward) inside the scope `name`: for the children of a module.
    ///
    /// # Errors
    /// See [`forward`](Self::forward).
    fn forward_as(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let _scope = module(name);
        self.forward(x)
    }

    /// [`visit`](Self::visit) with `name` before each path: for the children of a module.
    fn visit_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.visit(&mut |path, parameter| visitor(&format!("{name}.{path}"), parameter));
    }

    /// [`visit_buffers`](Self::visit_buffers) with `name` before each path: for the children of a module.
    fn visit_buffers_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.visit_buffers(&mut |path, buffer| visitor(&format!("{name}.{path}"), buffer));
    }

    /// [`visit_rngs`](Self::visit_rngs) with `name` before each path: for the children of a module.
    fn visit_rngs_as(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        self.visit_rngs(&mut |path, rng| visitor(&format!("{name}.{path}"), rng));
    }

    /// The same module with the memory of its parameters charged to the scope `name`, where
    /// [`forward_as`](Self::forward_as) runs its ops: for the children of a module, as they are put in.
    #[must_use]
    fn named(self, name: &str) -> Self
    where
        Self: Sized,
    {
        let _scope = module(name);
        self.charge_memory();
        self
    }

    /// Charges the memory of the parameters and buffers to the scope that this thread is in, and to the scopes of their paths
    /// below it. [`named`](Self::named) does this in the scope of a name.
    fn charge_memory(&self) {
        let mut charge = |path: &str, parameter: &Parameter| {
            let _scope = module(path.rsplit_once('.').map_or("", |(layer, _)| layer));
            parameter.charge_memory();
        };
        self.visit(&mut charge);
        self.visit_buffers(&mut charge);
    }

    /// All that [`visit_buffers`](Self::visit_buffers) shows, with their paths.
    fn buffers(&self) -> Vec<(String, Parameter)> {
        let mut buffers = Vec::new();
        self.visit_buffers(&mut |path, buffer| buffers.push((path.to_owned(), buffer.clone())));
        buffers
    }

    /// All parameters with their paths. One that is used in two places is there twice.
    fn parameters(&self) -> Vec<(String, Parameter)> {
        let mut parameters = Vec::new();
        self.visit(&mut |path, parameter| parameters.push((path.to_owned(), parameter.clone())));
        parameters
    }

    /// How many numbers are trained. A parameter that is used in two places counts once.
    fn parameter_count(&self) -> usize {
        let mut seen: HashMap<usize, Parameter> = HashMap::new();
        self.visit(&mut |_, parameter| {
            seen.entry(parameter.address()).or_insert_with(|| parameter.clone());
        });
        seen.values().map(|parameter| parameter.tensor().elements()).sum()
    }
}

/// What is in a box is no other for it: fields may be of type `Box<dyn Module>`.
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
