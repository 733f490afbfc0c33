//! Best-fit-with-coalescing memory pools over any address space, with exact accounts.
//!
//! An [`Allocator`] answers a [`Request`] with a [`Block`]; an [`Allocation`] gives the block back when dropped. The
//! [`BfcAllocator`] takes large regions from a [`SubAllocator`] (system memory, a device's memory, bare addresses),
//! cuts them into chunks, hands out the smallest free chunk that fits, and joins neighbors when they come back. Its
//! algorithm works on addresses as plain numbers, so one code serves memory that the host cannot touch, and memory
//! that does not exist.
//!
//! Every request bears a [`Tag`]: the pool keeps a [`Ledger`] of live bytes by owner and category under its own lock,
//! so the sums are exact at every event, and an out-of-memory error carries an [`OomReport`] that names the holders.
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

mod accounting;
mod allocator;
mod base;
mod plan;
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
pub use plan::*;
pub use policy::*;
pub use pool::*;
pub use registry::*;
pub use source::*;
pub use streams::*;
pub use wrappers::*;
