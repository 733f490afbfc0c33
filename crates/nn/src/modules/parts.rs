//! The parts of a module, listed once: parameters, buffers, random generators, checkpoints and paths follow from the list.
//!
//! A [`PartVisitor`] goes through the list for one of two purposes. A walk shows each part with its path, and tells
//! layers and parameters their paths. A search finds the path of one module: that of its first part, without the names of
//! the part. So a module needs no field for its path. Parts that other modules share say nothing about the path.

mod containers;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use bfc_core::OwnerId;
use highwater_tensor::{Parameter, Rng};
use highwater_tracking::{ModulePath, intern_path};

use super::module::Module;

/// The list of a module's parts. `#[derive(Module)]` implements it.
///
/// Write it by hand if the names of parts are no fields:
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor};
/// use highwater::nn::{Linear, Module, PartVisitor, Parts, module};
///
/// #[derive(Debug)]
/// struct Pair([Linear; 2]);
///
/// impl Parts for Pair {
///     fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
///         visitor.part("first", &self.0[0]);
///         visitor.part("second", &self.0[1]);
///     }
/// }
///
/// #[module]
/// impl Module for Pair {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.0[1].forward(&self.0[0].forward(x)?)
///     }
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let pair = Pair([Linear::new(&device, 2, 3, &rng)?, Linear::new(&device, 3, 1, &rng)?]);
/// assert_eq!(pair.parameters()[2].0, "second.weight");
/// # Ok::<(), highwater::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not list its parts",
    label = "write `#[derive(Module)]` above this type"
)]
pub trait Parts {
    /// Visits the parts of the module, always in the same order.
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>);
}

