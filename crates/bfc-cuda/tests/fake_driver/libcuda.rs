//! A CUDA driver library without CUDA: what `tests/cuda.rs` loads on machines that have no other.
//!
//! It knows two devices of 1 GiB and the functions that bfc-cuda calls, and is as strict as the real one about contexts:
//! memory calls work only on threads where a context is current. The environment makes it misbehave:
//! `FAKE_CUDA_INIT` is what starting it returns, `FAKE_CUDA_DEVICES` how many devices it shows. Built with
//! `--cfg incomplete` it lacks a function.

#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;

const TOTAL: usize = 1 << 30;
const BASE: u64 = 0x7f00_0000_0000;

thread_local! {
    /// The context current on this thread: the device's number plus one, or 0.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Device memory that is out: size and device, by address.
static DEVICE: Mutex<BTreeMap<u64, (usize, usize)>> = Mutex::new(BTreeMap::new());
/// Pinned memory that is out: size, by address.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn setting(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

fn devices() -> c_int {
    setting("FAKE_CUDA_DEVICES").unwrap_or(2) as c_int
}

fn context() -> Result<usize, u32> {
    match CURRENT.get() {
        0 => Err(INVALID_CONTEXT),
        context => Ok(context),
    }
}

/// Answers as a driver does: an error code, and the value at the place that the caller named.
unsafe fn answer<T>(place: *mut T, value: Result<T, u32>) -> u32 {
    match value {
        Ok(value) => {
            // SAFETY: callers name a place for the answer, as the driver's interface asks.
            unsafe { place.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

macro_rules! driver_functions {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 $body
    )*};
}

driver_functions! {
    cuInit(_flags: c_uint) {
        setting("FAKE_CUDA_INIT").unwrap_or(SUCCESS)
    }
    cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(version, Ok(13_000)) }
    }
    cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(count, Ok(devices())) }
    }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(device, if ordinal < devices() { Ok(ordinal) } else { Err(INVALID_DEVICE) }) }
    }
    cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) {
        let text = c"Fake Device";
        if text.count_bytes() >= room as usize {
            return INVALID_VALUE;
        }
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr(), text.count_bytes() + 1) };
        SUCCESS
    }
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        // Compute capability 9.0; everything else is not there.
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(value, Ok(if attribute == 75 { 9 } else { 0 })) }
    }
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(bytes, Ok(TOTAL)) }
    }
    cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(context, Ok(device as usize + 1)) }
    }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        SUCCESS
    }
    cuCtxGetCurrent(context: *mut usize) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(context, Ok(CURRENT.get())) }
    }
    cuCtxSetCurrent(context: usize) {
        CURRENT.set(context);
        SUCCESS
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let used = context().map(|context| {
            let live = DEVICE.lock().unwrap();
            live.values().filter(|(_, owner)| *owner == context).map(|(bytes, _)| bytes).sum::<usize>()
        });
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        let code = unsafe { answer(free, used.map(|used| TOTAL - used)) };
        if code != SUCCESS {
            return code;
        }
        // SAFETY: as above.
        unsafe { answer(total, Ok(TOTAL)) }
    }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let allocate = |context| {
            let mut live = DEVICE.lock().unwrap();
            let used: usize = live.values().filter(|(_, owner)| *owner == context).map(|(bytes, _)| bytes).sum();
            match bytes {
                0 => Err(INVALID_VALUE),
                bytes if bytes > TOTAL - used => Err(OUT_OF_MEMORY),
                bytes => {
                    let end = live.last_key_value().map_or(BASE, |(address, (bytes, _))| address + *bytes as u64);
                    let address = end.next_multiple_of(512);
                    live.insert(address, (bytes, context));
                    Ok(address)
                }
            }
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(address, context().and_then(allocate)) }
    }
    cuMemFree_v2(address: u64) {
        match (context(), DEVICE.lock().unwrap().remove(&address)) {
            (Err(code), _) => code,
            (Ok(_), None) => INVALID_VALUE,
            (Ok(_), Some(_)) => SUCCESS,
        }
    }
    cuMemFreeHost(pointer: *mut c_void) {
        match (context(), PINNED.lock().unwrap().remove(&pointer.addr())) {
            (Err(code), _) => code,
            (Ok(_), None) => INVALID_VALUE,
            (Ok(_), Some(bytes)) => {
                // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
                unsafe { dealloc(pointer.cast(), layout(bytes)) };
                SUCCESS
            }
        }
    }
    cuGetErrorName(_code: u32, _text: *mut *const c_char) {
        INVALID_VALUE
    }
    cuGetErrorString(_code: u32, _text: *mut *const c_char) {
        INVALID_VALUE
    }
}

#[cfg(not(incomplete))]
driver_functions! {
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        if context().is_err() {
            return INVALID_CONTEXT;
        }
        if bytes == 0 {
            return INVALID_VALUE;
        }
        if bytes > TOTAL {
            return OUT_OF_MEMORY;
        }
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        let memory = unsafe { alloc(layout(bytes)) };
        // What the driver leaves in there is not zero, so that nobody comes to rely on it.
        unsafe { memory.write_bytes(0xcd, bytes) };
        PINNED.lock().unwrap().insert(memory.expose_provenance(), bytes);
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(pointer, Ok(memory.cast())) }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).unwrap()
}
