//! Former values: the leaves that had the values of a buffer before a change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::leaf::LeafId;

/// A change of a leaf's values, noted at the buffers that hold its former values.
#[derive(Debug)]
pub(crate) struct Change {
    leaf: LeafId,
    /// 0 until the change has happened.
    number: AtomicU64,
}

impl Change {
    /// Returns a change of this leaf that has not happened yet.
    pub(crate) const fn of(leaf: LeafId) -> Self {
        Self { leaf, number: AtomicU64::new(0) }
    }

    /// Says that the change has happened, as the event of this number.
    pub(crate) fn happen(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }
}

/// The leaves whose values a buffer had: none, but for few buffers.
#[derive(Debug)]
pub(crate) struct FormerValues(Mutex<Vec<Arc<Change>>>);

impl FormerValues {
    /// Of a buffer whose values are nobody's former ones.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn note(&self, change: &Arc<Change>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(change));
    }

    /// The leaves that have changed since the node of this number was recorded.
    pub(crate) fn changed_since(&self, number: u64, mut leaf: impl FnMut(LeafId)) {
        let changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes
            .iter()
            .filter(|change| change.number.load(Ordering::Relaxed) > number)
            .for_each(|change| leaf(change.leaf));
    }
}
