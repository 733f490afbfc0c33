//! Dynamic libraries: loading, functions by name, and texts for status codes.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use crate::compute::LibraryProblem;

/// Loads the library with this path or name.
///
/// A loaded library stays loaded: unloading CUDA's libraries is slow, and some crash while devices are in use.
///
/// The caller allows the library's initializers to run.
///
/// # Errors
/// [`LibraryProblem::NotLoaded`] with the system's message.
pub(crate) fn open(path: &OsStr) -> Result<&'static Library, LibraryProblem> {
    static LOADED: Mutex<Option<HashMap<OsString, &'static Library>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(&library) = loaded.get(path) {
        return Ok(library);
    }
    // SAFETY: opening a library runs its initializers, which the caller allows.
    let library = unsafe { Library::new(path) }.map_err(|error| {
        let (words, path) = (words(&error), format!("{}: ", path.to_string_lossy()));
        // The caller names the library itself; the missing file may be one of its dependencies.
        let reason = words.strip_prefix(&path).map_or_else(|| words.clone(), str::to_owned);
        LibraryProblem::NotLoaded { reason }
    })?;
    let library: &'static Library = Box::leak(Box::new(library));
    loaded.insert(path.to_owned(), library);
    Ok(library)
}

/// Looks up a function.
///
/// The caller states the function's type as in the library's header.
///
/// # Errors
/// [`LibraryProblem::NotLoaded`] with the system's message.
pub(crate) fn function<T: Copy>(library: &Library, name: &CStr) -> Result<T, LibraryProblem> {
    // SAFETY: the function is of this type, as the caller says.
    let function = unsafe { library.get::<T>(name.to_bytes()) };
    function.map(|function| *function).map_err(|error| LibraryProblem::NotLoaded { reason: words(&error) })
}

/// The system's message, which the error's own text omits.
fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The library's text for a status, from its function `name`.
pub(crate) fn reason(library: &Library, name: &CStr, status: c_int) -> String {
    type Text = unsafe extern "C" fn(c_int) -> *const c_char;
    let Ok(text) = function::<Text>(library, name) else {
        return format!("status {status}");
    };
    // SAFETY: the function accepts any number.
    let text = unsafe { text(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: the libraries return static texts that end with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
