//! The exit of the process: it disconnects, and has an exit code other than 0 if ranks have gone separate ways.
//!
//! A program may return from `main` without a look at an error, call `std::process::exit`, or keep its world in a static.
//! In all these cases the launcher and the other ranks must learn of the end, so a function of this module runs at exit.
//! Its state is global, because MPI connects a process once and the function takes no argument.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// The exit code after a failure.
const FAILURE: c_int = 1;

/// The interval at which the exiting thread looks for the end of the connection.
const PAUSE: Duration = Duration::from_millis(1);

/// Asks the communication thread to disconnect.
static CLOSE: OnceLock<Mutex<Box<dyn FnMut() + Send>>> = OnceLock::new();

/// Whether the communication thread has ended.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Whether an operation has failed, or a rank has disconnected early.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    safe fn atexit(function: extern "C" fn()) -> c_int;
    safe fn _exit(code: c_int) -> !;
}

/// Disconnects when the process exits. `close` asks the communication thread to.
pub(super) fn disconnect_at_exit(close: impl FnMut() + Send + 'static) {
    if CLOSE.set(Mutex::new(Box::new(close))).is_ok() {
        // If the system refuses, only a world that is never dropped stays connected.
        let _ = atexit(at_exit);
    }
}

/// Notes that the communication thread has ended.
pub(super) fn set_ended() {
    HAS_ENDED.store(true, Ordering::Release);
}

/// Lets the process exit with a code other than 0.
pub(super) fn set_failed() {
    HAS_FAILED.store(true, Ordering::Release);
}

/// Ends the process at once.
pub(super) fn terminate(code: i32) -> ! {
    _exit(code)
}

extern "C" fn at_exit() {
    if let Some(close) = CLOSE.get() {
        close.lock().unwrap_or_else(PoisonError::into_inner)();
        // The thread ends within the time limit of an operation.
        while !HAS_ENDED.load(Ordering::Acquire) {
            thread::sleep(PAUSE);
        }
    }
    if HAS_FAILED.load(Ordering::Acquire) {
        terminate(FAILURE);
    }
}
