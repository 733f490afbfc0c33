//! Slices for programs that use cudarc, in memory of a pool.
//!
//! ```text
//! program ── PoolStream ── alloc, alloc_zeros, clone_htod ──> PoolSlice ── Allocation ── pool ── cuMemAlloc
//!                │                                               │
//!                └── derefs to CudaStream                        └── CudaSlice, which never frees
//! ```
//!
//! A [`PoolSlice`] lends cudarc a `CudaSlice` of its block, so that views, copies, kernel arguments and the events of
//! cudarc work as for memory of cudarc. Dropping it takes the `CudaSlice` apart without a free, and frees the block in
//! the pool.

mod arguments;
mod error;
mod slice;
mod stream;

pub use error::PoolSliceError;
pub use slice::PoolSlice;
pub use stream::PoolStream;
