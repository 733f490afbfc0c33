//! The exported functions, called as C programs call them.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use bfc::*;

/// Returns the message of the thread's last error.
fn message() -> String {
    // SAFETY: the text ends with NUL and lives until the thread's next failure.
    unsafe { CStr::from_ptr(bfc_last_error_message()) }.to_str().unwrap().to_owned()
}

fn open(configuration: &str) -> Result<bfc_pool, bfc_status> {
    let (configuration, mut pool) = (CString::new(configuration).unwrap(), 0);
    // SAFETY: the text ends with NUL, and the variable lives.
    let status = unsafe { bfc_pool_open(configuration.as_ptr(), &raw mut pool) };
    if status == BFC_OK { Ok(pool) } else { Err(status) }
}

fn allocate(pool: bfc_pool, bytes: u64, owner: &str) -> Result<*mut c_void, bfc_status> {
    let (owner, mut block) = (CString::new(owner).unwrap(), null_mut());
    // SAFETY: the text ends with NUL, and the variable lives.
    let status = unsafe { bfc_allocate(pool, bytes, 0, owner.as_ptr(), BFC_OUTPUT as u32, &raw mut block) };
    if status == BFC_OK { Ok(block) } else { Err(status) }
}

fn free(pool: bfc_pool, block: *mut c_void) -> bfc_status {
    // SAFETY: no test uses a block after this call.
    unsafe { bfc_free(pool, block) }
}

#[test]
fn a_closed_pool_is_an_invalid_handle() {
    let pool = open("limit=64KiB,name=closed").unwrap();
    assert_eq!(bfc_pool_close(pool), BFC_OK);
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_INVALID_HANDLE);
    assert_eq!(allocate(pool, 1, "x"), Err(BFC_ERROR_INVALID_HANDLE));
    assert_eq!(
        message(),
        format!("{pool:#x} is not an open pool: it was closed before, or it never was one")
    );
    let other = open("limit=64KiB,name=closed").unwrap();
    assert_ne!(other, pool);
    assert_eq!(bfc_pool_close(other), BFC_OK);
}

#[test]
fn a_pool_with_live_blocks_stays_open_and_names_holders() {
    let pool = open("limit=64KiB,name=held").unwrap();
    let block = allocate(pool, 1000, "held-net.weights").unwrap();
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_POOL_IN_USE);
    let expected = "pool held is in use: 1 live blocks, 0 running ops or calls; \
                    held by held-net.weights (1.00 KiB)";
    assert_eq!(message(), expected);
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}
