//! Other sizes for live blocks: taking memory from the free chunk behind a block, and returning the end of a block.

use super::super::chunk::{ChunkId, ChunkState};
use super::Bfc;
use crate::base::placement::Placement;

impl Bfc {
    /// Changes the size of a live chunk to `rounded` bytes, in whole granules. The chunk keeps its slot. As for new blocks,
    /// the split rule decides whether the rest becomes a separate chunk.
    pub(super) fn resize_live(&mut self, id: ChunkId, rounded: u64) -> Option<Placement> {
        let bytes = self.chunks.live(id)?.bytes;
        if rounded > bytes {
            self.join_next(id, rounded - bytes)?;
        }
        self.cut_rest(id, rounded);
        Some(self.place_of(id))
    }

    /// Merges the free chunk behind a live one into it. Returns `None` without a change if that chunk has fewer than
    /// `missing` bytes, or waits for the frontier.
    fn join_next(&mut self, id: ChunkId, missing: u64) -> Option<()> {
        // The memory behind the block may consist of several chunks whose merge is deferred.
        self.join_recent();
        let next = self.chunks[id].next;
        let after = &self.chunks[next];
        if after.state != ChunkState::Free || after.bytes < missing {
            return None;
        }
        let both = self.chunks[id].bytes + after.bytes;
        self.unbin(next);
        self.chunks.join_to_prev(next, id, both);
        Some(())
    }

    /// Frees the end of a live chunk beyond `rounded` bytes, if the split rule cuts it off.
    fn cut_rest(&mut self, id: ChunkId, rounded: u64) {
        let whole = self.chunks[id].bytes;
        if self.split.cuts(whole, rounded) && self.chunks.has_room_for(1) {
            let (rest, _) = self.chunks.cut_high(id, whole, whole - rounded, ChunkState::Live);
            self.join_and_bin(rest);
        }
    }
}
