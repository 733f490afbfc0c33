//! The pool type and the configuration of each policy that has its own constructors.

mod auto_growth;
mod bfc;
mod buddy;
mod packed;
mod pytorch;

pub use auto_growth::{AutoGrowthAllocator, AutoGrowthConfig};
pub use bfc::{BfcAllocator, BfcConfig};
pub use buddy::{BuddyAllocator, BuddyConfig};
pub use packed::{PackedAllocator, PackedConfig};
pub use pytorch::{PytorchAllocator, PytorchConfig};
