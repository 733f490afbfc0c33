//! Commands that are held back from a device, and when they are submitted.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
        if SKIP_FLUSH.get() {
            return;
        }
        let deferred = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<Arc<dyn DeferredWork>> = deferred.iter().filter_map(Weak::upgrade).collect();
        drop(deferred);
        live.iter().for_each(|work| work.flush_deferred());
    }
}

thread_local! {
    /// Whether this thread's calls leave held commands alone.
    static SKIP_FLUSH: Cell<bool> = const { Cell::new(false) };
}

/// Makes calls without flushing held commands, which the calls do not depend on.
pub(crate) fn without_flush<R>(calls: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            SKIP_FLUSH.set(self.0);
        }
    }
    let _before = Before(SKIP_FLUSH.replace(true));
    calls()
}
