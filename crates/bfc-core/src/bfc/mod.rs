//! The best-fit-with-coalescing allocator.
//!
//! Memory comes from a source in few large regions, which are cut into chunks. A request takes the smallest free chunk
//! that fits, the lowest among equals, and gives back what it does not need; a freed chunk joins its free neighbours at
//! once. So the blocks of a training step find their places again in the next one.
//! Source: TensorFlow's `BFCAllocator`, after Doug Lea's malloc.

mod allocator;
mod arena;
mod bins;
mod chunk;
mod config;
mod dump;
mod frontier;
mod growth;
mod info;
mod invariants;
mod region;

pub use allocator::BfcAllocator;
pub use config::{BfcConfig, FractionError, SplitRule};
pub use frontier::TimingCounter;
pub use info::{BinInfo, ChunkInfo};
pub use invariants::{INVARIANTS, InvariantError};
