//! The regions and live blocks at the end of the events that a ring has lost.

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

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Carried {
    blocks: FxHashMap<Key, Told>,
    regions: BTreeMap<Key, Told>,
}

impl Carried {
    /// Takes in an event that is lost; whether it was one.
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

    /// A block of events that tell of all this again, in the order of time, and of how many were lost.
    pub(super) fn told_again(self, lost: u64) -> Vec<u8> {
        let mut told: Vec<(Key, Told)> = self.blocks.into_iter().chain(self.regions).collect();
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
