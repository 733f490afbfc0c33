//! Memory of NumPy's arrays in a pool of host memory.
//!
//! NumPy frees the data of an array with the handler that the array was made with, so that handlers may change at any time.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::{Mutex, PoisonError};

use bfc_core::Category;

use super::{User, child, holder, pool_of};
use crate::error::Error;
use crate::fork;
use crate::guard::guard;
use crate::pool::{BlockRequest, PoolEntry};
use crate::status::bfc_status;
use crate::table;

/// The owner of arrays in the current scope.
const OWNER: &str = "numpy";

/// NumPy's `PyDataMem_Handler`, version 1 (NEP 49).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Handler {
    name: [c_char; 127],
    version: u8,
    /// The handle of the pool, as an address.
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// The addresses of the handlers by pool. Never freed, because arrays refer to them.
static HANDLERS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// Returns the handler of a pool of host memory. Each call for one pool returns the same.
pub(crate) fn numpy_handler(handle: u64) -> Result<*const c_void, Error> {
    let mut name = [0; 127];
    table::with_pool(handle, |pool| {
        User::Numpy.check(pool)?;
        let bytes = format!("bfc:{}", pool.name());
        // The last character stays NUL.
        name.iter_mut().take(126).zip(bytes.bytes()).for_each(|(to, byte)| *to = byte as c_char);
        Ok(())
    })?;
    let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let address = *handlers.entry(handle).or_insert_with(|| {
        let handler = Handler {
            name,
            version: 1,
            context: without_provenance_mut(handle as usize),
            malloc: handler_malloc,
            calloc: handler_calloc,
            realloc: handler_realloc,
            free: handler_free,
        };
        std::ptr::from_ref(Box::leak(Box::new(handler))).expose_provenance()
    });
    Ok(with_exposed_provenance_mut::<c_void>(address).cast_const())
}

extern "C" fn handler_malloc(context: *mut c_void, bytes: usize) -> *mut c_void {
    if fork::is_child() {
        return child::allocate(1, bytes, false);
    }
    address_or_null(|| allocate(context.addr() as u64, bytes, false))
}

extern "C" fn handler_calloc(context: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    if fork::is_child() {
        return child::allocate(count, bytes, true);
    }
    address_or_null(|| allocate(context.addr() as u64, product(count, bytes)?, true))
}

extern "C" fn handler_realloc(context: *mut c_void, data: *mut c_void, bytes: usize) -> *mut c_void {
    if fork::is_child() {
        // SAFETY: NumPy does not use the data during the call, nor after a success.
        return unsafe { child::reallocate(data, bytes) };
    }
    // SAFETY: NumPy does not use the data during the call, nor after a success.
    address_or_null(|| table::with_pool(context.addr() as u64, |pool| unsafe { resize(pool, data, bytes) }))
}

extern "C" fn handler_free(context: *mut c_void, data: *mut c_void, _bytes: usize) {
    if fork::is_child() {
        // SAFETY: NumPy does not use the data any more.
        return unsafe { child::free(data) };
    }
    let free = |pool: &std::sync::Arc<PoolEntry>| {
        // SAFETY: NumPy does not use the data any more.
        unsafe { pool.free(data.addr() as u64) }
    };
    guard(|| table::with_pool(context.addr() as u64, free));
}

/// Allocates from the pool that was chosen for NumPy.
pub(crate) fn numpy_allocate(count: usize, bytes: usize, zeroed: bool) -> *mut c_void {
    if fork::is_child() {
        return child::allocate(count, bytes, zeroed);
    }
    address_or_null(|| allocate(pool_of(User::Numpy)?, product(count, bytes)?, zeroed))
}

/// Resizes a block of the pool that has it.
pub(crate) fn numpy_reallocate(data: *mut c_void, bytes: usize) -> *mut c_void {
    if data.is_null() {
        return numpy_allocate(1, bytes, false);
    }
    if fork::is_child() {
        // SAFETY: NumPy does not use the data during the call, nor after a success.
        return unsafe { child::reallocate(data, bytes) };
    }
    address_or_null(|| {
        let pool = holder(User::Numpy, data.addr() as u64)?;
        // SAFETY: NumPy does not use the data during the call, nor after a success.
        unsafe { resize(&pool, data, bytes) }
    })
}

