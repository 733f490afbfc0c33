//! NumPy: the handler of NEP 49, and functions for the package numpy-allocator.

use std::ffi::c_void;

use super::bfc_pool;
use crate::guard::guard;
use crate::python::{self, User};
use crate::status::bfc_status;
use crate::text;

/// Stores the `PyDataMem_Handler` (NEP 49, version 1) of a pool of host memory in `*handler`. It lives until the process
/// ends. Pass it to PyDataMem_SetHandler() in a capsule named "mem_handler". NumPy frees each array with the handler that
/// made it, so that the pool cannot be closed before. Arrays belong to the owner "numpy" in the thread's scope.
///
/// A failed request returns NULL, for which NumPy raises MemoryError; bfc_last_error_details() has the reason. NumPy holds
/// the lock of the interpreter meanwhile: open the pool with `retry_ms=0`.
///
/// In a child of fork(), the functions of the handler use malloc(). The parent's arrays stay readable and writable there; freeing
/// one has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_numpy_handler(pool: bfc_pool, handler: *mut *const c_void) -> bfc_status {
    guard(|| {
        text::check_out(handler, "handler")?;
        let found = python::numpy_handler(pool)?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { handler.write(found) };
        Ok(())
    })
}

/// Chooses the pool of bfc_numpy_malloc() and its relatives. Without a choice, the first call opens a pool of host memory
/// with the options of the environment variable BFC_NUMPY_POOL, such as "limit=2GiB".
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_use(pool: bfc_pool) -> bfc_status {
    guard(|| python::choose(User::Numpy, pool))
}

/// Stores the pool of bfc_numpy_malloc() in `*pool`. Opens it if necessary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_numpy_pool(pool: *mut bfc_pool) -> bfc_status {
    guard(|| {
        text::check_out(pool, "pool")?;
        let found = python::pool_of(User::Numpy)?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { pool.write(found) };
        Ok(())
    })
}

/// As malloc(), in the pool of NumPy: for the package numpy-allocator, whose functions have no context. NULL after a
/// failure, which is the last error.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_malloc(bytes: usize) -> *mut c_void {
    python::numpy_allocate(1, bytes, false)
}

/// As calloc(), in the pool of NumPy.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_calloc(count: usize, bytes: usize) -> *mut c_void {
    python::numpy_allocate(count, bytes, true)
}

/// As realloc(), in the pool that has the block. NULL for an address of another allocator; the block stays then.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    python::numpy_reallocate(block, bytes)
}

/// As free(), in the pool that has the block. Has no effect for an address of another allocator, which is the last error.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_free(block: *mut c_void) {
    python::numpy_free(block);
}
