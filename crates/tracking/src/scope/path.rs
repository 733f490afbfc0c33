//! The path of a layer in its model.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bfc_core::OwnerId;

use super::{ModuleGuard, Scope, enter_path};

/// The path of a layer or parameter in its model, such as `encoder.fc1`. It is unknown until a [`Walk`] through the
/// model sets it.
///
/// A layer enters its path in each forward pass, so reports, recordings and errors name the layer.
///
/// ```
/// use bfc_core::OwnerId;
/// use highwater_tracking::{ModulePath, Walk, here, intern_path};
/// let layer = ModulePath::new();
/// assert_eq!(layer.get(), None);
/// layer.set(intern_path(OwnerId::ROOT, "encoder.fc1"), Walk::new());
/// let _scope = layer.enter();
/// assert_eq!(here().module.path(), "encoder.fc1");
/// ```
#[derive(Debug, Default)]
pub struct ModulePath {
    /// The walk that set the path, and the path. The walk is 0 until then.
    known: AtomicU64,
}

/// A walk through a model, which sets the paths of its layers. Each walk has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk(u32);

impl Walk {
    /// Starts a walk.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each walk is another one")]
    pub fn new() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        // 0 means that no walk has set a path.
        Self((STARTED.fetch_add(1, Ordering::Relaxed) % u32::MAX) + 1)
    }
}

impl ModulePath {
    /// Creates an unknown path.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: AtomicU64::new(0) }
    }

    /// Returns the path; `None` before the first walk.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Option<OwnerId> {
        let known = self.known.load(Ordering::Relaxed);
        (known >> 32 != 0).then(|| OwnerId::from_index(known as u32 as usize))
    }

    /// Sets the path that `walk` found, and returns whether the path changed. Keeps the known path in two cases:
    ///
    /// - The same walk set it. A shared layer keeps the first of its paths.
    /// - The known path ends with the new one. A walk through a part of the model does not shorten the paths in the part.
    pub fn set(&self, path: OwnerId, walk: Walk) -> bool {
        let known = self.known.load(Ordering::Relaxed);
        if known >> 32 == u64::from(walk.0) {
            return false;
        }
        let before = self.get();
        let after = before.filter(|&before| ends_with(before, path)).unwrap_or(path);
        let next = u64::from(walk.0) << 32 | after.index() as u64;
        // The loser of a race keeps the path of the other walk.
        let won = self.known.compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        won && before != Some(after)
    }

    /// Enters the path until the guard is dropped; see [`enter_path`]. Stays in the current scope if the path is
    /// unknown.
    #[inline]
    pub fn enter(&self) -> ModuleGuard {
        match self.get() {
            Some(path) => enter_path(path),
            None => Scope::now().enter(),
        }
    }
}

/// A clone of a layer is the same layer in another place of the program, so it keeps the path. A later walk may set
/// another one.
impl Clone for ModulePath {
    fn clone(&self) -> Self {
        Self { known: AtomicU64::new(self.known.load(Ordering::Relaxed)) }
    }
}

/// Whether the last names of `path` are those of `end`.
fn ends_with(path: OwnerId, end: OwnerId) -> bool {
    let (mut path, mut end) = (path, end);
    while end != OwnerId::ROOT && path != end {
        if path == OwnerId::ROOT || path.name() != end.name() {
            return false;
        }
        (path, end) = (path.parent(), end.parent());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{Phase, here, intern_path, module, phase};

    fn path(name: &str) -> OwnerId {
        intern_path(OwnerId::ROOT, name)
    }

    #[test]
    fn a_walk_sets_a_path_and_keeps_the_first_of_two() {
        let (layer, walk) = (ModulePath::new(), Walk::new());
        assert!(layer.set(path("a.fc"), walk));
        assert!(!layer.set(path("b.fc"), walk), "the layer is shared");
        assert_eq!(layer.get(), Some(path("a.fc")));
        assert!(layer.set(path("b.fc"), Walk::new()), "the layer moved to another model");
        assert_eq!(layer.get(), Some(path("b.fc")));
    }

    #[test]
    fn a_clone_keeps_its_path_until_a_walk_sets_another() {
        let layer = ModulePath::new();
        layer.set(path("a.fc"), Walk::new());
        let clone = layer.clone();
        assert_eq!(clone.get(), Some(path("a.fc")));
        assert!(clone.set(path("b.fc"), Walk::new()));
        assert_eq!((layer.get(), clone.get()), (Some(path("a.fc")), Some(path("b.fc"))));
    }

    #[test]
    fn a_longer_path_replaces_its_end_but_not_the_reverse() {
        let layer = ModulePath::new();
        let found = ["", "fc", "block.fc", "net.block.fc", "block.fc", "fc", ""];
        let kept = found.map(|found| {
            layer.set(path(found), Walk::new());
            layer.get().unwrap().path()
        });
        let whole = "net.block.fc";
        assert_eq!(kept, ["", "fc", "block.fc", whole, whole, whole, whole]);
    }

    #[test]
    fn a_path_starts_at_the_base_and_not_at_the_current_module() {
        let (block, layer) = (ModulePath::new(), ModulePath::new());
        block.set(path("block"), Walk::new());
        layer.set(path("block.fc"), Walk::new());
        for base in ["", "scope-student", "", "scope-student.outer"] {
            let _base = module(base);
            let _phase = phase(Phase::Optimizer);
            let before = here();
            let below = |name: &str| if base.is_empty() { name.to_owned() } else { format!("{base}.{name}") };
            let scope = block.enter();
            assert_eq!((here().module.path(), here().phase), (below("block"), Phase::Optimizer));
            {
                let _inner = module("gate");
                assert_eq!(here().module.path(), below("block.gate"));
                let _layer = layer.enter();
                assert_eq!(here().module.path(), below("block.fc"));
            }
            drop(scope);
            assert_eq!(here(), before);
        }
    }

    #[test]
    fn a_scope_taken_inside_a_model_has_its_base() {
        let layer = ModulePath::new();
        layer.set(path("scope-later.fc"), Walk::new());
        let scope = {
            let _base = module("scope-student");
            let _block = enter_path(path("scope-later"));
            Scope::now()
        };
        let _scope = scope.enter();
        let _layer = layer.enter();
        assert_eq!(here().module.path(), "scope-student.scope-later.fc");
    }

    #[test]
    fn an_unknown_path_stays_in_the_current_scope() {
        let _scope = module("scope-unknown");
        let _layer = ModulePath::new().enter();
        assert_eq!(here().module.path(), "scope-unknown");
    }
}
