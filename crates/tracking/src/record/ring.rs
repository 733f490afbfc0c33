//! The latest events in bounded memory.
//!
//! When memory runs out, the ring drops its oldest block of events. It keeps the live blocks and the regions at the end
//! of that block. The remaining events therefore still describe every live byte.

mod carried;

use std::collections::VecDeque;

use super::builder::{Builder, RecordingLimits};
use super::recording::Recording;
use super::wire::Decoder;
use carried::Carried;
use highwater_files::lean::HeldMemory;

/// Blocks of events, the oldest first.
#[derive(Debug)]
pub(super) struct Ring {
    capacity: usize,
    blocks: VecDeque<Vec<u8>>,
    held: usize,
    lost: u64,
    carried: Carried,
}

impl Ring {
    /// Creates a ring of at most `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, blocks: VecDeque::new(), held: 0, lost: 0, carried: Carried::default() }
    }

    /// Returns the size of its blocks: a small share, so that dropping one loses little.
    pub(super) fn block_bytes(capacity: usize) -> usize {
        (capacity / 16).clamp(64, super::BLOCK_BYTES)
    }

    /// Adds a block.
    pub(super) fn take(&mut self, block: Vec<u8>) {
        self.held += block.len();
        self.blocks.push_back(block);
        while self.held > self.capacity {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.held -= oldest.len();
            self.carry(&oldest);
        }
    }

    /// Keeps the live blocks and regions of a dropped block.
    fn carry(&mut self, block: &[u8]) {
        let mut decoder = Decoder::new(block);
        // The bytes come from this crate, so they are all valid.
        while let Ok(Some(event)) = decoder.next() {
            if self.carried.take(decoder.time(), decoder.context(), &event) {
                self.lost += 1;
            }
        }
    }

    /// Returns the events as a recording. `names` holds all names so far, `last` the events since the last block.
    pub(super) fn into_recording(self, names: &[u8], last: &[u8]) -> Recording {
        let limits = RecordingLimits { events: u32::MAX, ..RecordingLimits::default() };
        let mut builder = Builder::new(limits, HeldMemory::new(u64::MAX));
        let mut blocks = Vec::with_capacity(self.blocks.len() + 3);
        let carried;
        if self.lost > 0 {
            carried = self.carried.told_again(self.lost);
            blocks.extend([names, &carried]);
        }
        blocks.extend(self.blocks.iter().map(Vec::as_slice).chain([last]));
        for block in blocks {
            let added = builder.add(block);
            debug_assert!(added.is_ok(), "what was recorded can be read: {added:?}");
        }
        builder.finish()
    }
}
