//! Memory of PyTorch's tensors and CuPy's arrays in a pool of a CUDA device.
//!
//! Both libraries free on the host while the device still works with the memory. Each block is therefore recorded for the
//! stream that uses it. After the free, it stays pending until the stream has done its work so far. The pool belongs to the
//! default stream, so the blocks of that stream are reusable at once.

use std::ffi::c_void;
use std::sync::Arc;

use bfc_core::{Bytes, Category, RecordError, Span, Stream, StreamHandle};

use super::numpy::address_or_null;
use super::{CHOICES, User, holder, pool_of};
use crate::error::Error;
use crate::guard::guard;
use crate::pool::{BlockRequest, PoolEntry};
use crate::table;

/// CUDA's default stream under its second handle, `CU_STREAM_LEGACY`. An event of it ends after the earlier work of all
/// blocking streams, such as those of CuPy. Under its first handle, 0, the pool would reuse a block before that.
pub(crate) const ALL_BLOCKING_STREAMS: u64 = 1;

/// Keeps the device that the program has chosen for the thread.
fn with_context_kept<T>(calls: impl FnOnce() -> T) -> T {
    #[cfg(feature = "cuda")]
    return bfc_cuda::preserve_context(calls);
    #[cfg(not(feature = "cuda"))]
    calls()
}

/// Returns the handle of the pool of a device. Opens the pool if none was chosen.
pub(crate) fn device_pool(device: i32) -> Result<u64, Error> {
    with_context_kept(|| pool_of(User::Device(device)))
}

/// Allocates memory for work on a stream, from the pool with this handle, or from the pool of the device if it is 0.
pub(crate) fn device_allocate(
    handle: u64,
    bytes: u64,
    device: i32,
    stream: u64,
    owner: &'static str,
) -> *mut c_void {
    address_or_null(|| {
        with_context_kept(|| {
            let handle = if handle == 0 { pool_of(User::Device(device))? } else { handle };
            table::with_pool(handle, |pool| {
                User::Device(device).check(pool)?;
                let owner = Some(owner);
                let request = BlockRequest { bytes, alignment: 512, owner, category: Category::default() };
                let address = pool.allocate(&request)?;
                if address != 0 {
                    record(pool, address, stream).inspect_err(|_| {
                        // SAFETY: the address was not returned to any caller.
                        let _ = unsafe { pool.free(address) };
                    })?;
                }
                Ok(address)
            })
        })
    })
}

/// Frees memory in the pool with this handle, or in the pool that has it if the handle is 0.
pub(crate) fn device_free(handle: u64, data: *mut c_void, device: i32) {
    let address = data.addr() as u64;
    if address == 0 {
        return;
    }
    guard(|| {
        with_context_kept(|| {
            let pool =
                if handle == 0 { holder(User::Device(device), address)? } else { table::pool(handle)? };
            // SAFETY: the caller submits no more work with the memory; the pool waits for earlier work.
            unsafe { pool.free(address) }
        })
    });
}

/// Announces that a stream uses a block of any device's pool.
pub(crate) fn device_record(data: *mut c_void, stream: u64) {
    let address = data.addr() as u64;
    guard(|| {
        with_context_kept(|| {
            let pool = holder_of_any_device(address)?;
            record(&pool, address, stream)
        })
    });
}

/// Returns the region of the pool that has the address, such as one within a block.
pub(crate) fn device_region(data: *mut c_void) -> Result<Span, Error> {
    let address = data.addr() as u64;
    let holds = |region: &Span| region.address <= address && address - region.address < region.bytes;
    let regions = pools().into_iter().flat_map(|pool| pool.allocator().regions());
    let mut found = regions.filter(holds);
    found.next().ok_or_else(|| Error::NotAllocated { pool: "cuda".to_owned(), address, other_pool: None })
}

/// Returns unused memory of all devices' pools to the driver.
pub(crate) fn device_trim() {
    guard(|| {
        with_context_kept(|| {
            for pool in pools() {
                pool.allocator().trim(Bytes(0));
            }
        });
        Ok(())
    });
}

/// The pools of the devices.
fn pools() -> Vec<Arc<PoolEntry>> {
    let choices = CHOICES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let open = choices.all.iter().filter_map(|&handle| table::pool(handle).ok());
    open.filter(|pool| pool.allocator().stream().is_some()).collect()
}

fn holder_of_any_device(address: u64) -> Result<Arc<PoolEntry>, Error> {
    let found = pools().into_iter().find(|pool| pool.contains(address));
    found.ok_or_else(|| Error::NotAllocated { pool: "cuda".to_owned(), address, other_pool: None })
}

fn record(pool: &PoolEntry, address: u64, stream: u64) -> Result<(), Error> {
    let allocator = pool.allocator();
    let block_error = |error| Error::Block { pool: pool.name().to_owned(), error };
    let block = allocator.block_at(address).map_err(block_error)?;
    let driver = allocator.stream().map(|stream| Arc::clone(stream.driver()));
    let driver = driver.ok_or_else(|| Error::Internal("the pool has no stream".to_owned()))?;
    // SAFETY: the caller passes a stream of the device, and keeps it until it has freed the block.
    let stream = unsafe { Stream::from_raw(driver, StreamHandle(stream), Arc::new(())) };
    allocator.record_stream(&block, &stream).map_err(|error| match error {
        RecordError::Block(error) => block_error(error),
        RecordError::Source(error) => error.into(),
        other => Error::Internal(other.to_string()),
    })
}
