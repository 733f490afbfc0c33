//! Pools: a placement policy behind a lock, with a source of memory below it and accounts beside it.
//!
//! What all pools share stands here once: growth by regions, the account of each live block, the ledger by owner,
//! frees that become reusable later, the order of steps before an out-of-memory error, and what a pool says of its
//! inside. Where a block goes is the [`Policy`](crate::Policy)'s affair alone.

mod allocator;
mod cache;
mod config;
mod configs;
mod dump;
mod frontier;
mod growth;
mod info;
mod invariants;
mod last_resort;

pub use allocator::PolicyAllocator;
pub use cache::ThreadCache;
pub use config::{FractionError, PoolConfig};
pub use configs::*;
pub use frontier::TimingCounter;
pub use growth::GrowthRule;
pub use info::{BinInfo, ChunkInfo};
pub use invariants::{INVARIANTS, InvariantError};
pub use last_resort::LastResort;
