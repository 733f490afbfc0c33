//! The memory that the ops of a tracker save for backward passes, with its clock.

use bfc_core::OwnerId;
use bfc_core::sync::SpinMutex;
use quanta::Clock;

use crate::tally::SavedTotals;

/// Saved memory of all ops of a tracker.
#[derive(Debug)]
pub(crate) struct SavedAccounts {
    clock: Clock,
    started: u64,
    totals: SpinMutex<SavedTotals>,
}

impl Default for SavedAccounts {
    fn default() -> Self {
        let clock = Clock::new();
        Self { started: clock.raw(), clock, totals: SpinMutex::default() }
    }
}

impl SavedAccounts {
    pub(super) fn add(&self, owner: OwnerId, bytes: u64) {
        let now = self.elapsed_ns();
        self.totals.lock().add(owner, bytes, now);
    }

    pub(super) fn remove(&self, owner: OwnerId, bytes: u64) {
        let now = self.elapsed_ns();
        self.totals.lock().remove(owner, bytes, now);
    }

    pub(super) fn charge_to(&self, from: OwnerId, to: OwnerId, bytes: u64) {
        let now = self.elapsed_ns();
        self.totals.lock().charge_to(from, to, bytes, now);
    }

    pub(super) fn reset(&self) {
        let now = self.elapsed_ns();
        self.totals.lock().reset(now);
    }

    /// Returns all saved memory up to now.
    pub(super) fn now(&self) -> SavedTotals {
        let now = self.elapsed_ns();
        let mut totals = self.totals.lock().clone();
        totals.advance(now);
        totals
    }

    fn elapsed_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.started, self.clock.raw())
    }
}
