//! What is noted of a block beside its bytes: that it is kept for a backward pass, charged otherwise, given back or not.

use bfc_core::sync::lock;
use bfc_core::{Allocator, Block, Category, Tag};

use super::{Mode, TrackingAllocator};
use crate::account::local::LocalBlock;
use crate::account::totals::Class;

impl TrackingAllocator {
    /// Counts bytes as kept for a backward pass from now on.
    #[cold]
    pub(super) fn note_kept(&self, bytes: u64) {
        if let Some(books) = &self.books {
            let owner = {
                let mut counts = self.counts();
                counts.saved += bytes;
                counts.owner
            };
            books.saves.keep(owner, bytes);
        }
    }

    /// Counts bytes as kept no more.
    #[cold]
    pub(super) fn note_let_go(&self, bytes: u64) {
        if let Some(books) = &self.books {
            let owner = {
                let mut counts = self.counts();
                counts.saved -= bytes;
                counts.owner
            };
            books.saves.let_go(owner, bytes);
        }
    }

    /// Counts and records that a block is charged to another tag, from the one before where that is known.
    pub(super) fn note_retagged(&self, block: &Block, before: Option<Tag>, tag: Tag) {
        if let Some(recorder) = self.recorder()
            && !block.is_empty()
        {
            recorder.post_retag(&**self.inner(), block, self.recorded_id(block), tag);
        }
        let Some(before) = before else { return };
        match [before.category, tag.category].map(|category| category == Category::Activation) {
            [false, true] => self.note_kept(block.bytes),
            [true, false] => self.note_let_go(block.bytes),
            _ => {}
        }
        let (from, to) = (Class::of(before.category), Class::of(tag.category));
        if from != to && self.mode != Mode::Untracked {
            self.counts().reclass(block.bytes, from, to);
        }
    }

    /// Counts what is known only after a free: that one reference less is there, or that the block is kept no more.
    #[inline]
    pub(super) fn note_taken_back(&self, block: &Block, kept: bool) {
        if self.mode == Mode::Untracked {
            self.counts().references -= 1;
        } else if kept {
            self.note_let_go(block.bytes);
        }
    }

    /// Takes back what was counted and recorded of a free that then failed.
    #[cold]
    pub(super) fn note_still_live(&self, block: &Block, entry: Option<LocalBlock>) {
        if self.mode == Mode::Untracked {
            return;
        }
        self.restore(block.bytes);
        if let Some(entry) = entry {
            lock(&self.local).restore(entry);
        }
        self.record_still_live(block);
    }

    /// Takes back what was recorded of a free that then failed, if the block is live.
    fn record_still_live(&self, block: &Block) {
        if let Some(recorder) = self.recorder()
            && let (Ok(tag), Ok(requested)) = (self.tag(block), self.requested_bytes(block))
        {
            recorder.post_alloc(&**self.inner(), block, self.recorded_id(block), requested, tag);
        }
    }
}
