//! Allocators without a placement policy.
//!
//! [`GuardAllocator`] detects writes outside of the blocks of another allocator, [`PassthroughAllocator`] takes each
//! block directly from a source, and [`HostAllocator`] calls the system allocator.
//! The first two keep the accounts of a pool, so reports look alike whichever allocator serves a device.

pub(crate) mod guard;
pub(crate) mod host;
pub(crate) mod passthrough;

pub use guard::*;
pub use host::HostAllocator;
pub use passthrough::*;
