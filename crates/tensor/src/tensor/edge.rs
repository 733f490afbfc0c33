//! Edges of the graph: where the gradient of a tensor goes.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::storage::leaf::LeafId;

/// Where the gradient of a tensor goes.
#[derive(Clone, Debug)]
pub(crate) enum GradEdge {
    /// To a leaf, which keeps it.
    Leaf(LeafId),
    /// Through the op that made the tensor.
    Node(Arc<dyn GradNode>),
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
            Self::Node(node) => node.since(),
        }
    }
}

/// A node of the graph of gradients, as the tensors and nodes that lead to it see it. The autograd layer above has the only
/// implementation, because a node knows ops.
pub(crate) trait GradNode: Any + fmt::Debug + Send + Sync {
    /// Nodes are numbered in the order of their creation.
    fn number(&self) -> u64;

    /// The smallest number of this node and all nodes that it leads to.
    fn since(&self) -> u64;
}
