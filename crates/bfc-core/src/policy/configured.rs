//! The promise that a pool's memory safety rests on.

use super::Policy;

/// A trusted policy that a pool can be built with.
///
/// # Safety
/// Callers read and write through the addresses of placements, so a policy guarantees:
///
/// - A placement lies in a region that was added and not removed, has at least the requested bytes and the requested
///   alignment, and overlaps no other live placement.
/// - A region is removed only when it has no live placement.
pub unsafe trait ConfiguredPolicy: Policy + Sized {
    /// The options of the policy.
    type Options: Clone + std::fmt::Debug + Send + Sync;

    /// Creates the policy without regions.
    fn configured(options: &Self::Options) -> Self;

    /// Creates the policy for a pool that grows on demand, for which other options may be better.
    #[must_use]
    fn configured_to_grow(options: &Self::Options) -> Self {
        Self::configured(options)
    }

    /// Returns the options with each other rule for cutting free memory, by name, for what-if answers.
    #[must_use]
    fn other_splits(options: &Self::Options) -> Vec<(&'static str, Self::Options)> {
        let _ = options;
        Vec::new()
    }
}
