//! Edges of the graph: where the gradient of a tensor goes.

use std::sync::Arc;

use crate::autograd::Node;
use crate::storage::leaf::LeafId;

/// Where the gradient of a tensor goes.
#[derive(Clone, Debug)]
pub(crate) enum GradEdge {
    /// To a leaf, which keeps it.
    Leaf(LeafId),
    /// Through the op that made the tensor.
    Node(Arc<Node>),
}

impl GradEdge {
    /// The leaf, if the edge leads directly to one.
    pub(crate) const fn leaf(&self) -> Option<LeafId> {
        match self {
            Self::Leaf(leaf) => Some(*leaf),
            Self::Node(_) => None,
        }
    }

    /// The smallest number of the nodes that the edge leads to; `u64::MAX` for a leaf.
    pub(crate) fn since(&self) -> u64 {
        match self {
            Self::Leaf(_) => u64::MAX,
            Self::Node(node) => node.since,
        }
    }
}
