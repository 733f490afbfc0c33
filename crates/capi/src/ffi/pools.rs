//! Opening, trimming and closing pools.

use std::ffi::c_char;

use bfc_core::Bytes;

use crate::guard::guard;
use crate::status::bfc_status;
use crate::{table, text};

/// The handle of an open pool. Never 0. The handle of a closed pool stays invalid.
pub type bfc_pool = u64;

/// Opens a pool and stores its handle in `*pool`. The configuration is one line of text or a JSON object with the same
/// options, such as `bfc:memory=host,limit=2GiB,name=cpu` or `{"memory": "host", "limit": "2GiB", "name": "cpu"}`. All
/// options may be left out:
///
/// - memory: host (default), dry (addresses without memory), cuda or cuda:ORDINAL, pinned or pinned:ORDINAL
/// - name: the name in reports, unique among the open pools
/// - the settings of pools, as [`PoolOptions::set`](bfc_core::PoolOptions::set) reads them
///
/// The environment variables of Highwater, such as HIGHWATER_POOL_LIMIT, set options that the configuration leaves out.
///
/// Fails with BFC_ERROR_INVALID_CONFIGURATION, BFC_ERROR_DEVICE or BFC_ERROR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_pool_open(configuration: *const c_char, pool: *mut bfc_pool) -> bfc_status {
    guard(|| {
        text::check_out(pool, "pool")?;
        // SAFETY: the caller passes a text that ends with NUL.
        let configuration = unsafe { text::read(configuration, text::MAX_TEXT, "configuration") }?;
        let handle = table::open(configuration)?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { pool.write(handle) };
        Ok(())
    })
}

/// Closes a pool and returns its memory. Its handle becomes invalid.
///
/// Fails with BFC_ERROR_POOL_IN_USE while blocks are live or ops run, and changes nothing; the message names the holders.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_close(pool: bfc_pool) -> bfc_status {
    guard(|| table::close(pool))
}

/// Returns unused memory of the pool to its source while more than `keep` bytes stay reserved. Stores the returned bytes
/// in `*released`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_pool_trim(pool: bfc_pool, keep: u64, released: *mut u64) -> bfc_status {
    guard(|| {
        if !released.is_null() {
            text::check_out(released, "released")?;
        }
        let bytes = table::with_pool(pool, |pool| Ok(pool.allocator().trim(Bytes(keep))))?;
        if !released.is_null() {
            // SAFETY: not null and aligned; the caller passes a live variable.
            unsafe { released.write(bytes) };
        }
        Ok(())
    })
}
