//! The latest events, in bounded memory.
//!
//! When memory runs out, the oldest block of events goes. What was live at its end, and the regions that pools had, are
//! kept aside, so that what remains still tells every live byte at every event.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

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
    carried: Carried,
}

/// What was there at the end of what was lost, each with the event that told of it.
#[derive(Debug, Default)]
struct Carried {
    /// Live blocks, by pool and number. Every event that is lost passes through here; the numbers are our own, so a
    /// cheap hash will do.
    blocks: FxHashMap<(u32, u64), Told>,
    /// Regions, by pool and address.
    regions: BTreeMap<(u32, u64), Told>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    time: u64,
    place: Lane,
    event: Wire<'static>,
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
        let carried = &mut self.carried;
        // The bytes are our own, so they can all be read.
        while let Ok(Some(event)) = decoder.next() {
            let (time, place) = (decoder.time(), decoder.place());
            match event {
                Wire::Alloc { id, requested, granted, address, owner, category } => {
                    let event = Wire::Alloc { id, requested, granted, address, owner, category };
                    carried.blocks.insert((place.pool, id), Told { time, place, event });
                }
                Wire::Free { id } => {
                    carried.blocks.remove(&(place.pool, id));
                }
                Wire::Retag { id, owner: new_owner, category: new_category } => {
                    if let Some(Told { event: Wire::Alloc { owner, category, .. }, .. }) =
                        carried.blocks.get_mut(&(place.pool, id))
                    {
                        (*owner, *category) = (new_owner, new_category);
                    }
                }
                Wire::Region { address, bytes, taken: true } => {
                    let event = Wire::Region { address, bytes, taken: true };
                    carried.regions.insert((place.pool, address), Told { time, place, event });
                }
                Wire::Region { address, taken: false, .. } => {
                    carried.regions.remove(&(place.pool, address));
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

/// A block of the regions and of the allocations that were there, in the order of time, and of how many events were lost.
fn told_again(carried: Carried, lost: u64) -> Vec<u8> {
    let Carried { blocks, regions } = carried;
    let mut told: Vec<((u32, u64), Told)> = blocks.into_iter().chain(regions).collect();
    // A block lies in a region that was there before it.
    let is_block = |told: &Told| matches!(told.event, Wire::Alloc { .. });
    told.sort_unstable_by_key(|(key, told)| (told.time, is_block(told), *key));
    let mut encoder = Encoder::default();
    for (_, Told { time, place, event }) in told {
        encoder.at(place);
        encoder.push(time, &event);
    }
    encoder.push(0, &Wire::Lost { events: lost });
    encoder.into_bytes()
}
