//! Changes of a block besides its bytes: saved for a backward pass, charged to another tag, or still live after a
//! failed free.

use bfc_core::sync::lock;
use bfc_core::{Block, Category, OwnerId, PoolView, Tag};

use super::{Sizing, TrackingAllocator};
use crate::account::local::LocalBlock;

impl TrackingAllocator {
    /// Counts bytes as saved for a backward pass.
    fn note_saved(&self, owner: OwnerId, bytes: u64) {
        if let Some(tracker) = &self.tracker {
            self.held().saved += bytes;
            tracker.saves.add(owner, bytes);
        }
    }

    /// Counts bytes as no longer saved.
    pub(super) fn note_released(&self, owner: OwnerId, bytes: u64) {
        if let Some(tracker) = &self.tracker {
            self.held().saved -= bytes;
            tracker.saves.remove(owner, bytes);
        }
    }

    /// Counts and records a block's new tag. `before` is its former tag, if known.
    pub(super) fn note_retagged(&self, block: &Block, before: Option<Tag>, tag: Tag) {
        if let Some(recorder) = self.recorder().filter(|_| !block.is_empty()) {
            recorder.post_retag(&**self.inner(), block, self.recorded_id(block), tag);
        }
        let Some(before) = before else { return };
        match [before.category, tag.category].map(|category| category == Category::Activation) {
            [false, true] => self.note_saved(tag.owner, block.bytes),
            [true, false] => self.note_released(before.owner, block.bytes),
            [true, true] if before.owner != tag.owner => {
                if let Some(tracker) = &self.tracker {
                    tracker.saves.charge_to(before.owner, tag.owner, block.bytes);
                }
            }
            _ => {}
        }
        if before.category != tag.category && self.sizing.is_tracked() {
            self.held().counts.reclass(block.bytes, before.category, tag.category);
        }
    }

    /// Undoes the count and the record of a free that failed.
    #[cold]
    pub(super) fn note_still_live(&self, block: &Block, entry: Option<LocalBlock>) {
        if !self.sizing.is_tracked() {
            return;
        }
        self.held().counts.restore(block.bytes);
        self.record(i64::try_from(block.bytes).unwrap_or(i64::MAX));
        if let (Sizing::Local(blocks), Some(entry)) = (&self.sizing, entry) {
            lock(blocks).restore(entry);
        }
        // A block that was stale before the free has no tag.
        if let Some(recorder) = self.recorder() {
            if let (Ok(tag), Ok(requested)) = (self.tag(block), self.requested_bytes(block)) {
                recorder.post_alloc(&self.allocated(block, requested, tag));
            }
        }
    }
}
