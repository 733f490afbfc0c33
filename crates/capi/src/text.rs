//! Texts from C, results to C, and the strings that callers free.

use std::collections::HashMap;
use std::ffi::c_char;
use std::slice;
use std::sync::{LazyLock, Mutex};

use bfc_core::sync::lock;

use crate::error::Error;
use crate::last_error::c_text;

/// The longest name of a scope or owner, in bytes.
pub(crate) const MAX_NAME: usize = 4096;

/// The longest configuration, path or mark, in bytes.
pub(crate) const MAX_TEXT: usize = 1 << 16;

/// Reads a text of at most `limit` bytes.
///
/// # Safety
/// `pointer` is null, or the bytes up to a NUL are readable and do not change while the text lives.
pub(crate) unsafe fn read<'a>(
    pointer: *const c_char,
    limit: usize,
    argument: &'static str,
) -> Result<&'a str, Error> {
    let bytes = pointer.cast::<u8>();
    if bytes.is_null() {
        return Err(Error::Null { argument });
    }
    let mut length = 0;
    loop {
        // SAFETY: no byte before this one is NUL, so the caller promises that it is readable.
        if unsafe { bytes.wrapping_add(length).read() } == 0 {
            break;
        }
        if length == limit {
            return Err(Error::TooLong { argument, limit });
        }
        length += 1;
    }
    // SAFETY: the loop has read these bytes, and the caller promises that they do not change.
    let bytes = unsafe { slice::from_raw_parts(bytes, length) };
    std::str::from_utf8(bytes).map_err(|_| Error::NotUtf8 { argument })
}

/// Reads an optional text: NULL is `None`.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_optional<'a>(
    pointer: *const c_char,
    limit: usize,
    argument: &'static str,
) -> Result<Option<&'a str>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises the same.
    unsafe { read(pointer, limit, argument) }.map(Some)
}

/// Checks a pointer for a result, before the function changes anything.
pub(crate) fn check_out<T>(out: *mut T, argument: &'static str) -> Result<(), Error> {
    if out.is_null() {
        return Err(Error::Null { argument });
    }
    if out.is_aligned() { Ok(()) } else { Err(Error::Unaligned { argument }) }
}

/// The strings that callers have not freed, by address.
static STRINGS: LazyLock<Mutex<HashMap<usize, Vec<u8>>>> = LazyLock::new(Mutex::default);

/// Returns a text to a caller, who frees it with [`free`].
pub(crate) fn give(text: &str) -> *mut c_char {
    let mut bytes = c_text(text).into_bytes_with_nul();
    // Moving a vector does not move its bytes.
    let string = bytes.as_mut_ptr().cast::<c_char>();
    lock(&STRINGS).insert(string.addr(), bytes);
    string
}

/// Frees a string. NULL has no effect.
pub(crate) fn free(string: *mut c_char) -> Result<(), Error> {
    if string.is_null() {
        return Ok(());
    }
    let freed = lock(&STRINGS).remove(&string.addr());
    freed.map(drop).ok_or(Error::NotAString { address: string.addr() })
}
