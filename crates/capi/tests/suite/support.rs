//! Calls of the exported functions with Rust types.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

use bfc::*;

/// A pointer to a block, which other threads may free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Block(pub(crate) *mut c_void);

// SAFETY: only the functions of the library use the pointer, and they may be called from any thread.
unsafe impl Send for Block {}

/// Returns the message of the thread's last error.
pub(crate) fn message() -> String {
    text(bfc_last_error_message())
}

/// Copies a text of the library.
pub(crate) fn text(pointer: *const c_char) -> String {
    // SAFETY: the callers pass texts of the library that end with NUL and are live.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

/// Copies and frees a returned string.
pub(crate) fn string(
    pool: bfc_pool,
    function: unsafe extern "C" fn(bfc_pool, *mut *mut c_char) -> bfc_status,
) -> String {
    let mut string = null_mut();
    // SAFETY: the variable lives.
    assert_eq!(unsafe { function(pool, &raw mut string) }, BFC_OK, "{}", message());
    let copy = text(string);
    assert_eq!(bfc_string_free(string), BFC_OK);
    copy
}

pub(crate) fn open(configuration: &str) -> Result<bfc_pool, bfc_status> {
    let (configuration, mut pool) = (CString::new(configuration).unwrap(), 0);
    // SAFETY: the text ends with NUL, and the variable lives.
    let status = unsafe { bfc_pool_open(configuration.as_ptr(), &raw mut pool) };
    if status == BFC_OK { Ok(pool) } else { Err(status) }
}

pub(crate) fn allocate(pool: bfc_pool, bytes: u64, owner: &str) -> Result<Block, bfc_status> {
    let (owner, mut block) = (CString::new(owner).unwrap(), null_mut());
    // SAFETY: the text ends with NUL, and the variable lives.
    let status = unsafe { bfc_allocate(pool, bytes, 0, owner.as_ptr(), BFC_OUTPUT as u32, &raw mut block) };
    if status == BFC_OK { Ok(Block(block)) } else { Err(status) }
}

pub(crate) fn free(pool: bfc_pool, block: Block) -> bfc_status {
    // SAFETY: no test uses a block after this call.
    unsafe { bfc_free(pool, block.0) }
}

pub(crate) fn reallocate(pool: bfc_pool, block: Block, bytes: u64) -> Result<Block, bfc_status> {
    let mut moved = null_mut();
    // SAFETY: no test uses the block after a success, and the variable lives.
    let status = unsafe { bfc_reallocate(pool, block.0, bytes, &raw mut moved) };
    if status == BFC_OK { Ok(Block(moved)) } else { Err(status) }
}

pub(crate) fn size_of_block(pool: bfc_pool, block: Block) -> Result<u64, bfc_status> {
    let mut bytes = 0;
    // SAFETY: the variable lives.
    let status = unsafe { bfc_size_of(pool, block.0, &raw mut bytes) };
    if status == BFC_OK { Ok(bytes) } else { Err(status) }
}

pub(crate) fn stats(pool: bfc_pool) -> bfc_stats {
    let mut stats = bfc_stats { size: size_of::<bfc_stats>() as u64, ..bfc_stats::default() };
    // SAFETY: the structure lives and states its size.
    assert_eq!(unsafe { bfc_pool_stats(pool, &raw mut stats) }, BFC_OK);
    stats
}

pub(crate) fn push(name: &str) -> bfc_scope {
    let (name, mut scope) = (CString::new(name).unwrap(), 0);
    // SAFETY: the text ends with NUL, and the variable lives.
    assert_eq!(unsafe { bfc_scope_push(name.as_ptr(), &raw mut scope) }, BFC_OK);
    scope
}

pub(crate) fn push_op(pool: bfc_pool, name: &str) -> bfc_scope {
    let (name, mut scope) = (CString::new(name).unwrap(), 0);
    // SAFETY: the text ends with NUL, and the variable lives.
    assert_eq!(unsafe { bfc_op_push(pool, name.as_ptr(), &raw mut scope) }, BFC_OK);
    scope
}
