//! The current scope of a thread: a path of modules, and a phase of training.
//!
//! [`module`] and [`phase`] enter a scope below the current one. The guard that they return restores the previous
//! scope, also during unwinding and when guards drop out of order. Other threads do not inherit a scope;
//! [`capture`](crate::capture) transfers it.
//!
//! A layer of a model knows its path in the model instead ([`ModulePath`]). It enters that path below the *base*: the
//! innermost [`module`] outside of the model. So a layer has one row in reports, wherever the model calls it.

mod path;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;
#[cfg(not(shuttle))]
use std::thread_local;

use bfc_core::{OwnerId, ThreadScopedGuard, ThreadVariable, thread_scoped};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
#[cfg(shuttle)]
use shuttle::thread_local;

pub use path::ModulePath;

/// Keeps a guard on its thread, whose state it restores. Other threads may still hold references to it.
pub(crate) type NotSend = PhantomData<MutexGuard<'static, ()>>;

/// The most module names that a thread caches, so that generated names cannot grow its memory without limit.
const MAX_CACHED_MODULES: usize = 4096;

/// A phase of a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
// As wide as the index of a module, so that a scope has no padding. Padding would cause store-forwarding stalls in
// copies of a scope.
#[repr(u32)]
#[non_exhaustive]
pub enum Phase {
    /// The forward pass, with or without a backward pass to follow.
    #[default]
    Forward,
    /// The backward pass, which computes gradients.
    Backward,
    /// The update of parameters.
    Optimizer,
    /// The phase of an op in a file that has no phases, such as the trace of another tool.
    Unknown,
}

impl Phase {
    /// Returns the phase's name in tables, JSON and labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the phase with this [name](Self::name).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Forward, Self::Backward, Self::Optimizer, Self::Unknown]
            .into_iter()
            .find(|phase| phase.name() == name)
    }

    /// Returns the suffix of op names in this phase. Most ops are forward ops, which have none.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Forward | Self::Unknown => "",
            Self::Backward => ":backward",
            Self::Optimizer => ":optimizer",
        }
    }

    /// Returns the phase that the suffix of an op's name states, if there is one.
    #[must_use]
    pub fn of_suffix(name: &str) -> Option<Self> {
        [Self::Backward, Self::Optimizer].into_iter().find(|phase| name.ends_with(phase.suffix()))
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A module and a phase: the scope of an op.
///
/// It is a small value to copy, so that an op's backward pass can run in the scope of its forward pass:
///
/// ```
/// use highwater_tracking::{Phase, here, module};
/// let forward = {
///     let _scope = module("encoder.block0");
///     here()
/// };
/// let _scope = forward.with_phase(Phase::Backward).enter();
/// assert_eq!(here().module.path(), "encoder.block0");
/// assert_eq!(here().phase, Phase::Backward);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScopePath {
    /// The interned module path; the root outside of all modules.
    pub module: OwnerId,
    /// The phase.
    pub phase: Phase,
}

const _: () =
    assert!(size_of::<ScopePath>() == size_of::<OwnerId>() + size_of::<Phase>(), "a place has no gap");

impl ScopePath {
    /// Returns the same module in another phase.
    #[must_use]
    pub const fn with_phase(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    /// Enters this scope on the current thread until the guard is dropped.
    #[inline]
    pub fn enter(self) -> ScopeGuard {
        Scope { place: self, ..Scope::now() }.enter()
    }
}

/// The whole scope of a thread: its module and phase, and the base of the model that runs.
///
/// Take it with [`Scope::now`] to run a part of a model later: in the second run of a checkpoint, or on another thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The module and the phase.
    pub place: ScopePath,
    /// The module that the paths of layers start at.
    base: OwnerId,
    /// 1 inside a layer, whose inner scopes do not move the base, else 0. As wide as the base, so that there is no
    /// padding.
    in_model: u32,
}

impl Scope {
    /// The scope of a thread that has entered none.
    const OUTSIDE: Self = Self {
        place: ScopePath { module: OwnerId::ROOT, phase: Phase::Forward },
        base: OwnerId::ROOT,
        in_model: 0,
    };

    /// Returns the scope of the current thread.
    #[must_use]
    #[inline]
    pub fn now() -> Self {
        CURRENT.get()
    }

    /// Whether a layer or module of a model runs.
    #[must_use]
    pub const fn is_in_model(self) -> bool {
        self.in_model != 0
    }

    /// Enters this scope on the current thread until the guard is dropped.
    #[inline]
    pub fn enter(self) -> ScopeGuard {
        ScopeGuard { _entered: CURRENT.enter(self), module: self.place.module }
    }
}

thread_scoped! {
    /// The scope of this thread.
    static CURRENT: Scope = Scope::OUTSIDE;
}

thread_local! {
    /// A cache, so that a known module costs no lock.
    static MODULES: RefCell<ModuleCache> = RefCell::new(ModuleCache::default());
}

