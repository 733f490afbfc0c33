//! The best-fit-with-coalescing policy.
//!
//! Regions are cut into chunks. A request takes the smallest free chunk that fits, the lowest among equals, and cuts
//! off the rest. A freed chunk merges with its free neighbors. The blocks of a training step thus return to the same
//! addresses. Source: TensorFlow's `BFCAllocator`, after Doug Lea's malloc.

mod arena;
mod bins;
mod chunk;
mod invariants;
mod options;
mod pending;
mod recent;
mod region;

pub use arena::Bfc;
pub(crate) use bins::{BIN_COUNT, bin_floor, bin_of};
pub(crate) use options::MAX_WASTE;
pub use options::{BfcOptions, CutRule, JoinRule, SplitRule};
