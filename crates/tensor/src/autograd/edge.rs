//! Edges of the graph: where the gradient of a tensor goes, and the names of leaves.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::node::Node;
use crate::shared::{Either, Shared, SharedOrNumber};

/// Where the gradient of a tensor goes. One word, so that a tensor is two.
#[derive(Clone)]
pub(crate) struct GradEdge(SharedOrNumber<Node>);

/// To a leaf, which keeps it, or through the op that made the tensor.
#[derive(Debug)]
pub(crate) enum Target<N> {
    Leaf(LeafId),
    Node(N),
}

impl GradEdge {
    pub(crate) fn to_leaf(leaf: LeafId) -> Self {
        Self(SharedOrNumber::number(leaf.0))
    }

    pub(crate) const fn to_node(node: Shared<Node>) -> Self {
        Self(SharedOrNumber::shared(node))
    }

    #[inline(always)]
    pub(crate) fn target(&self) -> Target<&Shared<Node>> {
        match self.0.get() {
            Either::Shared(node) => Target::Node(node),
            Either::Number(leaf) => Target::Leaf(LeafId(leaf)),
        }
    }

    #[inline(always)]
    pub(crate) fn into_target(self) -> Target<Shared<Node>> {
        match self.0.take() {
            Either::Shared(node) => Target::Node(node),
            Either::Number(leaf) => Target::Leaf(LeafId(leaf)),
        }
    }

    /// The leaf, if it leads straight to one.
    #[inline]
    pub(crate) fn leaf(&self) -> Option<LeafId> {
        match self.target() {
            Target::Leaf(leaf) => Some(leaf),
            Target::Node(_) => None,
        }
    }

    /// The least number of the nodes that it leads to; of a leaf, which is read by nodes alone, none is less.
    pub(super) fn since(&self) -> u64 {
        match self.target() {
            Target::Leaf(_) => u64::MAX,
            Target::Node(node) => node.since,
        }
    }
}

impl fmt::Debug for GradEdge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target().fmt(f)
    }
}

/// Names a tensor that gradients are asked for: a number, and in the low bits how often it was converted since. So it can be told
/// that a gradient is of what a parameter was before, without a list of all that it has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafId(u64);

impl LeafId {
    const BITS_OF_CONVERSIONS: u32 = 16;

    /// One more leaf, after all that there are: it takes longer than anybody has to count past the bits of an edge.
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << Self::BITS_OF_CONVERSIONS)
    }

    /// What it is once it was converted: another leaf, right after this one. That past the last number is one like any other.
    pub(super) fn converted(self) -> Self {
        let next = Self(self.0 + 1);
        if next.is_of(self) { next } else { Self::next() }
    }

    /// Whether both are what one leaf was converted to.
    const fn is_of(self, other: Self) -> bool {
        self.0 >> Self::BITS_OF_CONVERSIONS == other.0 >> Self::BITS_OF_CONVERSIONS
    }

    /// Whether it was converted to that.
    pub(super) fn became(self, later: Self) -> bool {
        self < later && self.is_of(later)
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
    fn a_leaf_that_was_converted_too_often_to_be_counted_is_no_other_one() {
        let mut leaf = LeafId::next();
        let other = LeafId::next();
        for _ in 0..(1 << LeafId::BITS_OF_CONVERSIONS) {
            let next = leaf.converted();
            assert!(next > leaf && next != other);
            leaf = next;
        }
        assert!(leaf > other && !other.became(leaf));
    }
}
