//! What can still be done when memory is out, and who is told when it cannot.
//!
//! Source of the idea: RMM's failure callback (free something, say whether to try again), which has no bound, and PyTorch's
//! observers of out-of-memory, which only look.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use crate::allocator::error::AllocError;
use crate::allocator::oom::OomReport;
use crate::base::memory::Block;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// How often a request is made again by default.
const RETRIES: u32 = 4;

/// Frees memory for a request that is about to fail; whether it did, so that trying again makes sense.
type Rescuer = dyn Fn(&OomReport) -> bool + Send + Sync;

/// Looks at a request that has failed.
type Observer = dyn Fn(&OomReport) + Send + Sync;

/// Those to be asked before a request for memory fails, and those to be told when it has.
///
/// Both are called without any lock of the pools, so they may allocate and free. What is refused while one of them runs, on
/// the same thread, fails at once: nobody is asked about it, and nobody is told. So nothing runs in circles.
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

thread_local! {
    /// Whether this thread is in a callback.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as in a callback, until dropped.
struct Busy;

impl Busy {
    fn enter() -> Option<Self> {
        (!BUSY.replace(true)).then(|| Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(false);
    }
}

impl Default for LastResort {
    fn default() -> Self {
        Self::new()
    }
}

impl LastResort {
    /// Nobody to be asked or told; at most four retries of a request.
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

    /// The same with at most so many retries of a request.
    #[must_use]
    pub const fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Asks `rescuer` when a request is about to fail. It may give memory back, by dropping what it can do without; if it
    /// answers yes, the request is made again. The last one that was added is asked first, and those before it only if it
    /// says no.
    pub fn before_giving_up(&self, rescuer: impl Fn(&OomReport) -> bool + Send + Sync + 'static) {
        self.rescuers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(rescuer));
    }

    /// Tells `observer` of each request that has failed: once, whatever was tried before.
    pub fn on_failure(&self, observer: impl Fn(&OomReport) + Send + Sync + 'static) {
        self.observers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(observer));
    }

    /// Forgets all who were to be asked or told.
    pub fn clear(&self) {
        let rescuers = std::mem::take(&mut *self.rescuers.write().unwrap_or_else(PoisonError::into_inner));
        let observers = std::mem::take(&mut *self.observers.write().unwrap_or_else(PoisonError::into_inner));
        // Without the locks: what the callbacks hold may allocate or register callbacks when it is dropped.
        drop((rescuers, observers));
    }

    /// How many requests found memory after all.
    #[must_use]
    pub fn rescued(&self) -> u64 {
        self.rescued.load(Ordering::Relaxed)
    }

    /// How many requests failed for want of memory.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Calls `attempt`, and again after each time that somebody has freed memory for it, up to the bound.
    ///
    /// # Errors
    /// The error of the last attempt. Its report says how often the request was made again.
    pub fn allocate(&self, attempt: impl FnMut() -> Result<Block, AllocError>) -> Result<Block, AllocError> {
        let mut attempt = attempt;
        attempt().or_else(|error| self.rescue(error, attempt))
    }

    /// The same for a request that was refused with `error` already.
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

    /// Whether this thread is asked or told right now, so that a refusal is nobody's business.
    #[must_use]
    pub fn is_busy() -> bool {
        BUSY.get()
    }

    fn ask(&self, report: &OomReport) -> bool {
        let rescuers = self.rescuers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(_busy) = Busy::enter() else { return false };
        rescuers.iter().rev().any(|rescuer| rescuer(report))
    }

    fn tell(&self, report: &OomReport) {
        let observers = self.observers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(_busy) = Busy::enter() else { return };
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
