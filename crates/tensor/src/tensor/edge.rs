//! Edges of the graph: where the gradient of a tensor goes.

use std::fmt;

use crate::autograd::Node;
use crate::storage::leaf::LeafId;
use crate::storage::shared::{Either, Shared, SharedOrNumber};

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
    pub(crate) fn since(&self) -> u64 {
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
