//! The exit of the process: it disconnects, and has an exit code other than 0 if the ranks ran different operations.
//!
//! A program may return from `main` without a look at an error, call `std::process::exit`, or keep its world in a static.
//! In all these cases the launcher and the other ranks must learn of the end, so a function of this module runs at exit.
//! Its state is global, because MPI connects a process once and the function takes no argument.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{process, ptr, thread};

/// The exit code after a failure.
const FAILURE: c_int = 1;

/// The interval at which the exiting thread looks for the end of the connection.
const PAUSE: Duration = Duration::from_millis(1);

/// The time that the exiting thread gives an operation of another thread. A longer one may hang.
const OPERATION_LIMIT: Duration = Duration::from_secs(2);

/// The connected process.
struct Connected {
    /// The number of the process. A child of `fork` inherits this module's state, but no communication thread.
    process: u32,
    /// Asks the communication thread to disconnect.
    close: Mutex<Box<dyn FnMut() + Send>>,
}

static CONNECTED: OnceLock<Connected> = OnceLock::new();

/// Whether the communication thread runs an operation of another thread.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Whether the communication thread has ended.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Whether an operation has failed, or a rank has disconnected early.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    safe fn atexit(function: extern "C" fn()) -> c_int;
    safe fn _exit(code: c_int) -> !;
    /// Writes the output that C has buffered; for a null pointer, that of all streams.
    fn fflush(stream: *mut c_void) -> c_int;
}

/// Disconnects when the process exits. `close` asks the communication thread to disconnect.
pub(super) fn disconnect_at_exit(close: impl FnMut() + Send + 'static) {
    let connected = Connected { process: process::id(), close: Mutex::new(Box::new(close)) };
    if CONNECTED.set(connected).is_ok() {
        // If the system refuses, only a world that is never dropped stays connected.
        let _ = atexit(at_exit);
    }
}

/// Returns whether this process is a child of the connected one, by `fork`.
pub(super) fn is_child() -> bool {
    CONNECTED.get().is_some_and(|connected| connected.process != process::id())
}

/// Notes whether the communication thread runs an operation of another thread.
pub(super) fn set_running(is_running: bool) {
    IS_RUNNING.store(is_running, Ordering::Release);
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
    let Some(connected) = CONNECTED.get().filter(|_| !is_child()) else { return };
    connected.close.lock().unwrap_or_else(PoisonError::into_inner)();
    let deadline = Instant::now() + OPERATION_LIMIT;
    // The thread disconnects within the time limit of an operation.
    while !HAS_ENDED.load(Ordering::Acquire) {
        if IS_RUNNING.load(Ordering::Acquire) && Instant::now() >= deadline {
            set_failed();
            break;
        }
        thread::sleep(PAUSE);
    }
    if HAS_FAILED.load(Ordering::Acquire) {
        // SAFETY: a null pointer is valid.
        unsafe { fflush(ptr::null_mut()) };
        terminate(FAILURE);
    }
}
