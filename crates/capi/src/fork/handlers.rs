//! The handlers that run around `fork`: they hold the lock of the regions, and mark the child.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use bfc_core::sync::lock;

use super::{CHILD, REGIONS, STATE, UNUSED, USED};

/// The lock of the regions during a `fork`. A thread that ends may fork, so this is no thread-local variable.
struct Held(UnsafeCell<Option<MutexGuard<'static, BTreeMap<u64, u64>>>>);

// SAFETY: only the thread that holds the lock accesses the cell, and it is the one that unlocks.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// The thread that holds the lock for its `fork`, or 0. Only that thread stores its own number, so each thread can
/// tell whether it is the holder.
static HOLDER: AtomicUsize = AtomicUsize::new(0);

fn this_thread() -> usize {
    // SAFETY: the function has no requirements.
    unsafe { libc::pthread_self() as usize }
}

/// Registers the handlers. Takes no lock of this library: another thread may fork meanwhile. Two threads may both
/// register them, which has no effect.
pub(super) fn register() {
    // SAFETY: the functions are part of this library, and no panic leaves them.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    if failed == 0 {
        let _ = STATE.compare_exchange(UNUSED, USED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

extern "C" fn before() {
    // The second of two handlers.
    if HOLDER.load(Ordering::Relaxed) == this_thread() {
        return;
    }
    let regions = lock(&REGIONS);
    HOLDER.store(this_thread(), Ordering::Relaxed);
    // SAFETY: this thread holds the lock.
    unsafe { *HELD.0.get() = Some(regions) };
}

extern "C" fn after_in_parent() {
    if HOLDER.load(Ordering::Relaxed) == this_thread() {
        HOLDER.store(0, Ordering::Relaxed);
        // SAFETY: this thread holds the lock. In a child, it is the copy of the one that called `fork`.
        drop(unsafe { (*HELD.0.get()).take() });
    }
}

extern "C" fn after_in_child() {
    STATE.store(CHILD, Ordering::Relaxed);
    after_in_parent();
}
