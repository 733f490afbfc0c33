//! Memory that ops add for backward passes, and for how long.
//!
//! A block counts for its owner from the moment it gets the category "activation" until it is freed or gets another
//! one. No time is stored per block: the product of bytes and time grows with every change, so the mean is exact and
//! costs no memory.

use bfc_core::OwnerId;

/// Saved memory of one owner, or of all owners.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SavedBytes {
    /// The number of blocks.
    pub(crate) blocks: u64,
    /// The sum of their bytes.
    pub(crate) bytes: u64,
    /// Bytes saved now.
    pub(crate) live: u64,
    /// The most bytes saved at a time.
    pub(crate) peak: u64,
    /// Bytes times nanoseconds, up to `since`.
    byte_ns: u128,
    since: u64,
}

impl SavedBytes {
    /// Returns the mean time that a byte was saved, in nanoseconds. Bytes that are still saved count up to the last
    /// change.
    pub(crate) fn mean_ns(&self) -> u64 {
        u64::try_from(self.byte_ns / u128::from(self.bytes.max(1))).unwrap_or(u64::MAX)
    }

    fn advance(&mut self, now: u64) {
        let passed = u128::from(now.saturating_sub(self.since));
        self.byte_ns = self.byte_ns.saturating_add(u128::from(self.live).saturating_mul(passed));
        self.since = self.since.max(now);
    }

    fn add(&mut self, bytes: u64, now: u64) {
        self.advance(now);
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.live = self.live.saturating_add(bytes);
        self.peak = self.peak.max(self.live);
    }

    fn remove(&mut self, bytes: u64, now: u64) {
        self.advance(now);
        self.live = self.live.saturating_sub(bytes);
    }

    /// Resets the sums to the bytes saved now.
    fn reset(&mut self, now: u64) {
        let live = self.live;
        *self = Self { blocks: u64::from(live > 0), bytes: live, live, peak: live, byte_ns: 0, since: now };
    }
}

/// Memory saved for backward passes, of all ops together and by the owner of the memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct SavedTotals {
    /// Of all owners.
    pub(crate) total: SavedBytes,
    /// By [`OwnerId::index`].
    by_owner: Vec<SavedBytes>,
}

impl SavedTotals {
    /// Returns the saved memory of one owner.
    pub(crate) fn of(&self, owner: OwnerId) -> SavedBytes {
        self.by_owner.get(owner.index()).copied().unwrap_or_default()
    }

    /// Counts a block that is saved from now on. Times are nanoseconds.
    pub(crate) fn add(&mut self, owner: OwnerId, bytes: u64, now: u64) {
        self.total.add(bytes, now);
        self.owner(owner).add(bytes, now);
    }

    /// Counts that a block is no longer saved.
    pub(crate) fn remove(&mut self, owner: OwnerId, bytes: u64, now: u64) {
        self.total.remove(bytes, now);
        self.owner(owner).remove(bytes, now);
    }

    /// Counts that a saved block has another owner from now on.
    pub(crate) fn charge_to(&mut self, from: OwnerId, to: OwnerId, bytes: u64, now: u64) {
        self.owner(from).remove(bytes, now);
        self.owner(to).add(bytes, now);
    }

    /// Counts the time of the bytes that are still saved.
    pub(crate) fn advance(&mut self, now: u64) {
        self.total.advance(now);
        self.by_owner.iter_mut().for_each(|saved| saved.advance(now));
    }

    /// Resets the sums to the bytes saved now.
    pub(crate) fn reset(&mut self, now: u64) {
        self.total.reset(now);
        self.by_owner.iter_mut().for_each(|saved| saved.reset(now));
    }

    fn owner(&mut self, owner: OwnerId) -> &mut SavedBytes {
        if self.by_owner.len() <= owner.index() {
            self.by_owner.resize(owner.index() + 1, SavedBytes::default());
        }
        &mut self.by_owner[owner.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_for_as_long_as_they_are_there() {
        let mut saved = SavedBytes::default();
        saved.add(100, 10);
        saved.add(300, 20);
        saved.remove(100, 50);
        saved.remove(300, 60);
        assert_eq!((saved.blocks, saved.bytes, saved.live, saved.peak), (2, 400, 0, 400));
        // 100 bytes for 40 ns, 300 bytes for 40 ns.
        assert_eq!(saved.mean_ns(), 40);
    }

    #[test]
    fn a_reset_starts_over_with_what_is_there() {
        let mut saved = SavedBytes::default();
        saved.add(100, 0);
        saved.reset(1000);
        saved.remove(100, 1010);
        assert_eq!((saved.bytes, saved.peak, saved.mean_ns()), (100, 100, 10));
    }
}
