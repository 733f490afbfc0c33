//! The latest events, in bounded memory.
//!
//! When memory runs out, the oldest block of events goes. What was live at its end, and the regions that pools had, are
//! kept aside, so that what remains still tells every live byte at every event.

mod carried;

use std::collections::VecDeque;

use super::builder::{Builder, RecordingLimits};
use super::recording::Recording;
use super::wire::Decoder;
use carried::Carried;

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
    /// A ring of at most `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, blocks: VecDeque::new(), held: 0, lost: 0, carried: Carried::default() }
    }

    /// How large its blocks should be: small enough that losing one is no great loss.
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

    /// Keeps what outlives the events of a block.
    fn carry(&mut self, block: &[u8]) {
        let mut decoder = Decoder::new(block);
        // The bytes are our own, so they can all be read.
        while let Ok(Some(event)) = decoder.next() {
            if self.carried.take(decoder.time(), decoder.context(), &event) {
                self.lost += 1;
            }
        }
    }

    /// What is there, as a recording. `names` gives all names that were ever given, `last` the events since the last block.
    pub(super) fn into_recording(self, names: &[u8], last: &[u8]) -> Recording {
        let mut builder = Builder::new(RecordingLimits {
            events: u32::MAX,
            held_bytes: u64::MAX,
            ..RecordingLimits::default()
        });
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
