//! The regions and live blocks at the end of the events that a ring has lost.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::record::wire::{Encoder, EventContext, RawEvent};

/// A pool and a number or an address in it.
type Key = (u32, u64);

/// The event that created a live block or a region.
#[derive(Clone, Copy, Debug)]
struct Told {
    time: u64,
    context: EventContext,
    event: RawEvent<'static>,
}

/// The live blocks and regions at the end of the lost events.
#[derive(Debug, Default)]
pub(super) struct Carried {
    blocks: FxHashMap<Key, Told>,
    regions: BTreeMap<Key, Told>,
}

impl Carried {
    /// Processes a lost event. Returns whether it counts as an event.
    pub(super) fn take(&mut self, time: u64, context: EventContext, event: &RawEvent<'_>) -> bool {
        match *event {
            RawEvent::Alloc { id, requested, granted, address, owner, category } => {
                let event = RawEvent::Alloc { id, requested, granted, address, owner, category };
                self.blocks.insert((context.pool, id), Told { time, context, event });
            }
            RawEvent::Free { id } => {
                self.blocks.remove(&(context.pool, id));
            }
            RawEvent::Retag { id, owner: new_owner, category: new_category } => {
                let told = self.blocks.get_mut(&(context.pool, id));
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

    /// Returns a block of events that recreate this state in the order of time, and the number of lost events.
    pub(super) fn told_again(self, lost: u64) -> Vec<u8> {
        let mut told: Vec<(Key, Told)> = self.blocks.into_iter().chain(self.regions).collect();
        // A region comes before the blocks in it.
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
