//! Allocators that are not pools: [`GuardAllocator`] checks writes around the blocks of another allocator, and
//! [`PassthroughAllocator`] takes each block directly from a source.
//!
//! Both keep the same accounts as a pool, so reports of blocks and owners look alike whichever allocator serves a device.

pub(crate) mod guard;
pub(crate) mod host;
pub(crate) mod passthrough;

pub use guard::*;
pub use host::HostAllocator;
pub use passthrough::*;
