//! The state of a tracker, shared with the tracking allocators of its ops, which may outlive it.

use std::sync::Arc;

use bfc_core::LastResort;
use bfc_core::sync::Mutex;

use super::saved::Saves;
use super::totals::Totals;
use crate::record::Recorder;

/// What the ops of a tracker share. Each part has its own lock, and no code runs under two of them.
#[derive(Debug, Default)]
pub(crate) struct TrackerState {
    pub(crate) recorder: Recorder,
    pub(crate) saves: Saves,
    /// Callbacks that may free memory before a request fails.
    pub(crate) last_resort: Arc<LastResort>,
    /// The sums over finished executions. Locked twice per op: when it begins and when it ends.
    pub(crate) totals: Mutex<Totals>,
}
