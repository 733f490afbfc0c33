//! Allocators without a placement policy.
//!
//! [`GuardAllocator`] detects writes outside of the blocks of another allocator, and [`PassthroughAllocator`] takes each
//! block directly from a source. Both keep the accounts of a pool, so reports look alike whichever allocator serves a
//! device.

pub(crate) mod guard;
pub(crate) mod passthrough;

pub use guard::*;
pub use passthrough::*;
