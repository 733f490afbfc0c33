//! Detects backward passes that read old values of parameters.
//!
//! A buffer that a graph reads is never written: an update of a parameter moves it to a copy. So a later
//! backward pass computes the gradients of its own forward pass. A step along them from the new values is
//! usually a mistake, and the copy costs memory. Therefore such a pass fails unless the program requests it.
//!
//! Updates and nodes share one sequence of numbers. An update that leaves old values in use gets the next
//! number, and the buffers with the old values refer to it. Nodes recorded before have lower numbers. If no
//! such update follows the first node of a graph, as in usual training loops, the check compares only two
//! numbers.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::node::{Node, next_number};
use crate::error::{Error, Result};
use crate::storage::leaf::LeafId;
use crate::storage::stale::LeafUpdate;
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// The number of the latest update that left old values in use; 0 if there is none.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// The next update of a parameter, for the buffers that keep its old values.
#[derive(Debug, Default)]
pub(crate) struct PendingUpdate(Option<Arc<LeafUpdate>>);

impl PendingUpdate {
    /// Marks the buffer of `old` as stale from the next update on. The parameter has just moved out of it.
    pub(crate) fn add_stale_buffer(&mut self, old: &Tensor) {
        if self.0.is_none() {
            self.0 = old.leaf().map(|leaf| Arc::new(LeafUpdate::new(leaf)));
        }
        if let Some(update) = &self.0 {
            old.owned_storage().stale_values().add(update);
        }
    }

    /// Commits the update: the values change now.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if let Some(update) = self.0.take() {
            let number = next_number();
            update.commit(number);
            LATEST.fetch_max(number, Ordering::Relaxed);
        }
    }
}

/// Checks that a backward pass from this edge reads no stale values of a parameter for which it computes a
/// gradient.
///
/// # Errors
/// [`Error::StaleBackward`].
pub(super) fn check(from: &GradEdge) -> Result<()> {
    match from {
        GradEdge::Node(node) if node.since < LATEST.load(Ordering::Relaxed) => {
            Search::default().run(Arc::clone(node))
        }
        _ => Ok(()),
    }
}

/// A search for stale values in a graph.
#[derive(Default)]
struct Search {
    /// Nodes still to visit.
    open: Vec<Arc<Node>>,
    /// The numbers of all visited and open nodes.
    seen: HashSet<u64>,
    /// The leaves that gradients reach.
    leaves: BTreeSet<LeafId>,
    /// Leaves with stale values, with the error of the node that reads them.
    stale: Vec<(LeafId, Error)>,
}

impl Search {
    fn run(mut self, root: Arc<Node>) -> Result<()> {
        let latest = LATEST.load(Ordering::Relaxed);
        self.open.push(root);
        while let Some(node) = self.open.pop() {
            let Self { open, seen, leaves, stale } = &mut self;
            node.visit(
                |edge| match edge {
                    GradEdge::Leaf(leaf) => drop(leaves.insert(*leaf)),
                    // Visits new nodes too, because they may lead to further leaves.
                    GradEdge::Node(node) => {
                        if seen.insert(node.number) {
                            open.push(Arc::clone(node));
                        }
                    }
                },
                |read| {
                    if node.number < latest {
                        read.owned_storage().stale_values().changed_since(node.number, |leaf| {
                            stale.push((leaf, node.stale(read)));
                        });
                    }
                },
            );
        }
        match self.stale.into_iter().find(|(leaf, _)| self.leaves.contains(leaf)) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}
