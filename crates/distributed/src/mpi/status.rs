//! The codes and statuses that MPI returns.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::raw::AsRaw;

/// Returns the message of an error code in one line.
pub(super) fn error_text(code: c_int) -> String {
    let mut text = [0; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer has room for the longest text and stays terminated by zero.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length) };
    // SAFETY: the last byte is zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    text.to_string_lossy().lines().collect::<Vec<_>>().join("; ")
}

/// Returns whether more bytes arrived than a receive expects.
pub(super) fn is_truncation(code: c_int) -> bool {
    let mut class = 0;
    // SAFETY: any code may be asked for.
    unsafe { ffi::MPI_Error_class(code, &raw mut class) };
    class.unsigned_abs() == ffi::MPI_ERR_TRUNCATE
}

/// Returns the length of a complete message.
pub(super) fn received_bytes(status: &MaybeUninit<ffi::MPI_Status>) -> usize {
    let mut received = 0;
    let bytes = u8::equivalent_datatype().as_raw();
    // SAFETY: the caller initialized the status, and the call that completed the request has set it.
    unsafe { ffi::MPI_Get_count(status.as_ptr(), bytes, &raw mut received) };
    received.unsigned_abs() as usize
}
