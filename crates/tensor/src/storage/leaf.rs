//! Identifiers of leaf tensors: tensors that gradients are computed for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a tensor that requires a gradient. The bits, highest first:
///
/// ```text
/// number of the leaf | 1 for a parameter | 16 bits: number of conversions
/// ```
///
/// The word alone tells whether the leaf is a parameter, and whether a gradient precedes a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafId(pub(crate) u64);

impl LeafId {
    const CONVERSION_BITS: u32 = 16;
    const PARAMETER: u64 = 1 << Self::CONVERSION_BITS;

    /// Returns the next identifier for a plain tensor. The counter cannot overflow within the lifetime of a
    /// process.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << (Self::CONVERSION_BITS + 1))
    }

    /// Returns the next identifier for a parameter.
    pub(crate) fn next_parameter() -> Self {
        Self(Self::next().0 | Self::PARAMETER)
    }

    /// Returns whether the leaf is a parameter, not a plain tensor that requires gradients.
    pub(crate) const fn is_parameter(self) -> bool {
        self.0 & Self::PARAMETER != 0
    }

    /// Returns the identifier after one more conversion. It sorts right after this one. After 65,535
    /// conversions it is unrelated to this one.
    pub(crate) fn converted(self) -> Self {
        let next = Self(self.0 + 1);
        if next.identity() == self.identity() {
            next
        } else {
            Self(Self::next().0 | self.0 & Self::PARAMETER)
        }
    }

    /// Returns a number that a leaf shares with all of its conversions.
    pub(crate) const fn identity(self) -> u64 {
        self.0 >> Self::CONVERSION_BITS
    }

    /// Returns whether `later` is a conversion of this leaf.
    pub(crate) fn was_converted_to(self, later: Self) -> bool {
        self < later && self.identity() == later.identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_differs_from_its_conversions_and_other_leaves() {
        let (first, other) = (LeafId::next(), LeafId::next());
        let second = first.converted();
        let third = second.converted();
        assert!(first < second && second < third && third < other);
        assert!(
            first.was_converted_to(second) && first.was_converted_to(third) && second.was_converted_to(third)
        );
        assert!(
            !second.was_converted_to(first)
                && !first.was_converted_to(first)
                && !first.was_converted_to(other)
                && !third.was_converted_to(other)
        );
    }

    #[test]
    fn a_leaf_stays_unique_after_too_many_conversions() {
        let mut leaf = LeafId::next();
        let other = LeafId::next();
        for _ in 0..(1 << LeafId::CONVERSION_BITS) {
            let next = leaf.converted();
            assert!(next > leaf && next != other);
            leaf = next;
        }
        assert!(leaf > other && !other.was_converted_to(leaf));
    }

    #[test]
    fn conversions_keep_whether_a_leaf_is_a_parameter() {
        let (plain, mut parameter) = (LeafId::next(), LeafId::next_parameter());
        assert!(!plain.is_parameter() && parameter.is_parameter() && plain < parameter);
        assert!(!plain.converted().is_parameter());
        for _ in 0..=(1 << LeafId::CONVERSION_BITS) {
            parameter = parameter.converted();
            assert!(parameter.is_parameter());
        }
    }
}
