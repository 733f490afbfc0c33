//! The names of leaves: tensors that gradients are computed for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a tensor whose gradient is requested. The bits, highest first:
///
/// ```text
/// number of the leaf | 1 for a parameter | 16 bits: how often the leaf was converted
/// ```
///
/// The word alone tells whether a gradient belongs to an earlier type of a parameter, and whether it belongs to a parameter at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafId(pub(crate) u64);

impl LeafId {
    const BITS_OF_CONVERSIONS: u32 = 16;
    const PARAMETER: u64 = 1 << Self::BITS_OF_CONVERSIONS;

    /// The next leaf, for a plain tensor. Counting past the bits takes longer than any process runs.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << (Self::BITS_OF_CONVERSIONS + 1))
    }

    /// The next leaf, for a parameter.
    pub(crate) fn next_parameter() -> Self {
        Self(Self::next().0 | Self::PARAMETER)
    }

    /// Whether the leaf is a parameter, as opposed to a plain tensor that requires gradients.
    pub(crate) const fn is_parameter(self) -> bool {
        self.0 & Self::PARAMETER != 0
    }

    /// The leaf after one more conversion. It sorts right after this one; past the last number it is an unrelated leaf.
    pub(crate) fn converted(self) -> Self {
        let next = Self(self.0 + 1);
        if next.family() == self.family() { next } else { Self(Self::next().0 | self.0 & Self::PARAMETER) }
    }

    /// Equal for a leaf and all of its conversions.
    pub(crate) const fn family(self) -> u64 {
        self.0 >> Self::BITS_OF_CONVERSIONS
    }

    /// Whether it was converted to that.
    pub(crate) fn became(self, later: Self) -> bool {
        self < later && self.family() == later.family()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_told_from_what_it_became_and_from_all_others() {
        let (first, other) = (LeafId::next(), LeafId::next());
        let second = first.converted();
        let third = second.converted();
        assert!(first < second && second < third && third < other);
        assert!(first.became(second) && first.became(third) && second.became(third));
        assert!(
            !second.became(first) && !first.became(first) && !first.became(other) && !third.became(other)
        );
    }

    #[test]
    fn a_saturated_conversion_count_matches_no_leaf() {
        let mut leaf = LeafId::next();
        let other = LeafId::next();
        for _ in 0..(1 << LeafId::BITS_OF_CONVERSIONS) {
            let next = leaf.converted();
            assert!(next > leaf && next != other);
            leaf = next;
        }
        assert!(leaf > other && !other.became(leaf));
    }

    #[test]
    fn parameters_are_told_from_plain_leaves_after_conversions() {
        let (plain, mut parameter) = (LeafId::next(), LeafId::next_parameter());
        assert!(!plain.is_parameter() && parameter.is_parameter() && plain < parameter);
        assert!(!plain.converted().is_parameter());
        for _ in 0..=(1 << LeafId::BITS_OF_CONVERSIONS) {
            parameter = parameter.converted();
            assert!(parameter.is_parameter());
        }
    }
}
