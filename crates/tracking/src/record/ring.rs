//! The latest events, in bounded memory.
//!
//! When memory runs out, the oldest block of events goes. What was live at its end is kept aside, so that what remains
//! still tells every live byte at every event.

use std::collections::{HashMap, VecDeque};

use super::builder::{Builder, RecordingLimits};
use super::recording::Recording;
use super::wire::{Decoder, Encoder, Lane, Wire};

/// Blocks of events, the oldest first.
#[derive(Debug)]
pub(super) struct Ring {
    capacity: usize,
    blocks: VecDeque<Vec<u8>>,
    held: usize,
    lost: u64,
    carried: HashMap<(u32, u64), Carried>,
}

/// The allocation of a block that was live at the end of what was lost.
#[derive(Clone, Copy, Debug)]
struct Carried {
    time: u64,
    place: Lane,
    alloc: Wire<'static>,
}

impl Ring {
    /// A ring of at most `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, blocks: VecDeque::new(), held: 0, lost: 0, carried: HashMap::new() }
    }

    /// How large its blocks should be: small enough that losing one is no great loss.
    pub(super) fn block_bytes(capacity: usize) -> usize {
        (capacity / 16).clamp(64, super::BLOCK_BYTES)
    }

    /// Takes a block in, and returns one to go on in.
    pub(super) fn take(&mut self, block: Vec<u8>) -> Vec<u8> {
        self.held += block.len();
        self.blocks.push_back(block);
        let mut spare = Vec::new();
        while self.held > self.capacity {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.held -= oldest.len();
            self.carry(&oldest);
            spare = oldest;
        }
        spare
    }

    /// Keeps what outlives the events of a block.
    fn carry(&mut self, block: &[u8]) {
        let mut decoder = Decoder::new(block);
        // The bytes are our own, so they can all be read.
        while let Ok(Some(event)) = decoder.next() {
            let (time, place) = (decoder.time(), decoder.place());
            match event {
                Wire::Alloc { id, requested, granted, address, owner, category } => {
                    let alloc = Wire::Alloc { id, requested, granted, address, owner, category };
                    self.carried.insert((place.pool, id), Carried { time, place, alloc });
                }
                Wire::Free { id } => drop(self.carried.remove(&(place.pool, id))),
                Wire::Retag { id, owner: new_owner, category: new_category } => {
                    if let Some(Carried { alloc: Wire::Alloc { owner, category, .. }, .. }) =
                        self.carried.get_mut(&(place.pool, id))
                    {
                        (*owner, *category) = (new_owner, new_category);
                    }
                }
                Wire::Switch { .. } | Wire::Owner { .. } | Wire::Pool { .. } => continue,
                _ => {}
            }
            self.lost += 1;
        }
    }

    /// What is there, as a recording. `names` gives all names that were ever given, `last` the events since the last block.
    pub(super) fn into_recording(self, names: &[u8], last: &[u8]) -> Recording {
        let mut builder = Builder::new(RecordingLimits { events: u32::MAX, ..RecordingLimits::default() });
        let mut blocks = Vec::with_capacity(self.blocks.len() + 3);
        let carried;
        if self.lost > 0 {
            carried = told_again(self.carried, self.lost);
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

/// A block of the allocations that were live, in the order of time, and of how many events were lost.
fn told_again(carried: HashMap<(u32, u64), Carried>, lost: u64) -> Vec<u8> {
    let mut carried: Vec<_> = carried.into_iter().collect();
    carried.sort_unstable_by_key(|(key, carried)| (carried.time, *key));
    let mut encoder = Encoder::default();
    for (_, Carried { time, place, alloc }) in carried {
        encoder.at(place);
        encoder.push(time, &alloc);
    }
    encoder.push(0, &Wire::Lost { events: lost });
    encoder.into_bytes()
}
