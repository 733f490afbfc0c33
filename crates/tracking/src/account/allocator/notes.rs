//! Changes of a block besides its bytes: saved for a backward pass, charged to another tag, or still live after a
//! failed free.

use bfc_core::sync::lock;
use bfc_core::{Block, Category, PoolView, Tag};

use super::{Sizing, TrackingAllocator};
use crate::account::local::LocalBlock;
use crate::account::totals::Class;

impl TrackingAllocator {
    /// Counts bytes as saved for a backward pass.
    pub(super) fn note_saved(&self, bytes: u64) {
        if let Some(tracker) = &self.tracker {
            self.counts().saved += bytes;
            tracker.saves.add(self.owner, bytes);
        }
    }

    /// Counts bytes as no longer saved.
    pub(super) fn note_released(&self, bytes: u64) {
        if let Some(tracker) = &self.tracker {
            self.counts().saved -= bytes;
            tracker.saves.remove(self.owner, bytes);
        }
    }

    /// Counts and records a block's new tag. `before` is its former tag, if known.
    pub(super) fn note_retagged(&self, block: &Block, before: Option<Tag>, tag: Tag) {
        if let Some(recorder) = self.recorder().filter(|_| !block.is_empty()) {
            recorder.post_retag(&**self.inner(), block, self.recorded_id(block), tag);
        }
        let Some(before) = before else { return };
        match [before.category, tag.category].map(|category| category == Category::Activation) {
            [false, true] => self.note_saved(block.bytes),
            [true, false] => self.note_released(block.bytes),
            _ => {}
        }
        let (from, to) = (Class::of(before.category), Class::of(tag.category));
        if from != to && self.sizing.is_tracked() {
            self.counts().reclass(block.bytes, from, to);
        }
    }

    /// Undoes the count and the record of a free that failed.
    #[cold]
    pub(super) fn note_still_live(&self, block: &Block, entry: Option<LocalBlock>) {
        if !self.sizing.is_tracked() {
            return;
        }
        self.counts().restore(block.bytes);
        self.record(i64::try_from(block.bytes).unwrap_or(i64::MAX));
        if let (Sizing::Local(blocks), Some(entry)) = (&self.sizing, entry) {
            lock(blocks).restore(entry);
        }
        // A block that was stale before the free has no tag.
        if let Some(recorder) = self.recorder() {
            if let (Ok(tag), Ok(requested)) = (self.tag(block), self.requested_bytes(block)) {
                recorder.post_alloc(&**self.inner(), block, self.recorded_id(block), requested, tag, None);
            }
        }
    }
}
