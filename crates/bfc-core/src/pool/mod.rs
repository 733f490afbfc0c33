//! Pools: a [`Policy`](crate::Policy) behind a lock, with a source of memory and accounts.
//!
//! A [`PolicyAllocator`] owns what all pools share: growth by regions, the accounts of live blocks, frees that become
//! reusable later, thread caches, and the steps before an out-of-memory error. The policy alone decides where a block
//! goes. A pool calls its source under its lock, so a source that calls back gets an error instead of a deadlock.

mod allocator;
mod cache;
mod config;
mod configs;
mod growth;
mod info;
mod invariants;
mod last_resort;
pub(crate) mod limit;
mod timing;

pub use allocator::PolicyAllocator;
pub use cache::ThreadCache;
pub use config::{FractionError, PoolConfig};
pub use configs::*;
pub use growth::GrowthRule;
pub use info::{BinInfo, ChunkInfo};
pub use last_resort::LastResort;
pub use timing::TimingCounter;
