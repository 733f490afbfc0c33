//! A mutex for critical sections of some tens of nanoseconds.
//!
//! Locking takes one atomic exchange and unlocking a plain store. [`Mutex`](std::sync::Mutex) takes two exchanges, which is a
//! quarter of the time of a pool's event. A waiting thread spins, then yields, and then sleeps for 50 µs at a time.
//!
//! There is no queue: a thread that sleeps may be overtaken. A thread that locks a mutex twice waits forever.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::atomic::{AtomicBool, Ordering};
use super::thread;
use crate::base::hint::cold_path;

/// The checks of a waiting thread before it starts to yield.
const SPINS: u32 = 100;

/// The checks of a waiting thread before it starts to sleep.
const YIELDS: u32 = 200;

/// The sleep of a waiting thread between two checks: the lock may be held during a call into a device driver.
const SLEEP: Duration = Duration::from_micros(50);

/// A mutex that spins and then sleeps.
// In this order, so that the flag and the beginning of the value share a cache line.
#[repr(C)]
pub struct SpinMutex<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

/// The locked value of a [`SpinMutex`].
pub struct SpinGuard<'a, T> {
    mutex: &'a SpinMutex<T>,
    /// Neither `Send` nor `Sync`, like the guard of `std`.
    not_send: PhantomData<*mut T>,
}

// SAFETY: a guard gives the only access to the value, and there is at most one at a time: see `SpinGuard::deref`.
unsafe impl<T: Send> Sync for SpinMutex<T> {}

impl<T> SpinMutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks the mutex. A panic while it is locked unlocks it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if self.locked.swap(true, Ordering::Acquire) {
            cold_path();
            self.wait();
        }
        SpinGuard { mutex: self, not_send: PhantomData }
    }

    /// Returns the value of a mutex that no other thread refers to.
    #[inline]
    pub const fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Waits for the mutex and locks it.
    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut looks = 0_u32;
        while self.locked.load(Ordering::Relaxed) || self.locked.swap(true, Ordering::Acquire) {
            looks = looks.saturating_add(1);
            if cfg!(shuttle) || (SPINS..YIELDS).contains(&looks) {
                thread::yield_now();
            } else if looks < SPINS {
                spin_loop();
            } else {
                thread::sleep(SLEEP);
            }
        }
    }
}

impl<T: Default> Default for SpinMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the thread that made this guard found the flag unset and set it, and only this guard's drop clears it.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.locked.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for SpinMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinMutex").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for SpinGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn threads_never_hold_the_lock_together() {
        let mutex = Arc::new(SpinMutex::new([0_u64; 8]));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let words = &mut *mutex.lock();
                        assert!(words.iter().all(|word| *word == words[0]));
                        words.iter_mut().for_each(|word| *word += 1);
                    }
                });
            }
        });
        let mut mutex = Arc::into_inner(mutex).unwrap();
        assert_eq!(*mutex.lock(), [20_000; 8]);
        assert_eq!(*mutex.get_mut(), [20_000; 8]);
    }

    #[test]
    fn a_waiting_thread_gets_the_lock_after_a_long_section() {
        let mutex = Arc::new(SpinMutex::new(0));
        let guard = mutex.lock();
        let waiting = Arc::clone(&mutex);
        let waiter = std::thread::spawn(move || *waiting.lock() += 1);
        std::thread::sleep(5 * SLEEP);
        drop(guard);
        waiter.join().unwrap();
        assert_eq!(*mutex.lock(), 1);
    }

    #[test]
    fn a_panic_unlocks_the_mutex() {
        let mutex = SpinMutex::new(1);
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let _guard = mutex.lock();
            panic!("in the critical section");
        }));
        assert!(panics.is_err());
        assert_eq!(*mutex.lock(), 1);
    }
}
