//! The path of a layer in its model.

use std::sync::atomic::{AtomicU64, Ordering};

use bfc_core::OwnerId;

use super::{ModuleGuard, Scope, enter_path};

/// The path of a layer or parameter in its model, such as `encoder.fc1`. It is unknown until a walk through the model
/// [sets](Self::set) it.
///
/// A layer enters its path in each forward pass, so reports, recordings and errors name the layer.
///
/// ```
/// use bfc_core::OwnerId;
/// use highwater_tracking::{ModulePath, here, intern_path};
/// let layer = ModulePath::new();
/// assert_eq!(layer.get(), None);
/// layer.set(intern_path(OwnerId::ROOT, "encoder.fc1"));
/// let _scope = layer.enter();
/// assert_eq!(here().module.path(), "encoder.fc1");
/// ```
#[derive(Debug, Default)]
pub struct ModulePath {
    /// 1 + the number of modules that the path has told for sure, and the path. 0 if the path is unknown.
    known: AtomicU64,
}

/// The modules of a path that no walk found under a second path.
const ALL: u64 = u32::MAX as u64 - 1;

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

    /// Returns the path of the module `levels` above this path, or of this one for 0. `None` if the path is unknown or
    /// too short, or if several modules [share](Self::share) the layer there.
    #[must_use]
    #[inline]
    pub fn above(&self, levels: usize) -> Option<OwnerId> {
        let known = self.known.load(Ordering::Relaxed);
        let path = (levels as u64 + 1 < known >> 32).then(|| OwnerId::from_index(known as u32 as usize))?;
        (0..levels).try_fold(path, |path, _| (path != OwnerId::ROOT).then(|| path.parent()))
    }

    /// Sets the path that a walk found, and returns whether the path changed. Keeps the known path in two cases:
    ///
    /// - It ends with the new one. A walk through a part of the model does not shorten the paths in the part.
    /// - The layer is [shared](Self::share), and the new path does not end with the known one. A walk through a part of
    ///   the model may find another path of the layer.
    pub fn set(&self, path: OwnerId) -> bool {
        let known = self.known.load(Ordering::Relaxed);
        let mut told = ALL;
        if let Some(before) = self.get() {
            let extends = ends_with(path, before);
            let is_shared = known >> 32 != ALL + 1;
            if ends_with(before, path) || (is_shared && !extends) {
                return false;
            }
            told = (known >> 32) - 1;
        }
        self.known.store((told + 1) << 32 | path.index() as u64, Ordering::Relaxed);
        true
    }

    /// Notes that a walk found the layer under another path, too. Only the last `modules` of the path's modules are the
    /// same in both: 1 if the layer itself is shared, and 2 if the module that holds it is.
    pub fn share(&self, modules: usize) {
        let known = self.known.load(Ordering::Relaxed);
        let shared = (known >> 32).min(modules as u64 + 1);
        self.known.store(shared << 32 | known & u64::from(u32::MAX), Ordering::Relaxed);
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
        let clone = Self::new();
        if let Some(path) = self.get() {
            clone.set(path);
        }
        clone
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
    fn a_clone_keeps_its_path_until_a_walk_sets_another() {
        let layer = ModulePath::new();
        assert!(layer.set(path("a.fc")));
        layer.share(1);
        let clone = layer.clone();
        assert_eq!((clone.get(), clone.above(1)), (Some(path("a.fc")), Some(path("a"))));
        assert!(clone.set(path("b.fc")), "the clone moved to another model");
        assert_eq!((layer.get(), clone.get()), (Some(path("a.fc")), Some(path("b.fc"))));
    }

    #[test]
    fn a_longer_path_replaces_its_end_but_not_the_reverse() {
        let layer = ModulePath::new();
        let found = ["", "fc", "block.fc", "net.block.fc", "block.fc", "fc", ""];
        let kept = found.map(|found| {
            layer.set(path(found));
            layer.get().unwrap().path()
        });
        let whole = "net.block.fc";
        assert_eq!(kept, ["", "fc", "block.fc", whole, whole, whole, whole]);
    }

    #[test]
    fn a_path_tells_the_modules_above_it_that_do_not_share_it() {
        let layer = ModulePath::new();
        assert_eq!(layer.above(0), None);
        layer.set(path("net.block.fc"));
        let above = |layer: &ModulePath| [0, 1, 2, 3, 4].map(|levels| layer.above(levels).map(OwnerId::path));
        let names = |names: [Option<&str>; 5]| names.map(|name| name.map(str::to_owned));
        let all = [Some("net.block.fc"), Some("net.block"), Some("net"), Some(""), None];
        assert_eq!(above(&layer), names(all));
        layer.share(2);
        layer.share(3);
        assert_eq!(above(&layer), names([Some("net.block.fc"), Some("net.block"), None, None, None]));
        assert!(!layer.set(path("other.fc")), "a walk through another owner");
        assert!(layer.set(path("all.net.block.fc")));
        assert_eq!(layer.above(1), Some(path("all.net.block")));
        assert_eq!(layer.above(2), None);
        layer.share(0);
        assert_eq!((layer.get(), layer.above(0)), (Some(path("all.net.block.fc")), None));
    }

    #[test]
    fn a_path_starts_at_the_base_and_not_at_the_current_module() {
        let (block, layer) = (ModulePath::new(), ModulePath::new());
        block.set(path("block"));
        layer.set(path("block.fc"));
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
        layer.set(path("scope-later.fc"));
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
