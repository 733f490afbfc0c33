//! Blocks that change their size in place. An account counts and records a free and an allocation at the same address.

use bfc_core::{Block, BlockError, Category, Request, Tag};

use super::TrackingAllocator;
use crate::account::budget;
use crate::record::Allocated;

impl TrackingAllocator {
    /// Changes the size of a block of the inner allocator in place.
    ///
    /// # Safety
    /// As for [`PoolView::resize`](bfc_core::PoolView::resize).
    pub(super) unsafe fn resize_block(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        let tag = self.inner().tag(block)?;
        // Budgets limit requests. Their caller moves the block, which is a request.
        if bytes == 0 || block.is_empty() || (bytes > block.bytes && budget::covers(tag.owner)) {
            return Ok(None);
        }
        if bytes > block.bytes {
            // SAFETY: the caller guarantees the contract.
            let resized = unsafe { self.inner().resize(block, bytes) }?;
            if let Some(resized) = &resized {
                self.count_growth(block, resized, bytes, self.inner().tag(resized).unwrap_or(tag));
            }
            return Ok(resized);
        }
        // Before the inner change, as for a free: another thread may own the end of the block right after it.
        self.subtract(block.bytes).ok_or_else(|| self.reject(*block))?;
        if let Some(recorder) = self.recorder() {
            recorder.post_free(&**self.inner(), block, self.recorded_id(block));
        }
        // SAFETY: the caller guarantees the contract.
        let mut resized = unsafe { self.inner().resize(block, bytes) };
        match &mut resized {
            Ok(Some(resized)) => {
                if tag.category == Category::Activation {
                    self.note_released(tag.owner, block.bytes);
                }
                self.count(resized, &Request::new(bytes).with_tag(tag));
            }
            _ => self.note_still_live(block, None),
        }
        resized
    }

    /// Counts and records a block that has replaced a smaller one. No reader sees a moment without the block.
    fn count_growth(&self, before: &Block, after: &Block, requested: u64, tag: Tag) {
        let saved = self.tracker.as_ref().filter(|_| tag.category == Category::Activation);
        if let Some(tracker) = &self.tracker {
            tracker.steps.note(after);
        }
        {
            let held = &mut *self.held();
            held.counts.subtract(before.bytes);
            held.counts.add(after.bytes, requested, tag.category, true);
            if saved.is_some() {
                held.saved += after.bytes - before.bytes;
            }
        }
        if let Some(tracker) = saved {
            tracker.saves.remove(tag.owner, before.bytes);
            tracker.saves.add(tag.owner, after.bytes);
        }
        self.record(i64::try_from(before.bytes).map_or(i64::MIN, |bytes| -bytes));
        self.record(i64::try_from(after.bytes).unwrap_or(i64::MAX));
        if let Some(recorder) = self.recorder() {
            let replaced = Some(self.recorded_id(before));
            recorder.post_alloc(&Allocated { replaced, ..self.allocated(after, requested, tag) });
        }
    }
}
