//! Keeps stream captures apart from waits for a whole device.
//!
//! A wait for a context fails while any of its streams captures, and it invalidates the capture. Devices of one process
//! share their context, so the waiting thread may know nothing of the capture.

use std::sync::{PoisonError, RwLock};

static CAPTURES: RwLock<()> = RwLock::new(());

/// Runs a capture while no thread waits for a device.
pub(crate) fn capture_exclusively<T>(capture: impl FnOnce() -> T) -> T {
    let _captures = CAPTURES.write().unwrap_or_else(PoisonError::into_inner);
    capture()
}

/// Waits for a device while no thread captures.
pub(super) fn wait_without_capture<T>(wait: impl FnOnce() -> T) -> T {
    let _captures = CAPTURES.read().unwrap_or_else(PoisonError::into_inner);
    wait()
}
