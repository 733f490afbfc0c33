//! The last error of the thread, and strings.

use std::ffi::c_char;

use crate::guard::{guard, guard_value};
use crate::status::bfc_status;
use crate::{last_error, text};

/// Returns the status of this thread's last failed call; BFC_OK if none failed. Calls that succeed keep it.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_last_error() -> bfc_status {
    guard_value(bfc_status::BFC_ERROR_INTERNAL, last_error::status)
}

/// Returns the message of this thread's last failed call, in one line; "" if none failed. The text lives until the
/// next failed call of this thread. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_last_error_message() -> *const c_char {
    guard_value(c"".as_ptr(), last_error::message)
}

/// Returns the complete report of an out-of-memory error in several lines: the pool's figures, the holders of its
/// memory, and what would make room. Returns the message of other errors. The text lives until the next failed call of
/// this thread. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_last_error_details() -> *const c_char {
    guard_value(c"".as_ptr(), last_error::details)
}

/// Returns this thread's last failed call as JSON with "status", "code" and "message"; an out-of-memory error also has
/// "report". "{}" if none failed. The text lives until the next failed call of this thread. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_last_error_json() -> *const c_char {
    guard_value(c"{}".as_ptr(), last_error::json)
}

/// Frees a string that a function of this library returned through a `char **`. NULL has no effect.
///
/// Fails with BFC_ERROR_INVALID_POINTER for every other address.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_string_free(string: *mut c_char) -> bfc_status {
    guard(|| text::free(string))
}
