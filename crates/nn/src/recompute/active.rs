//! The plan and the observer of this thread.

use std::sync::Arc;

use bfc_core::{ThreadScopedGuard, ThreadVariable, thread_scoped};

use super::observe::Observer;
use super::plan::Plan;

/// The plan and the observer that apply to chains on this thread.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) observer: Option<Arc<Observer>>,
}

thread_scoped! {
    pub(super) static ACTIVE: Active = Active { plan: None, observer: None };
}

impl Active {
    /// Whether anything is active.
    #[inline]
    pub(super) fn is_any() -> bool {
        ACTIVE.read(|active| active.plan.is_some() || active.observer.is_some())
    }

    /// Returns what is active.
    pub(super) fn now() -> Self {
        ACTIVE.read(Clone::clone)
    }

    pub(super) fn with_plan(self, plan: Arc<Plan>) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Makes this active until the guard is dropped.
    pub(super) fn enter(self) -> ThreadScopedGuard<ACTIVE> {
        ACTIVE.enter(self)
    }
}