/// Frees a block in the pool that has it.
pub(crate) fn numpy_free(data: *mut c_void) {
    if fork::is_child() {
        // SAFETY: NumPy does not use the data any more.
        return unsafe { child::free(data) };
    }
    guard(|| {
        let pool = holder(User::Numpy, data.addr() as u64)?;
        // SAFETY: NumPy does not use the data any more.
        unsafe { pool.free(data.addr() as u64) }
    });
}

fn product(count: usize, bytes: usize) -> Result<usize, Error> {
    let expected = || "a product of count and size that fits the address space".to_owned();
    let wrong = || Error::BadValue { argument: "count", value: count as u64, expected: expected() };
    count.checked_mul(bytes).ok_or_else(wrong)
}

/// Allocates at least one byte: NumPy takes NULL as a failure.
fn allocate(handle: u64, bytes: usize, zeroed: bool) -> Result<u64, Error> {
    table::with_pool(handle, |pool| {
        User::Numpy.check(pool)?;
        let (bytes, owner) = (bytes.max(1), Some(OWNER));
        let request =
            BlockRequest { bytes: bytes as u64, alignment: 0, owner, category: Category::default() };
        let address = pool.allocate(&request)?;
        if zeroed {
            let data = with_exposed_provenance_mut::<u8>(address as usize);
            // SAFETY: the new block is host memory of this many bytes.
            unsafe { data.write_bytes(0, bytes) };
        }
        Ok(address)
    })
}

/// # Safety
/// Nothing uses the data during the call, and nothing uses it after a success.
unsafe fn resize(pool: &PoolEntry, data: *mut c_void, bytes: usize) -> Result<u64, Error> {
    // SAFETY: as the caller says.
    unsafe { pool.reallocate(data.addr() as u64, bytes.max(1) as u64) }
}

/// Returns the address, or NULL after an error or a panic, which becomes the last error.
pub(super) fn address_or_null(call: impl FnOnce() -> Result<u64, Error>) -> *mut c_void {
    let mut address = 0;
    let status = guard(|| {
        address = call()?;
        Ok(())
    });
    if status == bfc_status::BFC_OK { with_exposed_provenance_mut(address as usize) } else { null_mut() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls the handler as NumPy does.
    #[test]
    fn a_handler_allocates_zeroes_resizes_and_frees() {
        let pool = table::open("memory=host,limit=1MiB,retry_ms=0,name=handler").unwrap();
        let address = numpy_handler(pool).unwrap();
        assert_eq!(numpy_handler(pool).unwrap(), address);
        // SAFETY: the address is that of a handler, which is never freed.
        let handler = unsafe { &*address.cast::<Handler>() };
        assert_eq!((size_of::<Handler>(), handler.version), (168, 1));
        let context = handler.context;
        let read = |data: *mut c_void, at: usize| {
            // SAFETY: the tests have so many bytes there.
            unsafe { data.cast::<u8>().wrapping_add(at).read() }
        };
        let zeros = (handler.calloc)(context, 100, 8);
        assert_eq!((zeros.addr() % 64, read(zeros, 0), read(zeros, 799)), (0, 0, 0));
        // SAFETY: the block has 800 bytes.
        unsafe { zeros.cast::<u8>().write(7) };
        let moved = (handler.realloc)(context, zeros, 5000);
        assert_eq!(read(moved, 0), 7);
        let empty = (handler.malloc)(context, 0);
        assert!(!empty.is_null());
        let requested =
            || table::with_pool(pool, |pool| Ok(pool.allocator().stats().bytes_requested)).unwrap();
        assert_eq!(requested(), 5001);
        // Failures return NULL and change nothing.
        assert!((handler.calloc)(context, usize::MAX, 2).is_null());
        assert!((handler.malloc)(context, 2 << 20).is_null());
        let text = crate::last_error::message();
        // SAFETY: the text ends with NUL and lives until the thread's next failure.
        let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap();
        assert!(text.contains("handler"), "{text}");
        let mut other = 1_u64;
        let foreign = (&raw mut other).cast::<c_void>();
        assert!((handler.realloc)(context, foreign, 10).is_null());
        (handler.free)(context, foreign, 8);
        assert_eq!(crate::last_error::status(), bfc_status::BFC_ERROR_INVALID_POINTER);
        assert_eq!((requested(), other), (5001, 1));
        (handler.free)(context, empty, 0);
        (handler.free)(context, moved, 5000);
        (handler.free)(context, null_mut(), 0);
        table::close(pool).unwrap();
        // The pool is gone, and its handler fails.
        assert!((handler.malloc)(context, 8).is_null());
    }
}
