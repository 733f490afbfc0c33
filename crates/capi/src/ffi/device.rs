//! PyTorch and CuPy: the functions that their allocators load.

use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use super::bfc_pool;
use crate::error::Error;
use crate::guard::{guard, guard_value};
use crate::python::{self, ALL_BLOCKING_STREAMS, User};
use crate::status::bfc_status;
use crate::text;

/// Chooses the pool of a CUDA device for bfc_torch_malloc() and bfc_cupy_malloc(). Without a choice, the first call opens
/// a pool of the device with the options of the environment variable BFC_CUDA_POOL, such as "limit=75%,growth=on".
#[unsafe(no_mangle)]
pub extern "C" fn bfc_device_use(device: i32, pool: bfc_pool) -> bfc_status {
    guard(|| {
        check(device)?;
        python::choose(User::Device(device), pool)
    })
}

/// Stores the pool of a CUDA device in `*pool`. Opens it if necessary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_device_pool(device: i32, pool: *mut bfc_pool) -> bfc_status {
    guard(|| {
        text::check_out(pool, "pool")?;
        check(device)?;
        let found = python::device_pool(device)?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { pool.write(found) };
        Ok(())
    })
}

/// The allocation function of PyTorch's CUDAPluggableAllocator. NULL after a failure, which is the last error.
///
/// The block is for work on `stream`, which must live until the block is freed. Blocks belong to the owner "torch" in the
/// thread's scope.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_malloc(bytes: isize, device: i32, stream: *mut c_void) -> *mut c_void {
    let bytes = u64::try_from(bytes).unwrap_or(0);
    python::device_allocate(0, bytes, device, stream.addr() as u64, "torch")
}

/// The free function of PyTorch's CUDAPluggableAllocator. The pool reuses the block after the streams that use it have
/// done their work so far. Has no effect for an address of another allocator, which is the last error.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_free(block: *mut c_void, bytes: isize, device: i32, stream: *mut c_void) {
    let _ = (bytes, stream);
    python::device_free(0, block, device);
}

/// For set_record_stream_fn() of PyTorch's CUDAPluggableAllocator: work on `stream`, too, uses the block.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    python::device_record(block, stream.addr() as u64);
}

/// For set_reset_fn() of PyTorch's CUDAPluggableAllocator: torch.cuda.empty_cache() returns unused memory to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_reset() {
    python::device_trim();
}

/// For set_base_alloc_fn() of PyTorch's CUDAPluggableAllocator: returns the driver's allocation that has the address, and
/// stores its size in `*bytes`, unless that is NULL. NULL for an address of another allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_torch_base_alloc(address: *mut c_void, bytes: *mut usize) -> *mut c_void {
    let mut base = null_mut();
    guard(|| {
        let region = python::device_region(address)?;
        if !bytes.is_null() {
            text::check_out(bytes, "bytes")?;
            // SAFETY: not null and aligned; the caller passes a live variable.
            unsafe { bytes.write(region.bytes as usize) };
        }
        base = with_exposed_provenance_mut(region.address as usize);
        Ok(())
    });
    base
}

/// The allocation function of CuPy's CFunctionAllocator. `pool` is the handle of a pool, or NULL for the pool of the
/// device. NULL after a failure, which is the last error. CuPy does not check for NULL: prefer a PythonFunctionAllocator
/// that raises MemoryError.
///
/// CuPy passes no stream. The block is for work on the default stream and on blocking streams, which CuPy creates unless
/// told otherwise. Blocks belong to the owner "cupy" in the thread's scope.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_cupy_malloc(pool: *mut c_void, bytes: usize, device: i32) -> *mut c_void {
    python::device_allocate(pool.addr() as u64, bytes as u64, device, ALL_BLOCKING_STREAMS, "cupy")
}

/// The free function of CuPy's CFunctionAllocator; see bfc_torch_free().
#[unsafe(no_mangle)]
pub extern "C" fn bfc_cupy_free(pool: *mut c_void, block: *mut c_void, device: i32) {
    guard_value((), || python::device_free(pool.addr() as u64, block, device));
}

fn check(device: i32) -> Result<(), Error> {
    let expected = || "a CUDA device, 0 or more".to_owned();
    let value = u64::from(device as u32);
    let wrong = || Error::BadValue { argument: "device", value, expected: expected() };
    if device >= 0 { Ok(()) } else { Err(wrong()) }
}
