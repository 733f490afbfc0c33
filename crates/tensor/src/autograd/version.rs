//! Whether the values that a graph was recorded with are those of now.
//!
//! A buffer that a graph reads is never written: a parameter that changes meanwhile goes on in a copy. So a backward that comes
//! after the change still has the gradients of its own forward, but to step along them from the new values is an error of the
//! program far more often than it is meant, and the copy takes memory. It is refused therefore, unless it is asked for.
//!
//! Versions are numbers of nodes. A change that leaves readers behind in the old buffer gets the next one, and is noted at that buffer;
//! what was recorded before has a lower number. As long as there was no such change since the first node of a graph, as in
//! programs that step after their backward, that is all that is looked at.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::node::{Node, next_number};
use crate::error::{Error, Result};
use crate::storage::former::Change;
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// The number of the latest change that left readers behind; 0 if there was none.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// What a parameter will say to readers whom it left behind in former buffers.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind(Option<Arc<Change>>);

impl LeftBehind {
    /// Notes that the parameter moved out of the buffer of `former`, whose values are still its own.
    pub(crate) fn note(&mut self, former: &Tensor) {
        if self.0.is_none() {
            self.0 = former.leaf().map(|leaf| Arc::new(Change::of(leaf)));
        }
        if let Some(change) = &self.0 {
            former.storage().former_values().note(change);
        }
    }

    /// Says that the parameter's values have changed.
    #[inline]
    pub(crate) fn tell(&mut self) {
        if let Some(change) = self.0.take() {
            let number = next_number();
            change.happen(number);
            LATEST.fetch_max(number, Ordering::Relaxed);
        }
    }
}

/// Checks that a backward from here reads no values that a parameter had before its latest change, if it gives a gradient of that
/// parameter.
///
/// # Errors
/// [`Error::StaleBackward`].
pub(super) fn check(from: &GradEdge) -> Result<()> {
    match from {
        GradEdge::Node(node) if node.since() < LATEST.load(Ordering::Relaxed) => {
            Search::default().run(Node::of(Arc::clone(node)))
        }
        _ => Ok(()),
    }
}

/// A search through a graph.
#[derive(Default)]
struct Search {
    /// Nodes still to be looked at.
    open: Vec<Arc<Node>>,
    /// The numbers of all that are or were open.
    seen: HashSet<u64>,
    /// The leaves that gradients reach.
    leaves: BTreeSet<LeafId>,
    /// Leaves that are read as they were, and by whom.
    former: Vec<(LeafId, Error)>,
}

impl Search {
    fn run(mut self, root: Arc<Node>) -> Result<()> {
        let latest = LATEST.load(Ordering::Relaxed);
        self.open.push(root);
        while let Some(node) = self.open.pop() {
            let Self { open, seen, leaves, former } = &mut self;
            node.look(
                |edge| match edge {
                    GradEdge::Leaf(leaf) => drop(leaves.insert(*leaf)),
                    // Also where all is newer than any change: which leaves it leads to is still to be known.
                    GradEdge::Node(node) => {
                        if seen.insert(node.number()) {
                            open.push(Node::of(Arc::clone(node)));
                        }
                    }
                },
                |read| {
                    if node.number < latest {
                        read.storage().former_values().changed_since(node.number, |leaf| {
                            former.push((leaf, node.stale(read)));
                        });
                    }
                },
            );
        }
        match self.former.into_iter().find(|(leaf, _)| self.leaves.contains(leaf)) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}
