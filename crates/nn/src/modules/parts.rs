//! The parts of a module, listed once: parameters, buffers, random generators, checkpoints and paths follow from the list.

use std::fmt;

use bfc_core::OwnerId;
use highwater_tensor::{Parameter, Rng};
use highwater_tracking::{ModulePath, Walk, intern_path};

use super::module::Module;

/// A part that a walk through a module finds.
#[derive(Clone, Copy, Debug)]
pub enum Visited<'a> {
    /// A module inside the module. Its own parts follow.
    Module(&'a dyn Module),
    /// A trained parameter.
    Parameter(&'a Parameter),
    /// A tensor that training changes without gradients, such as a running mean. Checkpoints store it.
    Buffer(&'a Parameter),
    /// A random generator of the forward pass. Checkpoints store its state.
    Rng(&'a Rng),
}

/// Walks through a module, and tells each layer and parameter its path.
///
/// [`Module::visit_parts`] receives it. [`Module::walk`] starts a walk.
pub struct PartVisitor<'a> {
    /// The path of the current part.
    path: String,
    /// The module that contains the current part, and the length of its path.
    module: (OwnerId, usize),
    walk: Walk,
    /// Whether parameters are buffers of their module.
    in_buffers: bool,
    found: &'a mut dyn FnMut(&str, Visited<'_>),
}

impl<'a> PartVisitor<'a> {
    pub(super) fn new(found: &'a mut dyn FnMut(&str, Visited<'_>)) -> Self {
        Self { path: String::new(), module: (OwnerId::ROOT, 0), walk: Walk::new(), in_buffers: false, found }
    }

    /// Visits a part with this name: the field's name, usually. A part without a name is its owner in another type, as
    /// the module in a wrapper.
    pub fn part(&mut self, name: &str, part: &(impl ModulePart + ?Sized)) {
        let len = self.path.len();
        if !name.is_empty() {
            if len > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
        }
        part.visit_part(self);
        self.path.truncate(len);
    }

    /// Visits a part whose parameters are buffers.
    pub fn buffer(&mut self, name: &str, part: &(impl ModulePart + ?Sized)) {
        let before = std::mem::replace(&mut self.in_buffers, true);
        self.part(name, part);
        self.in_buffers = before;
    }

    /// Tells the current path to a layer that another module holds for it.
    pub(super) fn tell(&self, path: &ModulePath) {
        path.set(self.owner(self.path.len()), self.walk);
    }

    /// Visits a module at the current path, and its parts.
    fn module(&mut self, module: &dyn Module) {
        (self.found)(&self.path, Visited::Module(module));
        let before = self.module;
        self.module = (self.owner(self.path.len()), self.path.len());
        module.visit_parts(self);
        self.module = before;
    }

    /// Returns the module with the first `len` bytes of the current path.
    fn owner(&self, len: usize) -> OwnerId {
        let (module, begin) = self.module;
        intern_path(module, self.path.get(begin..len).unwrap_or(""))
    }

    fn parameter(&mut self, parameter: &Parameter) {
        let holder = self.owner(self.path.rfind('.').unwrap_or(0));
        if parameter.module().set(holder, self.walk) {
            let _scope = parameter.module().enter();
            parameter.charge_memory();
        }
        let part = if self.in_buffers { Visited::Buffer(parameter) } else { Visited::Parameter(parameter) };
        (self.found)(&self.path, part);
    }
}

impl fmt::Debug for PartVisitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartVisitor").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A part of a [`Module`]: a module, a parameter or a random generator, and `Option`s, `Vec`s and shared pointers of them.
/// See [`visit_parts!`](crate::visit_parts).
///
/// The members of a `Vec` have their index as a name: `blocks.0.weight` is in the first of `blocks`.
pub trait ModulePart {
    /// Visits the part at the current path of the visitor.
    fn visit_part(&self, visitor: &mut PartVisitor<'_>);

    /// Returns the path of the module that has this part as a field, if a walk has told the part its path.
    fn owner_path(&self) -> Option<OwnerId>;
}

impl<M: Module> ModulePart for M {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.module(self);
    }

    fn owner_path(&self) -> Option<OwnerId> {
        self.path().map(OwnerId::parent)
    }
}

