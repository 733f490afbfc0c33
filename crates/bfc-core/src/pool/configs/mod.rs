//! The policies that a pool trusts, each with its pool type and its configuration.
//!
//! Callers write through the places that a policy returns, so a pool accepts only policies that implement the unsafe
//! trait [`ConfiguredPolicy`]. All implementations live in this folder.

mod auto_growth;
mod bfc;
mod buddy;
mod planned;

use crate::policy::Policy;

pub use auto_growth::{AutoGrowthAllocator, AutoGrowthConfig};
pub use bfc::{BfcAllocator, BfcConfig};
pub use buddy::{BuddyAllocator, BuddyConfig};
pub use planned::{PlannedAllocator, PlannedConfig};

/// A policy that a pool can be made with.
///
/// # Safety
/// Callers read and write through the places of a pool, so a policy promises: a place lies in a region that was added
/// and not taken away, has at least the bytes asked for, is aligned as asked, and overlaps no other place that was not
/// freed; and a region is only taken away when no place is left in it.
pub unsafe trait ConfiguredPolicy: Policy + Sized {
    /// What can be chosen of the policy.
    type Options: Clone + std::fmt::Debug + Send + Sync;

    /// The policy as chosen, without any region.
    fn configured(options: &Self::Options) -> Self;

    /// The same for a pool that takes memory as it needs it, where other choices may be better.
    #[must_use]
    fn configured_to_grow(options: &Self::Options) -> Self {
        Self::configured(options)
    }

    /// The same choice but for the rule that cuts free memory, for each other rule there is, by its name: to tell what
    /// another rule would have given.
    #[must_use]
    fn other_splits(options: &Self::Options) -> Vec<(&'static str, Self::Options)> {
        let _ = options;
        Vec::new()
    }
}
