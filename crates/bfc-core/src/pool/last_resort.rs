//! Callbacks at out-of-memory: rescuers that may free memory, and observers that are notified of failures.
//!
//! Sources of the idea: RMM's failure callback, which may free memory and request a retry without a bound, and
//! PyTorch's out-of-memory observers, which only watch.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use crate::allocator::error::AllocError;
use crate::allocator::oom::OomReport;
use crate::base::memory::Block;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::{ThreadScopedGuard, ThreadVariable};

/// The default bound on retries of a request.
const RETRIES: u32 = 4;

/// Frees memory for a request that is about to fail. Returns whether a retry makes sense.
type Rescuer = dyn Fn(&OomReport) -> bool + Send + Sync;

/// Observes a failed request.
type Observer = dyn Fn(&OomReport) + Send + Sync;

/// The rescuers and observers of requests that run out of memory.
///
/// Both are called without any lock of the pools, so they may allocate and free. A request that fails on the same
/// thread during a callback fails immediately, without further callbacks. Callbacks therefore cannot recurse.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, LastResort, MIB, Request};
///
/// let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(8)));
/// let pool: Arc<dyn Allocator> = Arc::new(pool);
/// let cache = Arc::new(Mutex::new(vec![Allocation::new(&pool, &Request::new(6 * MIB))?]));
///
/// let last_resort = LastResort::new();
/// last_resort.before_giving_up({
///     let cache = Arc::clone(&cache);
///     move |_report| cache.lock().unwrap().pop().is_some()
/// });
/// let request = Request::new(4 * MIB);
/// let block = last_resort.allocate(|| pool.allocate(&request))?;
/// assert!(cache.lock().unwrap().is_empty());
/// assert_eq!((last_resort.rescued(), last_resort.failures()), (1, 0));
/// # let _ = block;
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
pub struct LastResort {
    rescuers: RwLock<Vec<Arc<Rescuer>>>,
    observers: RwLock<Vec<Arc<Observer>>>,
    retries: u32,
    rescued: AtomicU64,
    failures: AtomicU64,
}

thread_scoped! {
    /// Whether this thread is in a callback.
    static IS_BUSY: bool = false;
}

/// Marks this thread as in a callback until the guard is dropped; `None` if it is in one.
fn enter_callback() -> Option<ThreadScopedGuard<IS_BUSY>> {
    (!IS_BUSY.get()).then(|| IS_BUSY.enter(true))
}

impl Default for LastResort {
    fn default() -> Self {
        Self::new()
    }
}

impl LastResort {
    /// Creates a value without callbacks, with at most four retries of a request.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rescuers: RwLock::default(),
            observers: RwLock::default(),
            retries: RETRIES,
            rescued: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Creates a value without callbacks, with at most this many retries of a request.
    #[must_use]
    pub const fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Adds a rescuer for requests that are about to fail. It may free memory by dropping what it can spare; if it
    /// returns true, the request is retried. The rescuer added last is called first, and earlier ones only if it
    /// returns false.
    pub fn before_giving_up(&self, rescuer: impl Fn(&OomReport) -> bool + Send + Sync + 'static) {
        self.rescuers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(rescuer));
    }

    /// Adds an observer, which is called once for each failed request, after all retries.
    pub fn on_failure(&self, observer: impl Fn(&OomReport) + Send + Sync + 'static) {
        self.observers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(observer));
    }

    /// Removes all rescuers and observers.
    pub fn clear(&self) {
        let rescuers = std::mem::take(&mut *self.rescuers.write().unwrap_or_else(PoisonError::into_inner));
        let observers = std::mem::take(&mut *self.observers.write().unwrap_or_else(PoisonError::into_inner));
        // Dropped without the locks: the callbacks' captures may allocate or register callbacks on drop.
        drop((rescuers, observers));
    }

    /// Returns the number of requests that succeeded after a rescue.
    #[must_use]
    pub fn rescued(&self) -> u64 {
        self.rescued.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Calls `attempt`, and again after each rescue, up to the bound.
    ///
    /// # Errors
    /// Fails with the error of the last attempt. Its report contains the number of retries.
    pub fn allocate(&self, attempt: impl FnMut() -> Result<Block, AllocError>) -> Result<Block, AllocError> {
        let mut attempt = attempt;
        attempt().or_else(|error| self.rescue(error, attempt))
    }

    /// As [`allocate`](Self::allocate), for a request that already failed with `error`.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[cold]
    pub fn rescue(
        &self,
        error: AllocError,
        mut attempt: impl FnMut() -> Result<Block, AllocError>,
    ) -> Result<Block, AllocError> {
        let AllocError::OutOfMemory(mut report) = error else { return Err(error) };
        for retries in 0..=self.retries {
            report.retries = retries;
            if retries == self.retries || !self.ask(&report) {
                break;
            }
            match attempt() {
                Ok(block) => {
                    self.rescued.fetch_add(1, Ordering::Relaxed);
                    return Ok(block);
                }
                Err(AllocError::OutOfMemory(next)) => {
                    let waited = report.waited.saturating_add(next.waited);
                    report = next;
                    report.waited = waited;
                }
                Err(other) => return Err(other),
            }
        }
        self.tell(&report);
        Err(AllocError::OutOfMemory(report))
    }

    /// Whether this thread is in a callback, so that its failures trigger no further ones.
    #[must_use]
    pub fn is_busy() -> bool {
        IS_BUSY.get()
    }

    fn ask(&self, report: &OomReport) -> bool {
        let rescuers = self.rescuers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(_busy) = enter_callback() else { return false };
        rescuers.iter().rev().any(|rescuer| rescuer(report))
    }

    fn tell(&self, report: &OomReport) {
        let observers = self.observers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(_busy) = enter_callback() else { return };
        self.failures.fetch_add(1, Ordering::Relaxed);
        observers.iter().for_each(|observer| observer(report));
    }
}

impl fmt::Debug for LastResort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastResort")
            .field("retries", &self.retries)
            .field("rescued", &self.rescued)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
