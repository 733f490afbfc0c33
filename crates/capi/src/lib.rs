//! The pools, accounts and reports of Highwater for C, as a shared and a static library.
//!
//! `include/bfc.h` declares the functions; a test generates it from the sources in [`ffi`]. The page `docs/c.md` shows
//! how to use them.
//!
//! Each exported function converts its arguments, calls one method inside a guard, and converts the
//! result. The guard turns errors and panics into a status and the thread's last error. No pointer of a caller is
//! trusted further than C requires: handles and blocks are looked up in tables, so stale ones are errors.
//!
//! ```
//! use std::ptr::null_mut;
//! let (mut pool, mut block) = (0, null_mut());
//! // SAFETY: the texts end with NUL, and the results are written to live variables.
//! unsafe {
//!     assert_eq!(bfc::bfc_pool_open(c"bfc:memory=host,limit=1MiB".as_ptr(), &mut pool), bfc::BFC_OK);
//!     let owner = c"net.weights".as_ptr();
//!     assert_eq!(bfc::bfc_allocate(pool, 1000, 64, owner, bfc::BFC_PARAMETER as u32, &mut block), bfc::BFC_OK);
//!     assert_eq!(bfc::bfc_pool_close(pool), bfc::BFC_ERROR_POOL_IN_USE);
//!     assert_eq!(bfc::bfc_free(pool, block), bfc::BFC_OK);
//!     assert_eq!(bfc::bfc_pool_close(pool), bfc::BFC_OK);
//! }
//! ```

mod config;
mod error;
mod exit;
pub mod ffi;
mod fork;
mod guard;
mod last_error;
mod live;
mod memory;
mod pool;
mod python;
mod run;
mod scopes;
mod status;
mod table;
mod text;

pub use ffi::*;
pub use status::bfc_status::{self, *};
