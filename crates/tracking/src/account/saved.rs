//! What is kept for backward passes, and for how long.
//!
//! Blocks of the category "activation" count from the moment that they came to be that. No time is kept by block: what
//! is kept, times how long, is summed up whenever it changes, so its mean is exact and costs no memory.

use std::time::Instant;

use bfc_core::OwnerId;
use bfc_core::sync::{Mutex, lock};

/// What was kept of one op's results, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    /// How many blocks.
    pub(crate) blocks: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes kept now.
    pub(crate) live: u64,
    /// The most bytes kept at a time.
    pub(crate) peak: u64,
    /// Bytes times nanoseconds, up to `since`.
    byte_ns: u128,
    since: u64,
}

impl Kept {
    /// How long a byte was kept on average, in nanoseconds; those that are still kept, up to the last change.
    pub(crate) fn mean_ns(&self) -> u64 {
        u64::try_from(self.byte_ns / u128::from(self.bytes.max(1))).unwrap_or(u64::MAX)
    }

    fn pass(&mut self, now: u64) {
        let passed = u128::from(now.saturating_sub(self.since));
        self.byte_ns = self.byte_ns.saturating_add(u128::from(self.live).saturating_mul(passed));
        self.since = self.since.max(now);
    }

    fn keep(&mut self, bytes: u64, now: u64) {
        self.pass(now);
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.live = self.live.saturating_add(bytes);
        self.peak = self.peak.max(self.live);
    }

    fn let_go(&mut self, bytes: u64, now: u64) {
        self.pass(now);
        self.live = self.live.saturating_sub(bytes);
    }

    /// Starts over with what is kept now.
    fn reset(&mut self, now: u64) {
        let live = self.live;
        *self = Self { blocks: u64::from(live > 0), bytes: live, live, peak: live, byte_ns: 0, since: now };
    }
}

/// What is kept of the results of a tracker's ops.
#[derive(Debug)]
pub(crate) struct Saves {
    started: Instant,
    state: Mutex<SavesNow>,
}

/// What is kept, at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct SavesNow {
    /// All that is kept.
    pub(crate) whole: Kept,
    /// By [`OwnerId::index`] of the op that took the memory.
    by_owner: Vec<Kept>,
}

impl SavesNow {
    /// What is kept of the results of one op.
    pub(crate) fn of(&self, owner: OwnerId) -> Kept {
        self.by_owner.get(owner.index()).copied().unwrap_or_default()
    }
}

impl Default for Saves {
    fn default() -> Self {
        Self { started: Instant::now(), state: Mutex::default() }
    }
}

impl Saves {
    pub(crate) fn keep(&self, owner: OwnerId, bytes: u64) {
        self.change(owner, |kept, now| kept.keep(bytes, now));
    }

    pub(crate) fn let_go(&self, owner: OwnerId, bytes: u64) {
        self.change(owner, |kept, now| kept.let_go(bytes, now));
    }

    pub(crate) fn reset(&self) {
        let now = self.elapsed_ns();
        let state = &mut *lock(&self.state);
        state.whole.reset(now);
        state.by_owner.iter_mut().for_each(|kept| kept.reset(now));
    }

    /// All that was kept, up to now.
    pub(crate) fn now(&self) -> SavesNow {
        let now = self.elapsed_ns();
        let mut saves = lock(&self.state).clone();
        saves.whole.pass(now);
        saves.by_owner.iter_mut().for_each(|kept| kept.pass(now));
        saves
    }

    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn change(&self, owner: OwnerId, change: impl Fn(&mut Kept, u64)) {
        let now = self.elapsed_ns();
        let state = &mut *lock(&self.state);
        change(&mut state.whole, now);
        if state.by_owner.len() <= owner.index() {
            state.by_owner.resize(owner.index() + 1, Kept::default());
        }
        change(&mut state.by_owner[owner.index()], now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_for_as_long_as_they_are_there() {
        let mut kept = Kept::default();
        kept.keep(100, 10);
        kept.keep(300, 20);
        kept.let_go(100, 50);
        kept.let_go(300, 60);
        assert_eq!((kept.blocks, kept.bytes, kept.live, kept.peak), (2, 400, 0, 400));
        // 100 bytes for 40 ns, 300 bytes for 40 ns.
        assert_eq!(kept.mean_ns(), 40);
    }

    #[test]
    fn a_reset_starts_over_with_what_is_there() {
        let mut kept = Kept::default();
        kept.keep(100, 0);
        kept.reset(1000);
        kept.let_go(100, 1010);
        assert_eq!((kept.bytes, kept.peak, kept.mean_ns()), (100, 100, 10));
    }
}
