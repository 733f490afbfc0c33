//! Libraries that are called by their C interface: their functions by name, and their words for a status.

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;

/// A function of a library, or what the system says if it has none of that name.
///
/// The caller names the function's type as the library's header has it.
pub(crate) fn function<T: Copy>(library: &Library, name: &CStr) -> Result<T, String> {
    // SAFETY: the function is of this type, as the caller says.
    let function = unsafe { library.get::<T>(name.to_bytes()) };
    function.map(|function| *function).map_err(|error| error.to_string())
}

/// The library's words for a status, which its function `name` has.
pub(crate) fn reason(library: &Library, name: &CStr, status: c_int) -> String {
    type Text = unsafe extern "C" fn(c_int) -> *const c_char;
    let Ok(text) = function::<Text>(library, name) else {
        return format!("status {status}");
    };
    // SAFETY: any number may be asked about.
    let text = unsafe { text(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: libraries answer with a text of their own that ends with a zero and stays.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
