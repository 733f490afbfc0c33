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
mod timed;

pub use arena::Bfc;
pub(crate) use bins::{BIN_COUNT, bin_floor, bin_of};
pub(crate) use options::MAX_WASTE;
pub use options::{BfcOptions, CutRule, JoinRule, SplitRule};
pub use timed::TimedPolicy;
pub(crate) use timed::Timing;

use crate::policy::ConfiguredPolicy;

// SAFETY: the chunks of a region cover it without overlap. A placement is one chunk with the requested alignment, and a
// region leaves only as one free chunk. `invariants.rs` checks these rules after every step of the tests.
unsafe impl ConfiguredPolicy for Bfc {
    type Options = BfcOptions;

    fn configured(options: &BfcOptions) -> Self {
        Self::new(*options)
    }

    fn configured_to_grow(options: &BfcOptions) -> Self {
        Self::new(BfcOptions { cut: CutRule::Low, ..*options })
    }

    fn other_splits(options: &BfcOptions) -> Vec<(&'static str, BfcOptions)> {
        let (name, split) = match options.split {
            SplitRule::Always => ("twice", BfcOptions::tensorflow().split),
            SplitRule::Twice { .. } => ("always", SplitRule::Always),
        };
        vec![(name, BfcOptions { split, ..*options })]
    }
}
