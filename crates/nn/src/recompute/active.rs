//! The recomputations and the observer of this thread.

use std::sync::Arc;

use bfc_core::{ThreadScopedGuard, ThreadVariable, thread_scoped};

use super::chains::ActiveChains;
use super::observe::Observer;

/// The recomputations and the observer that apply to chains on this thread.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) chains: Option<Arc<ActiveChains>>,
    pub(super) observer: Option<Arc<Observer>>,
}

thread_scoped! {
    pub(super) static ACTIVE: Active = Active { chains: None, observer: None };
}

impl Active {
    /// Whether anything is active.
    #[inline]
    pub(super) fn is_any() -> bool {
        ACTIVE.read(|active| active.chains.is_some() || active.observer.is_some())
    }

    /// Returns what is active.
    pub(super) fn now() -> Self {
        ACTIVE.read(Clone::clone)
    }

    pub(super) fn with_chains(self, chains: Arc<ActiveChains>) -> Self {
        Self { chains: Some(chains), ..self }
    }

    /// Makes this active until the guard is dropped.
    pub(super) fn enter(self) -> ThreadScopedGuard<ACTIVE> {
        ACTIVE.enter(self)
    }
}
