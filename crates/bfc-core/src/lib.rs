//! Best-fit-with-coalescing memory pools over any address space, with exact accounts.
//!
//! An [`Allocator`] serves a [`Request`] with a [`Block`]; an [`Allocation`] frees its block on drop. The
//! [`BfcAllocator`] takes large regions from a [`SubAllocator`]: system memory, device memory, or addresses without
//! memory. It cuts them into chunks, allocates the smallest free chunk that fits, and merges free neighbors. The
//! algorithm works on addresses as plain numbers, so it also serves memory that the host cannot access.
//!
//! Every request carries a [`Tag`]. The pool keeps a [`Ledger`] of live bytes by owner and category under its own lock,
//! so the sums are exact at every event. An out-of-memory error carries an [`OomReport`] that names the holders.
//!
//! ```
//! use std::sync::Arc;
//! use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, Request};
//!
//! let config = BfcConfig::new(Bytes::mib(64));
//! let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
//! let weights = Allocation::new(&pool, &Request::new(1000))?;
//! assert_eq!(pool.stats().bytes_in_use, 1024);
//! drop(weights);
//! assert_eq!(pool.stats().bytes_in_use, 0);
//! # Ok::<(), bfc_core::AllocError>(())
//! ```

// First: the other modules use its macros.
#[macro_use]
mod base;

mod accounting;
mod allocator;
#[cfg(feature = "allocator-api2")]
mod collections;
mod packing;
mod policy;
mod pool;
mod registry;
pub mod sim;
mod source;
mod streams;
mod wrappers;

pub use accounting::*;
pub use allocator::*;
#[doc(hidden)]
pub use base::sync;
pub use base::*;
#[cfg(feature = "allocator-api2")]
pub use collections::*;
pub use packing::*;
pub use policy::*;
pub use pool::*;
pub use registry::*;
pub use source::*;
pub use streams::*;
pub use wrappers::*;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