/// A part that a walk through a module finds.
#[derive(Clone, Copy, Debug)]
pub enum PartRef<'a> {
    /// A module inside the module. Its own parts follow.
    Module(&'a dyn Module),
    /// A trained parameter.
    Parameter(&'a Parameter),
    /// A tensor that training changes without gradients, such as a running mean. Checkpoints store it.
    Buffer(&'a Parameter),
    /// A random generator of the forward pass. Checkpoints store its state.
    Rng(&'a Rng),
}

/// Visits the parts of a module: [`Parts::visit_parts`] receives it, and [`Module::walk`] starts a walk.
pub struct PartVisitor<'a> {
    /// The number of names between the module where the visit began and the current part.
    depth: usize,
    /// The same for the module that contains the current part.
    module_depth: usize,
    purpose: Purpose<'a>,
}

enum Purpose<'a> {
    /// To find the path of the module where the visit began.
    Path(Option<OwnerId>),
    Walk(Walk<'a>),
}

/// The state of a walk.
struct Walk<'a> {
    /// The path of the current part.
    path: String,
    /// The module that contains the current part, and the length of its path.
    module: (OwnerId, usize),
    /// Whether parameters are buffers of their module.
    in_buffers: bool,
    /// The addresses of the paths that this walk has told, with the first told path.
    told: HashMap<usize, OwnerId>,
    /// The addresses and types of the modules so far.
    modules: HashSet<(usize, &'static str)>,
    /// The outermost module around the current part that the walk finds again.
    repeated: Option<Repeated>,
    found: &'a mut dyn FnMut(&str, PartRef<'_>),
}

#[derive(Clone, Copy)]
struct Repeated {
    depth: usize,
    /// The module that holds the repeated one.
    holder: OwnerId,
}

impl<'a> PartVisitor<'a> {
    fn new(purpose: Purpose<'a>) -> Self {
        Self { depth: 0, module_depth: 0, purpose }
    }

    /// Starts a walk.
    pub(super) fn walk(found: &'a mut dyn FnMut(&str, PartRef<'_>)) -> Self {
        Self::new(Purpose::Walk(Walk {
            path: String::new(),
            module: (OwnerId::ROOT, 0),
            in_buffers: false,
            told: HashMap::new(),
            modules: HashSet::new(),
            repeated: None,
            found,
        }))
    }

    /// Returns the path of the module whose parts `visit` visits, if a walk has told it to a part of this module alone.
    #[inline]
    pub(super) fn path_of(visit: impl FnOnce(&mut PartVisitor<'_>)) -> Option<OwnerId> {
        let mut visitor = PartVisitor::new(Purpose::Path(None));
        visit(&mut visitor);
        match visitor.purpose {
            Purpose::Path(path) => path,
            Purpose::Walk(_) => None,
        }
    }

    /// Visits a part with this name: the field's name, usually. A part without a name is its owner in another type, as
    /// the module in a wrapper.
    #[inline]
    pub fn part(&mut self, name: &str, part: &(impl ModulePart + ?Sized)) {
        let len = match &mut self.purpose {
            Purpose::Path(Some(_)) => return,
            Purpose::Path(None) => 0,
            Purpose::Walk(walk) => walk.push(name),
        };
        let names = count_names(name);
        self.depth += names;
        part.visit_part(self);
        self.depth -= names;
        if let Purpose::Walk(walk) = &mut self.purpose {
            walk.path.truncate(len);
        }
    }

    /// Visits a part whose parameters are buffers.
    pub fn buffer(&mut self, name: &str, part: &(impl ModulePart + ?Sized)) {
        let before = self.set_in_buffers(true);
        self.part(name, part);
        self.set_in_buffers(before);
    }

    fn set_in_buffers(&mut self, in_buffers: bool) -> bool {
        match &mut self.purpose {
            Purpose::Path(_) => false,
            Purpose::Walk(walk) => std::mem::replace(&mut walk.in_buffers, in_buffers),
        }
    }

    /// Visits the members of a part, which have their index as a name.
    fn members<'p, P: ModulePart + 'p>(&mut self, members: impl IntoIterator<Item = &'p P>) {
        for (number, member) in members.into_iter().enumerate() {
            match self.purpose {
                Purpose::Path(Some(_)) => return,
                // Builds no name. Any name has this depth.
                Purpose::Path(None) => self.part("0", member),
                Purpose::Walk(_) => self.part(&number.to_string(), member),
            }
        }
    }

    /// Visits a module at the current path, and its parts.
    #[inline]
    fn module<M: Module>(&mut self, module: &M) {
        let (depth, before) = (self.depth, self.module_depth);
        self.module_depth = depth;
        match &mut self.purpose {
            Purpose::Path(_) => module.visit_parts(self),
            Purpose::Walk(walk) => {
                let outside = walk.enter(module, depth);
                module.visit_parts(self);
                if let Purpose::Walk(walk) = &mut self.purpose {
                    (walk.module, walk.repeated) = outside;
                }
            }
        }
        self.module_depth = before;
    }

    /// Visits the path of the module that contains the current part.
    #[inline]
    fn module_path(&mut self, path: &ModulePath) {
        let depth = self.module_depth;
        match &mut self.purpose {
            Purpose::Path(found) => *found = path.above(depth),
            Purpose::Walk(walk) => {
                walk.tell(path, walk.module.0, depth);
            }
        }
    }

    /// Visits the path that another module holds for the current part.
    pub(super) fn held_path(&mut self, path: &ModulePath) {
        match &mut self.purpose {
            Purpose::Path(found) => *found = path.above(self.depth),
            Purpose::Walk(walk) => {
                let part = walk.owner(walk.path.len());
                walk.tell(path, part, self.depth);
            }
        }
    }

    fn parameter(&mut self, parameter: &Parameter) {
        // The module that holds the parameter has all of its names but the last.
        let depth = self.depth.saturating_sub(1);
        match &mut self.purpose {
            Purpose::Path(found) => *found = parameter.module().above(depth),
            Purpose::Walk(walk) => {
                let holder = walk.owner(walk.path.rfind('.').unwrap_or(0));
                if walk.tell(parameter.module(), holder, depth) {
                    let _scope = parameter.module().enter();
                    parameter.charge_memory();
                }
                let part =
                    if walk.in_buffers { PartRef::Buffer(parameter) } else { PartRef::Parameter(parameter) };
                (walk.found)(&walk.path, part);
            }
        }
    }
}

impl Walk<'_> {
    /// Appends a name to the path, and returns the length before.
    fn push(&mut self, name: &str) -> usize {
        let len = self.path.len();
        if !name.is_empty() {
            if len > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
        }
        len
    }

    /// Returns the module with the first `len` bytes of the current path.
    fn owner(&self, len: usize) -> OwnerId {
        let (module, begin) = self.module;
        intern_path(module, self.path.get(begin..len).unwrap_or(""))
    }

    /// Shows a module, and makes it the current one. Returns the module and repetition outside.
    fn enter(&mut self, module: &dyn Module, depth: usize) -> ((OwnerId, usize), Option<Repeated>) {
        (self.found)(&self.path, PartRef::Module(module));
        let outside = (self.module, self.repeated);
        let is_first = self.modules.insert(module.identity());
        if !is_first && self.repeated.is_none() {
            self.repeated = Some(Repeated { depth, holder: self.module.0 });
        }
        self.module = (self.owner(self.path.len()), self.path.len());
        outside
    }

    /// Tells a layer or parameter the path of its module, `depth` names from the start, and returns whether that changed.
    /// A layer keeps the first of its paths within a walk.
    fn tell(&mut self, path: &ModulePath, module: OwnerId, depth: usize) -> bool {
        let first = match self.told.entry(std::ptr::from_ref(path).addr()) {
            Entry::Vacant(entry) => {
                entry.insert(module);
                return path.set(module);
            }
            Entry::Occupied(entry) => *entry.get(),
        };
        // The shared part: the repeated module with all modules in it, or else the layer or parameter alone.
        let (holder, shared) = match self.repeated {
            Some(repeated) => (repeated.holder, (depth + 1).saturating_sub(repeated.depth)),
            None => (self.module.0, 0),
        };
        // Two parts of one module may be the same.
        if !first.is_below(holder) {
            path.share(shared);
        }
        false
    }
}

