//! Commands that are held back from a device, and when they are submitted.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bfc_core::{ThreadVariable, thread_scoped};

/// Commands that are held back from a device.
pub(crate) trait DeferredWork: Send + Sync + Debug {
    /// Submits all of them. A later caller gets an error of these.
    fn flush_deferred(&self);
}

/// The batchers that may hold commands back from one device.
#[derive(Debug, Default)]
pub(super) struct DeferredList(Mutex<Vec<Weak<dyn DeferredWork>>>);

impl DeferredList {
    pub(super) fn register(&self, work: Weak<dyn DeferredWork>) {
        let mut deferred = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.retain(|work| work.strong_count() > 0);
        deferred.push(work);
    }

    /// Submits all held commands.
    pub(super) fn flush(&self) {
        if SKIPS_FLUSH.get() {
            return;
        }
        let deferred = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<Arc<dyn DeferredWork>> = deferred.iter().filter_map(Weak::upgrade).collect();
        drop(deferred);
        live.iter().for_each(|work| work.flush_deferred());
    }
}

thread_scoped! {
    /// Whether this thread's calls leave held commands alone.
    static SKIPS_FLUSH: bool = false;
}

/// Makes calls without flushing held commands, which the calls do not depend on.
pub(crate) fn without_flush<R>(calls: impl FnOnce() -> R) -> R {
    SKIPS_FLUSH.within(true, calls)
}
