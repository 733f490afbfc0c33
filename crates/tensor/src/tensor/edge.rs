//! Edges of the gradient graph.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::storage::leaf::LeafId;

/// The destination of a tensor's gradient.
#[derive(Clone, Debug)]
pub(crate) enum GradEdge {
    /// A leaf, which receives the gradient.
    Leaf(LeafId),
    /// The op that computed the tensor.
    Node(Arc<dyn GradNode>),
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
            Self::Node(node) => node.since(),
        }
    }
}

/// A node of the gradient graph, as seen from tensors and later nodes. Autograd, the layer above, has the
/// only implementation, because a node refers to ops.
pub(crate) trait GradNode: Any + fmt::Debug + Send + Sync {
    /// Returns the node's number. Nodes are numbered in the order of their creation.
    fn number(&self) -> u64;

    /// Returns the smallest number of this node and all reachable nodes.
    fn since(&self) -> u64;
}