/// The number of names that dots separate. The compiler evaluates it for the name of a field.
#[inline]
fn count_names(names: &str) -> usize {
    let bytes = names.as_bytes();
    (0..bytes.len()).filter(|&at| bytes[at] != b'.' && (at == 0 || bytes[at - 1] == b'.')).count()
}

impl fmt::Debug for PartVisitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.purpose {
            Purpose::Path(_) => "",
            Purpose::Walk(walk) => &walk.path,
        };
        f.debug_struct("PartVisitor").field("path", &path).finish_non_exhaustive()
    }
}

/// A part of a module, such as a field: a [`Module`], a [`Parameter`] or an [`Rng`]; an `Option`, `Vec`, array, tuple,
/// `Box` or `Arc` of parts; or plain data, which has no paths.
///
/// The members of a `Vec`, an array or a tuple have their index as a name: `blocks.0.weight` is in the first of `blocks`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no part of a module",
    label = "neither a module, `Parameter` or `Rng`, nor plain data",
    note = "parts are modules, `Parameter`, `Rng`, and `Option`, `Vec`, arrays, tuples, `Box` and `Arc` of them",
    note = "write `#[module(skip)]` above a field that is no part"
)]
pub trait ModulePart {
    /// Whether a walk can tell a path to this part.
    #[doc(hidden)]
    const HAS_PATH: bool = true;

    /// Visits the part at the current path of the visitor.
    fn visit_part(&self, visitor: &mut PartVisitor<'_>);
}

impl<M: Module> ModulePart for M {
    #[inline]
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.module(self);
    }
}

impl ModulePart for Parameter {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.parameter(self);
    }
}

impl ModulePart for Rng {
    const HAS_PATH: bool = false;

    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        if let Purpose::Walk(walk) = &mut visitor.purpose {
            (walk.found)(&walk.path, PartRef::Rng(self));
        }
    }
}

/// The path of the module that has this field. Layers of the library have one, and enter it in their forward pass. A module
/// needs one if it has no other part, or shares all of them with other modules.
impl ModulePart for ModulePath {
    #[inline]
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.module_path(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{BatchNorm, Dropout, Linear, module};
    use highwater_tensor::{Device, Result, Tensor};

    #[derive(Debug, Module)]
    struct Network {
        inner: Box<dyn Module>,
        blocks: Vec<Inner>,
        none: Option<Linear>,
        own: Parameter,
    }

    #[module]
    impl Module for Network {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }
    }

    #[derive(Debug, Module)]
    struct Inner {
        norm: BatchNorm,
        dropout: Dropout,
    }

    #[module]
    impl Module for Inner {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }
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

    #[derive(Debug, Module)]
    struct Own {
        learnt: Parameter,
        drawn: Option<Rng>,
        inside: Inner,
        #[module(buffer)]
        kept: Vec<Parameter>,
    }

    #[module]
    impl Module for Own {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }
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