impl ModulePart for Parameter {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.parameter(self);
    }

    fn owner_path(&self) -> Option<OwnerId> {
        self.module().get()
    }
}

impl ModulePart for Rng {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        (visitor.found)(&visitor.path, Visited::Rng(self));
    }

    fn owner_path(&self) -> Option<OwnerId> {
        None
    }
}

/// The path of the layer that has this field. A layer with the field enters it in its forward pass.
impl ModulePart for ModulePath {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        self.set(visitor.module.0, visitor.walk);
    }

    fn owner_path(&self) -> Option<OwnerId> {
        self.get()
    }
}

impl<P: ModulePart> ModulePart for Option<P> {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        self.iter().for_each(|part| part.visit_part(visitor));
    }

    fn owner_path(&self) -> Option<OwnerId> {
        self.as_ref()?.owner_path()
    }
}

impl<P: ModulePart> ModulePart for Vec<P> {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        for (number, part) in self.iter().enumerate() {
            visitor.part(&number.to_string(), part);
        }
    }

    fn owner_path(&self) -> Option<OwnerId> {
        self.first()?.owner_path().map(OwnerId::parent)
    }
}

/// Lists the fields of a [`Module`](crate::modules::Module) inside its `impl`: modules, parameters and random generators, in
/// the order of visits. After `; buffers:` follow parameters that are not trained, such as running means.
///
/// The list names each part by its field. Optimizers, checkpoints, reports and errors use these names. Layers of the
/// library know their paths from it. [`Module::call`](crate::modules::Module::call) enters the path of a module with
/// ops of its own.
///
/// It defines `visit_parts` and `path`.
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor};
/// use highwater::nn::{BatchNorm, Linear, Module, Parameter};
/// use highwater::visit_parts;
///
/// #[derive(Debug)]
/// struct Network {
///     layers: Vec<Linear>,
///     norm: Option<BatchNorm>,
///     scale: Parameter,
/// }
///
/// impl Module for Network {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let mut x = x.clone();
///         for layer in &self.layers {
///             x = layer.forward(&x)?.relu()?;
///         }
///         if let Some(norm) = &self.norm {
///             x = norm.forward(&x)?;
///         }
///         x.mul(&self.scale.tensor())
///     }
///
///     visit_parts!(layers, norm, scale);
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let network = Network {
///     layers: vec![Linear::new(&device, 4, 8, &rng)?, Linear::new(&device, 8, 2, &rng)?],
///     norm: Some(BatchNorm::new(&device, 2)?),
///     scale: Parameter::new(Tensor::ones(&device, [1])?)?,
/// };
/// let paths: Vec<String> = network.parameters().into_iter().map(|(path, _)| path).collect();
/// assert_eq!(paths[..2], ["layers.0.weight", "layers.0.bias"]);
/// assert_eq!(paths[4..], ["norm.weight", "norm.bias", "scale"]);
/// assert_eq!(network.buffers().len(), 2);
/// assert_eq!(network.forward(&Tensor::ones(&device, [3, 4])?)?.dims(), [3, 2]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A layer with a parameter, a buffer and a random generator:
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor, is_training, no_grad};
/// use highwater::nn::{Module, Parameter};
/// use highwater::visit_parts;
///
/// /// x over the largest value seen so far, scaled, with noise in training.
/// #[derive(Debug)]
/// struct Level {
///     scale: Parameter,
///     largest: Parameter,
///     noise: Rng,
/// }
///
/// impl Module for Level {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let largest = self.largest.tensor().detach();
///         if !is_training() {
///             return x.div(&largest)?.mul(&self.scale.tensor());
///         }
///         let largest = no_grad(|| x.abs()?.max_all()?.maximum(&largest))?;
///         self.largest.set(&largest)?;
///         let noise = Tensor::normal(x.device(), x.shape(), 0.0, 0.1, &self.noise)?;
///         x.div(&largest)?.add(&noise)?.mul(&self.scale.tensor())
///     }
///
///     visit_parts!(scale, noise; buffers: largest);
/// }
///
/// let one = |device: &Device| Parameter::new(Tensor::ones(device, ())?);
/// let device = Device::cpu()?;
/// let level = Level { scale: one(&device)?, largest: one(&device)?, noise: Rng::new(0) };
/// level.forward(&Tensor::full(&device, [3], -5.0)?)?;
/// assert_eq!((level.parameters()[0].0.as_str(), level.buffers()[0].0.as_str()), ("scale", "largest"));
/// assert_eq!(level.buffers()[0].1.tensor().item::<f32>()?, 5.0);
/// # Ok::<(), highwater::Error>(())
/// ```
#[macro_export]
macro_rules! visit_parts {
    ($($part:ident),+ $(,)?) => {
        $crate::visit_parts!($($part),+; buffers: );
    };
    ($($part:ident),* $(,)?; buffers: $($buffer:ident),* $(,)?) => {
        fn visit_parts(&self, visitor: &mut $crate::modules::PartVisitor<'_>) {
            let _ = &visitor;
            $(visitor.part(stringify!($part), &self.$part);)*
            $(visitor.buffer(stringify!($buffer), &self.$buffer);)*
        }

        fn path(&self) -> Option<$crate::macros::OwnerId> {
            None$(.or_else(|| $crate::modules::ModulePart::owner_path(&self.$part)))*
                $(.or_else(|| $crate::modules::ModulePart::owner_path(&self.$buffer)))*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{BatchNorm, Dropout, Linear};
    use highwater_tensor::{Device, Result, Tensor};

    #[derive(Debug)]
    struct Network {
        inner: Box<dyn Module>,
        blocks: Vec<Inner>,
        none: Option<Linear>,
        own: Parameter,
    }

    impl Module for Network {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }

        visit_parts!(inner, blocks, none, own);
    }

    #[derive(Debug)]
    struct Inner {
        norm: BatchNorm,
        dropout: Dropout,
    }

    impl Module for Inner {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }

        visit_parts!(norm, dropout);
    }

    fn inner(device: &Device) -> Result<Inner> {
        Ok(Inner { norm: BatchNorm::new(device, 3)?, dropout: Dropout::new(0.5, &Rng::new(0))? })
    }

    fn paths<T>(parts: Vec<(String, T)>) -> Vec<String> {
        parts.into_iter().map(|(path, _)| path).collect()
    }

    fn rngs(module: &dyn Module) -> Vec<String> {
        paths(module.rngs())
    }

    #[test]
    fn submodules_are_visited_in_order() -> Result<()> {
        let device = Device::cpu()?;
        let network = Network {
            inner: Box::new(inner(&device)?),
            blocks: vec![inner(&device)?, inner(&device)?],
            none: None,
            own: Parameter::new(Tensor::ones(&device, [2])?)?,
        };
        let expected = ["inner.norm", "blocks.0.norm", "blocks.1.norm"]
            .map(|norm| [format!("{norm}.weight"), format!("{norm}.bias")]);
        assert_eq!(paths(network.parameters()), [expected.as_flattened(), &["own".to_owned()]].concat());
        assert_eq!(paths(network.buffers()).len(), 3 * 2);
        let dropouts = ["inner.dropout.rng", "blocks.0.dropout.rng", "blocks.1.dropout.rng"];
        assert_eq!(rngs(&network), dropouts);
        Ok(())
    }

    #[derive(Debug)]
    struct Own {
        learnt: Parameter,
        drawn: Option<Rng>,
        inside: Inner,
        kept: Vec<Parameter>,
    }

    impl Module for Own {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }

        visit_parts!(learnt, drawn, inside; buffers: kept);
    }

    #[test]
    fn a_module_visits_its_own_state_and_its_submodules() -> Result<()> {
        let device = Device::cpu()?;
        let one = || Parameter::new(Tensor::ones(&device, [2])?);
        let (learnt, drawn, kept) = (one()?, Some(Rng::new(0)), vec![one()?, one()?]);
        let own = Own { learnt, drawn, inside: inner(&device)?, kept };
        assert_eq!(paths(own.parameters()), ["learnt", "inside.norm.weight", "inside.norm.bias"]);
        let means = ["inside.norm.running_mean", "inside.norm.running_var"];
        assert_eq!(paths(own.buffers()), [&means[..], &["kept.0", "kept.1"]].concat());
        assert_eq!(rngs(&own), ["drawn", "inside.dropout.rng"]);
        Ok(())
    }
}
