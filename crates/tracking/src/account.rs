//! Accounts of the bytes that ops, modules, phases and threads allocate from a pool.
//!
//! A [`Tracker`] belongs to one device. [`Tracker::begin`] starts an execution of an op, and [`OpRun::track`] returns a
//! [`TrackingAllocator`] for it. That allocator charges each block to its owner in the pool's ledger, counts what the
//! execution allocates, and lives until its last block is freed. When the op ends, the tracker adds the counts up. Events
//! go to the recorder, if one is on.
//!
//! Live bytes are not stored here. Reports read them from the pools.

mod accounted_pool;
mod allocator;
mod budget;
mod context;
mod execution;
mod local;
mod op_name;
mod report;
mod saved;
mod state;
mod steps;
mod totals;
mod tracker;
mod unlisted;

pub use accounted_pool::AccountedPool;
pub use allocator::{Record, Sizes, TrackingAllocator};
pub use budget::{Budget, LimitedGuard};
pub use context::{Context, ContextGuard, capture};
pub use op_name::op_name;
pub use totals::{OpTotals, ThreadTotals};
pub use tracker::{OpRun, Tracker};
