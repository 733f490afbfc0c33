//! Memory of NumPy's arrays in a child of `fork`.
//!
//! New arrays come from `malloc`. The parent's arrays stay readable and writable. Freeing one has no effect, because only the
//! parent can use its pools.

use std::ffi::c_void;

use crate::fork;

/// Allocates at least one byte.
pub(super) fn allocate(count: usize, bytes: usize, zeroed: bool) -> *mut c_void {
    let Some(total) = count.checked_mul(bytes) else { return std::ptr::null_mut() };
    if zeroed {
        // SAFETY: every size is valid.
        unsafe { libc::calloc(1, total.max(1)) }
    } else {
        // SAFETY: every size is valid.
        unsafe { libc::malloc(total.max(1)) }
    }
}

/// Resizes a block. A block of the parent moves.
///
/// # Safety
/// The block came from NumPy's functions, and nothing uses it during the call, nor after a success.
pub(super) unsafe fn reallocate(data: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(readable) = fork::bytes_in_region(data.addr() as u64) else {
        // SAFETY: no block of the parent, so that it came from `malloc`, or is null.
        return unsafe { libc::realloc(data, bytes.max(1)) };
    };
    let moved = allocate(1, bytes, false);
    if !moved.is_null() {
        let length = usize::try_from(readable).unwrap_or(usize::MAX).min(bytes);
        // SAFETY: the region is readable to its end, and the new block has this many bytes outside of it.
        unsafe { data.cast::<u8>().copy_to_nonoverlapping(moved.cast(), length) };
    }
    moved
}

/// Frees a block.
///
/// # Safety
/// The block came from NumPy's functions, and nothing uses it any more.
pub(super) unsafe fn free(data: *mut c_void) {
    if fork::bytes_in_region(data.addr() as u64).is_none() {
        // SAFETY: no block of the parent, so that it came from `malloc`, or is null.
        unsafe { libc::free(data) };
    }
}
