//! The synchronisation primitives of this workspace: those of `std`, or of the `shuttle` checker under `--cfg shuttle`,
//! which then explores the orders in which threads may run.

#[cfg(shuttle)]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(shuttle)]
pub use shuttle::thread;
#[cfg(not(shuttle))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(shuttle))]
pub use std::thread;

use std::sync::PoisonError;

/// Locks a mutex; a poisoned one is taken as it is. Our critical sections leave consistent state at every panic point,
/// and a drop must not panic in turn.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
