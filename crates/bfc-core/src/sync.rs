//! The synchronisation primitives of this workspace: those of `std`, or of the `shuttle` checker under `--cfg shuttle`,
//! which then explores the orders in which threads may run.

mod barrier;
mod biased;

pub use biased::{BiasedGuard, BiasedMutex};
#[cfg(shuttle)]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(shuttle)]
pub use shuttle::{thread, thread_local};
#[cfg(not(shuttle))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(shuttle))]
pub use std::{thread, thread_local};

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::PoisonError;
use std::time::Duration;

/// Locks a mutex; a poisoned one is taken as it is. Our critical sections leave consistent state at every panic point,
/// and a drop must not panic in turn.
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

/// A number of the calling thread, above 0, that no other thread of the process has or will have. It stays with its
/// thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNumber(u64, PhantomData<*const ()>);

thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });

impl ThreadNumber {
    /// That of the calling thread.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let number = NUMBER.with(Cell::get);
        Self(if number == 0 { Self::give() } else { number }, PhantomData)
    }

    /// As a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Gives the calling thread its number.
    #[cold]
    #[inline(never)]
    fn give() -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        NUMBER.with(|own| own.set(number));
        number
    }
}
