//! Stale values: buffers that hold values which a parameter had before an update.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::leaf::LeafId;

/// An update of a leaf's values. The buffers that hold the old values refer to it.
#[derive(Debug)]
pub(crate) struct LeafUpdate {
    leaf: LeafId,
    /// 0 until the update happens.
    number: AtomicU64,
}

impl LeafUpdate {
    /// Returns an update of this leaf that has not happened yet.
    pub(crate) const fn new(leaf: LeafId) -> Self {
        Self { leaf, number: AtomicU64::new(0) }
    }

    /// Marks the update as done, with this event number.
    pub(crate) fn commit(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }
}

/// The leaves whose old values a buffer holds. Empty for most buffers.
#[derive(Debug)]
pub(crate) struct StaleValues(Mutex<Vec<Arc<LeafUpdate>>>);

impl StaleValues {
    /// Returns the state of a buffer without old values.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn add(&self, update: &Arc<LeafUpdate>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(update));
    }

    /// Calls `leaf` for each leaf that changed after the node with this number was recorded.
    pub(crate) fn changed_since(&self, number: u64, mut leaf: impl FnMut(LeafId)) {
        let updates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        updates
            .iter()
            .filter(|update| update.number.load(Ordering::Relaxed) > number)
            .for_each(|update| leaf(update.leaf));
    }
}
