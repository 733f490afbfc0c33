//! What was there at the end of what a ring lost: regions, and blocks that were live.
//!
//! Every event that is lost passes through here, so it must cost little. Most blocks live for a few events alone: those
//! find their places in a small table without a search, and only who is in the way of another goes to the large one.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::record::wire::{Encoder, EventContext, RawEvent};

/// A pool, and a number or an address in it.
type Key = (u32, u64);

/// An event that told of something that is there.
#[derive(Clone, Copy, Debug)]
struct Told {
    time: u64,
    context: EventContext,
    event: RawEvent<'static>,
}

/// How many places the small table has: a power of two. Six KiB, which a processor keeps at hand.
const RECENT: usize = 64;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Carried {
    recent: Box<[Option<(Key, Told)>; RECENT]>,
    /// The numbers are our own, so a cheap hash will do.
    others: FxHashMap<Key, Told>,
    regions: BTreeMap<Key, Told>,
}

impl Default for Carried {
    fn default() -> Self {
        Self { recent: Box::new([None; RECENT]), others: FxHashMap::default(), regions: BTreeMap::new() }
    }
}

/// Where a block may stand in the small table. Numbers rise by one; where addresses stand for them, their low bits are 0.
const fn slot(id: u64) -> usize {
    (id ^ id >> 8) as usize % RECENT
}

impl Carried {
    /// Takes in an event that is lost; whether it was one.
    pub(super) fn take(&mut self, time: u64, context: EventContext, event: &RawEvent<'_>) -> bool {
        match *event {
            RawEvent::Alloc { id, requested, granted, address, owner, category } => {
                let event = RawEvent::Alloc { id, requested, granted, address, owner, category };
                let block = ((context.pool, id), Told { time, context, event });
                if let Some((key, told)) = self.recent[slot(id)].replace(block) {
                    self.others.insert(key, told);
                }
            }
            RawEvent::Free { id } => {
                let (key, recent) = ((context.pool, id), &mut self.recent[slot(id)]);
                if recent.as_ref().is_some_and(|(known, _)| *known == key) {
                    *recent = None;
                } else {
                    self.others.remove(&key);
                }
            }
            RawEvent::Retag { id, owner: new_owner, category: new_category } => {
                let key = (context.pool, id);
                let recent = self.recent[slot(id)].as_mut().filter(|(known, _)| *known == key);
                let told = recent.map(|(_, told)| told).or_else(|| self.others.get_mut(&key));
                if let Some(Told { event: RawEvent::Alloc { owner, category, .. }, .. }) = told {
                    (*owner, *category) = (new_owner, new_category);
                }
            }
            RawEvent::Region { address, bytes, taken: true } => {
                let event = RawEvent::Region { address, bytes, taken: true };
                self.regions.insert((context.pool, address), Told { time, context, event });
            }
            RawEvent::Region { address, taken: false, .. } => {
                self.regions.remove(&(context.pool, address));
            }
            RawEvent::Switch { .. }
            | RawEvent::Owner { .. }
            | RawEvent::Pool { .. }
            | RawEvent::Report { .. } => {
                return false;
            }
            _ => {}
        }
        true
    }

    /// A block of events that tell of all this again, in the order of time, and of how many were lost.
    pub(super) fn told_again(self, lost: u64) -> Vec<u8> {
        let blocks = self.recent.into_iter().flatten().chain(self.others);
        let mut told: Vec<(Key, Told)> = blocks.chain(self.regions).collect();
        // A block lies in a region that was there before it.
        let is_block = |told: &Told| matches!(told.event, RawEvent::Alloc { .. });
        told.sort_unstable_by_key(|(key, told)| (told.time, is_block(told), *key));
        let mut encoder = Encoder::default();
        for (_, Told { time, context, event }) in told {
            encoder.at(context);
            encoder.push(time, &event);
        }
        encoder.push(0, &RawEvent::Lost { events: lost });
        encoder.into_bytes()
    }
}
