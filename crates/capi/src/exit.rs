//! The end of the program: recordings that still run get their last events and a summary.

use std::panic::catch_unwind;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::table;

/// The process that records. Its children have a copy of the registered function, but no thread that writes.
static RECORDING_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Ends all recordings when the program exits normally. The last events of a recording are in memory until then.
pub(crate) fn end_recordings_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        RECORDING_PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function is part of this library, which stays loaded, and no panic leaves it.
        unsafe { libc::atexit(end_recordings) };
    });
}

extern "C" fn end_recordings() {
    if RECORDING_PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    // There is no caller to return an error to.
    let _ = catch_unwind(|| {
        for run in table::runs().iter().filter(|run| run.recording().is_some()) {
            let _ = run.stop_recording(&table::pools_of(run));
        }
    });
}
