//! Allocating and freeing blocks.

use std::ffi::{c_char, c_void};
use std::ptr::with_exposed_provenance_mut;

use bfc_core::Category;

use super::bfc_pool;
use crate::error::Error;
use crate::guard::guard;
use crate::pool::BlockRequest;
use crate::status::bfc_status;
use crate::{table, text};

/// The purpose of a block. Reports show the bytes of each category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub enum bfc_category {
    /// Scratch memory, and memory without another category.
    BFC_TEMPORARY = 0,
    /// A trained parameter.
    BFC_PARAMETER = 1,
    /// A gradient.
    BFC_GRADIENT = 2,
    /// State that an optimizer keeps between steps.
    BFC_OPTIMIZER_STATE = 3,
    /// A result that is kept for a backward pass.
    BFC_ACTIVATION = 4,
    /// Input data.
    BFC_INPUT = 5,
    /// A result.
    BFC_OUTPUT = 6,
    /// Scratch memory of a kernel or library.
    BFC_WORKSPACE = 7,
    /// Memory for data exchange between processes.
    BFC_COMMUNICATION = 8,
    /// Bytes of a mapped file.
    BFC_MAPPED = 9,
}

pub use bfc_category::*;

/// Allocates `bytes` bytes and stores the address in `*block`: NULL for 0 bytes. Memory of the host is readable and has
/// any values; addresses of the device and of dry pools must not be read or written by the host.
///
/// `alignment` is a power of two, or 0 for 64 bytes. `owner` names the holder below the thread's scope, as in "weights"
/// or "net.fc1.weights"; NULL charges the running op, or "allocate" outside of ops. `category` is a bfc_category.
///
/// Fails with BFC_ERROR_OUT_OF_MEMORY, after waiting for other threads to free blocks (option `retry_ms`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_allocate(
    pool: bfc_pool,
    bytes: u64,
    alignment: u64,
    owner: *const c_char,
    category: u32,
    block: *mut *mut c_void,
) -> bfc_status {
    guard(|| {
        text::check_out(block, "block")?;
        // SAFETY: the caller passes NULL or a text that ends with NUL.
        let owner = unsafe { text::read_optional(owner, text::MAX_NAME, "owner") }?;
        let category = category_of(category)?;
        let request = BlockRequest { bytes, alignment, owner, category };
        let address = table::with_pool(pool, |pool| pool.allocate(&request))?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { block.write(pointer(address)) };
        Ok(())
    })
}

/// Frees a block of the pool, from any thread. NULL has no effect.
///
/// Fails with BFC_ERROR_INVALID_POINTER for every other address, such as a block that was freed before or one of another
/// pool, and changes nothing. Pools with the allocator `guard` fail with BFC_ERROR_OUT_OF_BOUNDS after a write outside of
/// the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_free(pool: bfc_pool, block: *mut c_void) -> bfc_status {
    // SAFETY: the caller does not use the block any more.
    guard(|| table::with_pool(pool, |pool| unsafe { pool.free(block.addr() as u64) }))
}

/// Gives a block `bytes` bytes and stores its address in `*moved`: the same one if the memory behind the block is free.
/// Keeps the owner, the category, the alignment, and the bytes that both blocks have. NULL as the block allocates one without an
/// owner; 0 bytes frees the block and stores NULL. `moved` may be the address of the variable that holds `block`.
///
/// The block is unchanged after a failure, except after BFC_ERROR_OUT_OF_BOUNDS, which frees it. Fails as bfc_allocate() and bfc_free(), and with BFC_ERROR_UNSUPPORTED for
/// device memory that would have to move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_reallocate(
    pool: bfc_pool,
    block: *mut c_void,
    bytes: u64,
    moved: *mut *mut c_void,
) -> bfc_status {
    guard(|| {
        text::check_out(moved, "moved")?;
        let address = block.addr() as u64;
        // SAFETY: the caller does not use the block during the call, nor after a success.
        let address = table::with_pool(pool, |pool| unsafe { pool.reallocate(address, bytes) })?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { moved.write(pointer(address)) };
        Ok(())
    })
}

/// Stores the requested bytes of a live block in `*bytes`.
///
/// Fails with BFC_ERROR_INVALID_POINTER if no live block of the pool starts at the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_size_of(pool: bfc_pool, block: *const c_void, bytes: *mut u64) -> bfc_status {
    guard(|| {
        text::check_out(bytes, "bytes")?;
        let found = table::with_pool(pool, |pool| pool.size_of(block.addr() as u64))?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { bytes.write(found) };
        Ok(())
    })
}

fn pointer(address: u64) -> *mut c_void {
    with_exposed_provenance_mut(address as usize)
}

fn category_of(value: u32) -> Result<Category, Error> {
    let found = usize::try_from(value).ok().and_then(|index| Category::ALL.get(index)).copied();
    found.ok_or_else(|| Error::BadValue {
        argument: "category",
        value: value.into(),
        expected: format!("a bfc_category, 0 to {}", Category::COUNT - 1),
    })
}
