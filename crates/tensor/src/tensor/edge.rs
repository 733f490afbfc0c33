//! Edges of the gradient graph.

use std::sync::Arc;

use crate::autograd::Node;
use crate::storage::leaf::LeafId;

/// The destination of a tensor's gradient.
#[derive(Clone, Debug)]
pub(crate) enum GradEdge {
    /// A leaf, which receives the gradient.
    Leaf(LeafId),
    /// The op that computed the tensor.
    Node(Arc<Node>),
}

impl GradEdge {
    /// Returns the leaf, if the edge leads directly to one.
    pub(crate) const fn leaf(&self) -> Option<LeafId> {
        match self {
            Self::Leaf(leaf) => Some(*leaf),
            Self::Node(_) => None,
        }
    }

    /// Returns the smallest number of all reachable nodes; `u64::MAX` for a leaf.
    pub(crate) fn since(&self) -> u64 {
        match self {
            Self::Leaf(_) => u64::MAX,
            Self::Node(node) => node.since,
        }
    }
}
