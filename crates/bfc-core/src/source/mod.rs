//! Sources of memory: [`SubAllocator`] and its implementations.
//!
//! A pool takes large regions from a source and returns them rarely. [`HostMemory`] uses the system allocator,
//! [`AddressOnlyMemory`] issues addresses without memory, [`DeviceMemory`] and [`PinnedMemory`] call a [`Driver`], and
//! [`VirtualMemory`] maps device memory into one reserved range. [`Visitors`] observe regions as they come and go.
//! [`UsableMemory`] is the memory that this process may use.

pub(crate) mod address_only;
pub(crate) mod driver;
pub(crate) mod error;
pub(crate) mod host;
pub(crate) mod stream;
pub(crate) mod sub_allocator;
pub(crate) mod usable;
pub(crate) mod virtual_memory;
pub(crate) mod visitors;

pub use address_only::*;
pub use driver::*;
pub use error::{SourceError, VisitorError};
pub use host::HostMemory;
pub use stream::{Stream, StreamEvent};
pub use sub_allocator::SubAllocator;
pub use usable::{MemoryBound, UsableMemory};
pub use virtual_memory::VirtualMemory;
pub use visitors::*;
