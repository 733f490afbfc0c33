//! Where in a model this thread is: a path of modules, and a phase of training.
//!
//! Each thread has a place. [`module`] and [`phase`] enter another one, derived from it, and the guard they return goes back to
//! where the thread was, also when it is dropped while unwinding or out of order. A place does not follow work to other
//! threads by itself: [`capture`](crate::capture) hands it over.

mod name;
mod now;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;
#[cfg(not(shuttle))]
use std::thread_local;

use bfc_core::OwnerId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
#[cfg(shuttle)]
use shuttle::thread_local;

pub use name::ModuleName;
use now::{Entry, now};

/// Keeps a guard on its thread, whose place or stack it will put back; others may still look at it.
pub(crate) type NotSend = PhantomData<MutexGuard<'static, ()>>;

/// Most module names that a thread remembers: names made up at run time must not grow its memory forever.
const MAX_KNOWN_MODULES: usize = 4096;

/// What part of a training step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
// As wide as a module's number, so that a place has no gap. With one it is copied in pieces that are not those it was written in, for
// which a processor waits.
#[repr(u32)]
pub enum Phase {
    /// Computing results, with or without a backward pass to follow.
    #[default]
    Forward,
    /// Computing gradients.
    Backward,
    /// Changing parameters.
    Optimizer,
}

impl Phase {
    /// The phase's name in tables, JSON and labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A module and a phase: what an op that starts here is filed under.
///
/// A small copy value, so that the backward of an op can be run in the place of its forward:
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
    /// The module path, as the owner that it is interned as; the root outside of all modules.
    pub module: OwnerId,
    /// The phase.
    pub phase: Phase,
}

const _: () =
    assert!(size_of::<ScopePath>() == size_of::<OwnerId>() + size_of::<Phase>(), "a place has no gap");

impl ScopePath {
    /// The same module in another phase.
    #[must_use]
    pub const fn with_phase(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    /// Makes this the place of the current thread until the guard is dropped.
    #[inline]
    pub fn enter(self) -> ScopeGuard {
        ScopeGuard { entry: Entry::new(self), module: self.module, _not_send: PhantomData }
    }
}

thread_local! {
    static MODULES: RefCell<KnownModules> = RefCell::new(KnownModules::default());
}

/// The current thread's place.
#[must_use]
#[inline]
pub fn here() -> ScopePath {
    now().place
}

/// Enters the module called `name` below the current one until the guard is dropped. A name with dots stands for
/// several nested modules.
///
/// ```
/// use highwater_tracking::{here, module};
/// let _block = module("block0");
/// let _attention = module("attention.query");
/// assert_eq!(here().module.path(), "block0.attention.query");
/// ```
pub fn module(name: &str) -> ModuleGuard {
    let here = here();
    let known = MODULES.try_with(|modules| modules.borrow_mut().find(here.module, name));
    let module = known.unwrap_or_else(|_| intern_path(here.module, name));
    ScopePath { module, ..here }.enter()
}

/// Enters a phase, in the current module, until the guard is dropped.
pub fn phase(phase: Phase) -> PhaseGuard {
    here().with_phase(phase).enter()
}

/// Leaves a place when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the place is left when the guard is dropped"]
pub struct ScopeGuard {
    entry: Entry,
    /// What was entered.
    pub(crate) module: OwnerId,
    _not_send: NotSend,
}

/// Leaves a module when dropped.
pub type ModuleGuard = ScopeGuard;

/// Leaves a phase when dropped.
pub type PhaseGuard = ScopeGuard;

impl Drop for ScopeGuard {
    #[inline]
    fn drop(&mut self) {
        self.entry.leave();
    }
}

/// Module names that this thread has entered before: finding one again costs no allocation and no lock.
#[derive(Debug, Default)]
struct KnownModules {
    by_parent: FxHashMap<OwnerId, FxHashMap<Box<str>, OwnerId>>,
    count: usize,
    /// Some of these, by where the names lay that led to them: a model enters its modules by the same few texts.
    recent: [Option<Recent>; RECENT],
}

/// How many modules are found by where their names lie.
const RECENT: usize = 32;

#[derive(Debug)]
struct Recent {
    parent: OwnerId,
    name: Box<str>,
    module: OwnerId,
}

impl KnownModules {
    #[inline]
    fn find(&mut self, parent: OwnerId, name: &str) -> OwnerId {
        let place = (name.as_ptr().addr() >> 3) ^ (name.len() * 5) ^ (parent.index() * 21);
        let place = place % RECENT;
        // Two names that share a place find another one beside it.
        for place in [place, place ^ 1] {
            if let Some(recent) = &self.recent[place]
                && recent.parent == parent
                && *recent.name == *name
            {
                return recent.module;
            }
        }
        let module = self.look_up(parent, name);
        // Only once, or three names that share two places would take heap memory by turns.
        if let Some(free) = [place, place ^ 1].into_iter().find(|place| self.recent[*place].is_none()) {
            self.recent[free] = Some(Recent { parent, name: Box::from(name), module });
        }
        module
    }

    #[inline(never)]
    fn look_up(&mut self, parent: OwnerId, name: &str) -> OwnerId {
        if let Some(&module) = self.by_parent.get(&parent).and_then(|names| names.get(name)) {
            return module;
        }
        if self.count >= MAX_KNOWN_MODULES {
            *self = Self::default();
        }
        let module = intern_path(parent, name);
        self.by_parent.entry(parent).or_default().insert(Box::from(name), module);
        self.count += 1;
        module
    }
}

pub(crate) fn intern_path(parent: OwnerId, name: &str) -> OwnerId {
    name.split('.').filter(|part| !part.is_empty()).fold(parent, OwnerId::intern)
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

        // What was entered inside of a place that is left is left with it, and nothing that was entered since.
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
        let mut known = KnownModules::default();
        let parent = OwnerId::intern(OwnerId::ROOT, "scope-many");
        let first = known.find(parent, "0");
        for index in 1..=MAX_KNOWN_MODULES {
            known.find(parent, &(index % 5000).to_string());
        }
        assert!(known.count <= MAX_KNOWN_MODULES);
        assert_eq!(known.find(parent, "0"), first);
    }
}
