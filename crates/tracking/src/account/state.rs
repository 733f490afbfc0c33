//! The state of a tracker. Tracking allocators share it, because they may outlive the tracker.

use std::sync::Arc;

use bfc_core::LastResort;
use bfc_core::sync::{Mutex, SpinMutex};
use quanta::Clock;

use super::saved::SavedAccounts;
use super::steps::StepLog;
use super::totals::Totals;
use super::unlisted::UnlistedLayers;
use crate::record::Recorder;
use crate::report::OutsideRow;

/// The shared state of a tracker's ops. Each part has its own lock, and no code holds two of them.
#[derive(Debug, Default)]
pub(crate) struct TrackerState {
    /// Reads the cycle counter of the processor, because an op takes two readings.
    pub(crate) clock: Clock,
    pub(crate) recorder: Recorder,
    pub(crate) saves: SavedAccounts,
    pub(crate) unlisted: UnlistedLayers,
    /// Memory outside the pools, by library.
    pub(crate) outside: Mutex<Vec<OutsideRow>>,
    /// Callbacks that may free memory before a request fails.
    pub(crate) last_resort: Arc<LastResort>,
    /// The first allocations of the last steps.
    pub(crate) steps: StepLog,
    /// The sums over finished executions. Locked twice per op: at its begin and at its end.
    pub(crate) totals: SpinMutex<Totals>,
}
