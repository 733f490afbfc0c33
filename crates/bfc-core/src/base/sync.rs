//! The synchronization primitives of this workspace: those of `std`, or those of the `shuttle` checker under `--cfg
//! shuttle`, which explores thread interleavings.
//!
//! [`SpinMutex`] guards the sections of a pool that take some tens of nanoseconds; everything else uses [`Mutex`].

mod spin;
mod threads;

#[cfg(shuttle)]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(shuttle)]
pub use shuttle::{thread, thread_local};
pub use spin::{SpinGuard, SpinMutex};
#[cfg(not(shuttle))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(shuttle))]
pub use std::{thread, thread_local};
pub use threads::ThreadNumber;
pub(crate) use threads::{ThreadEndListener, ThreadEndWatch, ends, is_living, retain_living};

use std::sync::PoisonError;
use std::time::Duration;

/// Locks a mutex and ignores poisoning: critical sections leave a consistent state at every panic point, and a drop must
/// not panic.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification, at most for `timeout` if one is given (the checker has no clock and never times out).
pub fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(timeout) => condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
    }
}
