//! The state of a tracker. Tracking allocators share it, because they may outlive the tracker.

use std::sync::Arc;

use bfc_core::LastResort;
use bfc_core::sync::SpinMutex;

use super::saved::SavedAccounts;
use super::totals::Totals;
use super::unlisted::UnlistedLayers;
use crate::record::Recorder;

/// The shared state of a tracker's ops. Each part has its own lock, and no code holds two of them.
#[derive(Debug, Default)]
pub(crate) struct TrackerState {
    pub(crate) recorder: Recorder,
    pub(crate) saves: SavedAccounts,
    pub(crate) unlisted: UnlistedLayers,
    /// Callbacks that may free memory before a request fails.
    pub(crate) last_resort: Arc<LastResort>,
    /// The sums over finished executions. Locked twice per op: at its begin and at its end.
    pub(crate) totals: SpinMutex<Totals>,
}
