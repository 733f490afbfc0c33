//! Best-fit-with-coalescing memory pools over any address space, with exact accounts.
//!
//! An [`Allocator`] answers a [`Request`] with a [`Block`]; an [`Allocation`] gives the block back when dropped. The
//! [`BfcAllocator`] takes large regions from a [`SubAllocator`] (system memory, a device's memory, bare addresses),
//! cuts them into chunks, hands out the smallest free chunk that fits, and joins neighbours when they come back. Its
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

mod address_only;
mod allocator;
mod amount;
mod attributes;
mod auto_growth;
mod best_fit;
mod bfc;
mod buddy;
mod choice;
mod driver;
pub mod environment;
mod error;
mod guard;
mod host;
mod last_resort;
mod ledger;
mod memory;
mod oom;
#[doc(hidden)]
pub mod order;
mod owner;
mod passthrough;
mod plan;
mod policy;
mod pool;
mod region_table;
mod registry;
mod retry;
mod room;
pub mod sim;
mod slots;
mod sorted;
mod stats;
mod streams;
mod sub_allocator;
#[doc(hidden)]
pub mod sync;
mod units;
mod virtual_memory;
mod visitors;

pub use address_only::*;
pub use allocator::{
    Allocation, Allocator, AllocatorSnapshot, Contents, DEFAULT_ALIGNMENT, ExpectedFrees, Request,
    failed_drops,
};
pub use amount::{Amount, ParseAmountError, Share};
pub use attributes::{AllocationAttributes, AllocatorAttributes};
pub use auto_growth::*;
pub use bfc::*;
pub use buddy::*;
pub use choice::{AllocatorChoice, ParseChoiceError};
pub use driver::*;
pub use environment::{Environment, EnvironmentError, UnknownVariable};
pub use error::{
    AllocError, AttributeError, BlockError, RecordError, RegistryError, SourceError, VisitorError,
};
pub use guard::*;
pub use host::*;
pub use last_resort::LastResort;
pub use ledger::{Category, Ledger, OwnerBytes, Tag};
pub use memory::{AddressSpace, Block, MemoryKind, PoolId, Span};
pub use oom::{Budget, Checkpoint, Holding, Holdings, OomReport, Subject, Verdict, WhatIf};
pub use owner::OwnerId;
pub use passthrough::*;
pub use plan::*;
pub use policy::*;
pub use pool::*;
pub use registry::*;
pub use retry::*;
pub use stats::{RetryStats, Stats};
pub use streams::*;
pub use sub_allocator::SubAllocator;
pub use units::{Bytes, GIB, KIB, MIB, ParseBytesError};
pub use virtual_memory::VirtualMemory;
pub use visitors::*;
