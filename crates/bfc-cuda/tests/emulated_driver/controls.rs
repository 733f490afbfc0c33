//! Functions of the emulated driver for tests, in the process that loads it.

#![allow(dead_code, reason = "each suite uses a part")]

use libloading::Library;

/// Looks up a function of the emulated driver.
fn function<T: Copy>(name: &str) -> T {
    // SAFETY: the library is the emulated driver.
    let driver = unsafe { Library::new("libcuda.so") }.unwrap();
    // SAFETY: the callers below state the types of the functions.
    let function = *unsafe { driver.get::<T>(name.as_bytes()) }.unwrap();
    // The library stays loaded.
    std::mem::forget(driver);
    function
}

/// The number of live objects: memory, handles and contexts, including a current one.
pub(crate) fn live_objects() -> usize {
    function::<extern "C" fn() -> usize>("emulated_live")()
}

/// The peak of pinned memory, in bytes.
pub(crate) fn peak_pinned_bytes() -> usize {
    function::<extern "C" fn() -> usize>("emulated_peak_pinned")()
}

/// The number of calls of `cuMemAlloc` and of `cuMemFree`.
pub(crate) fn allocations_and_frees() -> (usize, usize) {
    let count = |name| function::<extern "C" fn() -> usize>(name)();
    (count("emulated_allocations"), count("emulated_frees"))
}

/// The allocated bytes of a device.
pub(crate) fn used_bytes(ordinal: i32) -> usize {
    function::<extern "C" fn(i32) -> usize>("emulated_used")(ordinal)
}

/// Makes all later calls to a device fail, as after an illegal address.
pub(crate) fn lose(ordinal: i32) {
    function::<extern "C" fn(i32)>("emulated_lose")(ordinal);
}
