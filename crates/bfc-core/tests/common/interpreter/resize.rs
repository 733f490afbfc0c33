//! Model of blocks that change their size in place.

use bfc_core::{Allocator, Block, BlockError, ChunkInfo, ConfiguredPolicy, PoolView, Request};

use super::{Choice, DEAD, Interpreter, Live};

impl<P: ConfiguredPolicy> Interpreter<P> {
    /// Resizes a live block. It keeps its address and tag, and counts as freed and allocated.
    pub(super) fn resize(&mut self, pick: usize, bytes: u64) {
        let Some(Live { block, tag, .. }) = self.pick(pick) else { return };
        let (before, chunks) = (self.pool.stats(), self.pool.chunks());
        // SAFETY: the addresses of these tests have no memory behind them.
        let resized = unsafe { self.pool.resize(&block, bytes) }.unwrap();
        self.check_resized(&block, bytes, resized.as_ref(), &chunks);
        let Some(resized) = resized else {
            assert_eq!((self.pool.stats(), self.pool.chunks()), (before, chunks));
            return;
        };
        assert_eq!((resized.address, self.pool.tag(&resized)), (block.address, Ok(tag)));
        self.live.remove(&block.address);
        self.dead.push_back(block);
        if self.dead.len() > DEAD {
            self.dead.pop_front();
        }
        self.note(&Request::new(bytes).with_tag(tag), resized);
        self.assert_refused(block, BlockError::Stale { block });
    }

    /// Checks the outcome: the block has room, or the memory behind it is free, unless the pool never resizes.
    fn check_resized(&mut self, block: &Block, bytes: u64, resized: Option<&Block>, chunks: &[ChunkInfo]) {
        if bytes == 0 || self.counter.is_some() || self.choice == Choice::Packed {
            assert_eq!(resized, None);
            return;
        }
        if self.cached {
            assert!(resized.is_none_or(|resized| resized.bytes >= bytes));
            return;
        }
        let Choice::BestFit { always_splits } = self.choice else {
            // The policy serves sizes within the block only.
            assert_eq!(resized.map(|resized| resized.bytes), (bytes <= block.bytes).then_some(block.bytes));
            return;
        };
        let rounded = self.blank.rounded(bytes, 1).unwrap();
        let end = block.address + block.bytes;
        let mut whole = block.bytes;
        if rounded > block.bytes {
            self.recent.clear();
            let region = chunks.iter().find(|chunk| chunk.address == block.address).map(|chunk| chunk.region);
            let behind = chunks.iter().find(|chunk| chunk.address == end && Some(chunk.region) == region);
            whole += behind.filter(|chunk| !chunk.in_use()).map_or(0, |chunk| chunk.bytes);
        }
        match resized {
            None => assert!(whole < rounded, "{rounded} bytes fit in place of {block:?}"),
            Some(resized) if resized.bytes == rounded => assert!(rounded <= whole),
            Some(resized) => assert!(!always_splits && resized.bytes == whole && whole - rounded < rounded),
        }
    }
}
