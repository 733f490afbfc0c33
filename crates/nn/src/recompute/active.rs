//! The plan and the observer of this thread.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::observe::Observer;
use super::plan::Plan;

/// The plan and the observer that apply to chains on this thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Active {
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) observer: Option<Arc<Observer>>,
}

thread_local! {
    /// Whether a plan or an observer is active. A thread without them only reads this flag.
    static IS_ACTIVE: Cell<bool> = const { Cell::new(false) };
    static ACTIVE: RefCell<Active> = const { RefCell::new(Active { plan: None, observer: None }) };
}

/// Restores what was active before when it is dropped.
#[derive(Debug)]
pub(super) struct ActiveGuard {
    before: Active,
}

impl Active {
    /// Whether anything is active.
    #[inline]
    pub(super) fn is_any() -> bool {
        IS_ACTIVE.get()
    }

    /// Returns what is active.
    pub(super) fn now() -> Self {
        ACTIVE.with_borrow(Self::clone)
    }

    pub(super) fn with_plan(self, plan: Arc<Plan>) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Makes this active until the guard is dropped.
    pub(super) fn enter(self) -> ActiveGuard {
        ActiveGuard { before: self.replace() }
    }

    fn replace(self) -> Self {
        IS_ACTIVE.set(self.plan.is_some() || self.observer.is_some());
        ACTIVE.replace(self)
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.before).replace());
    }
}
