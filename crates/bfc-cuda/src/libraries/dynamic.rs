//! Libraries that are called by their C interface: loaded once, their functions by name, and their words for a status.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

/// The library at a path, or of a name that the system looks for, or what the system says.
///
/// Once loaded it stays so: unloading CUDA's libraries takes a while, and not all of them bear it while devices are in use.
///
/// The caller names a library whose initialisers may run.
pub(crate) fn open(path: &OsStr) -> Result<&'static Library, String> {
    static LOADED: Mutex<Option<HashMap<OsString, &'static Library>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(&library) = loaded.get(path) {
        return Ok(library);
    }
    // SAFETY: opening a library runs its initialisers, as the caller wants.
    let library = unsafe { Library::new(path) }.map_err(|error| {
        let (words, path) = (words(&error), format!("{}: ", path.to_string_lossy()));
        // Whoever tells it says first which library it is about; what is missing may be another, which this one needs.
        words.strip_prefix(&path).map_or_else(|| words.clone(), str::to_owned)
    })?;
    let library: &'static Library = Box::leak(Box::new(library));
    loaded.insert(path.to_owned(), library);
    Ok(library)
}

/// A function of a library, or what the system says if it has none of that name.
///
/// The caller names the function's type as the library's header has it.
pub(crate) fn function<T: Copy>(library: &Library, name: &CStr) -> Result<T, String> {
    // SAFETY: the function is of this type, as the caller says.
    let function = unsafe { library.get::<T>(name.to_bytes()) };
    function.map(|function| *function).map_err(|error| words(&error))
}

/// What the system says, which the error itself does not.
fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
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