/// Returns the current scope of the thread.
#[must_use]
#[inline]
pub fn here() -> ScopePath {
    CURRENT.get().place
}

/// Enters the module `name` below the current one until the guard is dropped. A name with dots means several nested
/// modules.
///
/// ```
/// use highwater_tracking::{here, module};
/// let _block = module("block0");
/// let _attention = module("attention.query");
/// assert_eq!(here().module.path(), "block0.attention.query");
/// ```
///
/// A path has at most 255 modules and 12 KiB. A module beyond these limits counts as the one above it.
pub fn module(name: &str) -> ModuleGuard {
    let scope = Scope::now();
    let parent = scope.place.module;
    let known = MODULES.try_with(|modules| modules.borrow_mut().find(parent, name));
    let module = known.unwrap_or_else(|_| intern_path(parent, name));
    let base = if scope.in_model == 0 { module } else { scope.base };
    Scope { place: ScopePath { module, ..scope.place }, base, ..scope }.enter()
}

/// Enters the module with this path in the model that runs: below the base, whatever the current module is.
///
/// ```
/// use highwater_tracking::{enter_path, here, intern_path, module};
/// use bfc_core::OwnerId;
/// let path = intern_path(OwnerId::ROOT, "encoder.fc1");
/// let _base = module("student");
/// let _outer = enter_path(intern_path(OwnerId::ROOT, "encoder"));
/// let _scope = enter_path(path);
/// assert_eq!(here().module.path(), "student.encoder.fc1");
/// ```
#[inline]
pub fn enter_path(path: OwnerId) -> ModuleGuard {
    let scope = Scope::now();
    let module = if scope.base == OwnerId::ROOT { path } else { below_base(scope.base, path) };
    Scope { place: ScopePath { module, ..scope.place }, in_model: 1, ..scope }.enter()
}

/// Returns the module with the path `path` below `base`.
#[inline(never)]
fn below_base(base: OwnerId, path: OwnerId) -> OwnerId {
    if path == OwnerId::ROOT {
        return base;
    }
    let known = MODULES.try_with(|modules| {
        *modules.borrow_mut().below_base.entry((base, path)).or_insert_with(|| join(base, path))
    });
    known.unwrap_or_else(|_| join(base, path))
}

fn join(base: OwnerId, path: OwnerId) -> OwnerId {
    if path == OwnerId::ROOT { base } else { OwnerId::intern_scope(join(base, path.parent()), &path.name()) }
}

/// Enters a phase in the current module until the guard is dropped.
pub fn phase(phase: Phase) -> PhaseGuard {
    here().with_phase(phase).enter()
}

/// Keeps the thread in a scope. Restores the previous module and phase when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the guard restores the previous module and phase when it is dropped, so bind it to a name"]
pub struct ScopeGuard {
    _entered: ThreadScopedGuard<CURRENT>,
    /// The entered module.
    pub(crate) module: OwnerId,
}

/// Leaves a module when dropped.
pub type ModuleGuard = ScopeGuard;

/// Leaves a phase when dropped.
pub type PhaseGuard = ScopeGuard;

/// The thread's cache of module names: a cached name costs no allocation and no lock.
#[derive(Debug, Default)]
struct ModuleCache {
    by_parent: FxHashMap<OwnerId, FxHashMap<Box<str>, OwnerId>>,
    count: usize,
    /// The modules of models that run below a base, by base and path.
    below_base: FxHashMap<(OwnerId, OwnerId), OwnerId>,
    /// A cache by the address of the name, because a model enters its modules by the same few strings.
    recent: [Option<CachedModule>; CACHE_SLOTS],
}

/// The size of the cache by address.
const CACHE_SLOTS: usize = 32;

#[derive(Debug)]
struct CachedModule {
    parent: OwnerId,
    name: Box<str>,
    module: OwnerId,
}

impl ModuleCache {
    #[inline]
    fn find(&mut self, parent: OwnerId, name: &str) -> OwnerId {
        let place = (name.as_ptr().addr() >> 3) ^ (name.len() * 5) ^ (parent.index() * 21);
        let place = place % CACHE_SLOTS;
        // Two names with the same slot use a pair of slots.
        for place in [place, place ^ 1] {
            match &self.recent[place] {
                Some(recent) if recent.parent == parent && *recent.name == *name => return recent.module,
                _ => {}
            }
        }
        let module = self.look_up(parent, name);
        // Slots are filled once. Otherwise, three names that share two slots would allocate on every call.
        if let Some(free) = [place, place ^ 1].into_iter().find(|place| self.recent[*place].is_none()) {
            self.recent[free] = Some(CachedModule { parent, name: Box::from(name), module });
        }
        module
    }

