//! The version of the library.

use std::ffi::{CStr, c_char};

/// The version of the interface that this header describes. A program works with a library whose
/// bfc_abi_version() has the same value of BFC_ABI_MAJOR, and an equal or greater BFC_ABI_MINOR.
///
/// The major number rises if a function, a value or a structure changes or goes. The minor number rises if one is
/// added. Structures only grow at their end, and tell their size in their first member.
pub const BFC_ABI_MAJOR: u32 = 1;

/// See BFC_ABI_MAJOR.
pub const BFC_ABI_MINOR: u32 = 1;

/// The version of the package, with NUL.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Returns the version of the library, such as "0.1.0". Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_version() -> *const c_char {
    CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or_default().as_ptr()
}

/// Returns the version of the library's interface: 65536 * BFC_ABI_MAJOR + BFC_ABI_MINOR. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_abi_version() -> u32 {
    BFC_ABI_MAJOR << 16 | BFC_ABI_MINOR
}