    #[inline(never)]
    fn look_up(&mut self, parent: OwnerId, name: &str) -> OwnerId {
        if let Some(&module) = self.by_parent.get(&parent).and_then(|names| names.get(name)) {
            return module;
        }
        if self.count >= MAX_CACHED_MODULES {
            *self = Self::default();
        }
        let module = intern_path(parent, name);
        self.by_parent.entry(parent).or_default().insert(Box::from(name), module);
        self.count += 1;
        module
    }
}

/// Returns the module `name` below `parent`. A name with dots means several nested modules.
///
/// A path has at most 255 modules and 12 KiB. A module beyond these limits counts as the one above it.
#[must_use]
pub fn intern_path(parent: OwnerId, name: &str) -> OwnerId {
    name.split('.').filter(|part| !part.is_empty()).fold(parent, OwnerId::intern_scope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn modules_nest_and_are_left_in_turn() {
        assert_eq!(here(), ScopePath::default());
        let outer = module("scope-net");
        let inner = module("fc1");
        assert_eq!(here().module.path(), "scope-net.fc1");
        drop(inner);
        assert_eq!(here().module.path(), "scope-net");
        drop(outer);
        assert_eq!(here(), ScopePath::default());
    }

    #[test]
    fn dots_in_a_name_make_nested_modules_and_empty_parts_make_none() {
        let _scope = module("block0..attn.");
        assert_eq!(here().module.path(), "block0.attn");
        assert_eq!(here().module.parent().path(), "block0");
    }

    #[test]
    fn a_module_beyond_the_greatest_depth_counts_as_the_one_at_that_depth() {
        let scopes: Vec<_> = (0..1000).map(|_| module("scope-deep.a")).collect();
        let deepest = here().module;
        assert_eq!(deepest.path().split('.').count(), 255);
        assert_eq!(intern_path(deepest, "b.c"), deepest);
        // Ops have owners of their own there.
        assert_eq!(OwnerId::intern(deepest, "matmul").parent(), deepest);
        let layer = enter_path(intern_path(OwnerId::ROOT, "scope-layer.fc1"));
        assert_eq!(here().module, deepest);
        drop(layer);
        scopes.into_iter().rev().for_each(drop);
        assert_eq!(here(), ScopePath::default());
    }

    #[test]
    fn a_phase_keeps_the_module_and_a_module_keeps_the_phase() {
        let _module = module("scope-net");
        let _phase = phase(Phase::Backward);
        let _inner = module("fc1");
        assert_eq!(here().phase, Phase::Backward);
        assert_eq!(here().module.path(), "scope-net.fc1");
    }

    #[test]
    fn a_place_is_entered_again_elsewhere_with_another_phase() {
        let place = {
            let _scope = module("scope-net.fc1");
            here()
        };
        assert_eq!(here(), ScopePath::default());
        let guard = place.with_phase(Phase::Backward).enter();
        assert_eq!(here(), ScopePath { module: place.module, phase: Phase::Backward });
        drop(guard);
        assert_eq!(here(), ScopePath::default());
    }

    #[test]
    fn guards_pop_while_unwinding() {
        let _outer = module("scope-outer");
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _inner = module("inner");
            let _phase = phase(Phase::Optimizer);
            panic!("on purpose");
        }));
        assert!(result.is_err());
        assert_eq!(here().module.path(), "scope-outer");
        assert_eq!(here().phase, Phase::Forward);
    }

    #[test]
    fn guards_dropped_out_of_order_leave_nothing_behind() {
        let outer = module("scope-outer");
        let inner = module("inner");
        drop(outer);
        assert_eq!(here(), ScopePath::default());
        drop(inner);
        assert_eq!(here(), ScopePath::default());

        // Leaving a scope also leaves the scopes entered within it, but none that were entered later.
        let outer = module("scope-outer");
        let before = here();
        let (middle, inner) = (module("middle"), phase(Phase::Backward));
        drop(middle);
        assert_eq!(here(), before);
        drop(inner);
        assert_eq!(here(), before);
        let inner = module("inner");
        drop(outer);
        let (other, within) = (module("scope-other"), module("within"));
        let now = here();
        drop(inner);
        assert_eq!(here(), now);
        drop(within);
        drop(other);
        assert_eq!(here(), ScopePath::default());
    }

    #[test]
    fn threads_start_outside_of_all_modules() {
        let _scope = module("scope-net");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(here(), ScopePath::default()));
        });
    }

    #[test]
    fn a_thread_forgets_known_names_before_they_fill_its_memory() {
        let mut known = ModuleCache::default();
        let parent = OwnerId::intern(OwnerId::ROOT, "scope-many");
        let first = known.find(parent, "0");
        for index in 1..=MAX_CACHED_MODULES {
            known.find(parent, &(index % 5000).to_string());
        }
        assert!(known.count <= MAX_CACHED_MODULES);
        assert_eq!(known.find(parent, "0"), first);
    }
}
