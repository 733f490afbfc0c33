//! The granted bytes, the regions and the streams of a snapshot's blocks.

use std::collections::{BTreeMap, HashMap};

use bfc_core::Span;

use super::StreamName;
use super::collect::{Collected, Effect, EventStream, Life};
use super::regions::{KnownRegion, RegionMap, before_events};
use super::rounding::Rounding;
use super::segments::{BlockState, Segments};

/// The results besides the blocks.
pub(super) struct Placed {
    /// The regions that are older than the first event.
    pub(super) older: Vec<Span>,
    /// The number of blocks that are live at the end with another size than the rules give.
    pub(super) contradictions: u64,
    pub(super) streams: Vec<StreamName>,
}

/// Computes the granted bytes and the streams of all blocks, and the streams of the segments. The blocks of other
/// allocators than PyTorch's have their exact sizes.
pub(super) fn place(
    collected: &mut Collected,
    segments: &mut Segments,
    rounding: &Rounding,
    is_exact: bool,
) -> Placed {
    let (regions, found) = before_events(segments, &collected.regions);
    let older = regions.iter().collect();
    let blocks = segments.list.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state != BlockState::Free);
    let mut placer = Placer {
        rounding,
        is_exact,
        sizes: live.map(|block| (block.address, block.bytes)).collect(),
        contradictions: 0,
        regions,
        live: BTreeMap::new(),
        streams: Streams::default(),
        of_events: &collected.streams,
    };
    // A gap behind an earlier block is known only once all of them are.
    let (earlier, lives) = collected.lives.split_at_mut(collected.earlier_count);
    for life in &*earlier {
        placer.live.insert(life.address, life.requested);
    }
    for life in earlier.iter_mut() {
        placer.alloc(life);
    }
    let mut next = 0;
    for step in &collected.steps {
        match step.effect {
            Effect::Alloc => {
                if let Some(life) = lives.get_mut(next) {
                    placer.alloc(life);
                }
                next += 1;
            }
            Effect::Free(number) => {
                let number = number as usize;
                let life = earlier.get(number).or_else(|| lives.get(number - earlier.len()));
                if let Some(life) = life {
                    placer.live.remove(&life.address);
                }
            }
            Effect::Region(number) => {
                let change = &collected.regions[number as usize];
                if change.taken {
                    placer.regions.insert(change.span.address, found[number as usize]);
                } else {
                    placer.regions.remove(change.span);
                }
            }
            Effect::Oom(_) => {}
        }
    }
    for (segment, &(cuda_stream, pool)) in segments.list.iter_mut().zip(&segments.streams) {
        segment.stream = placer.streams.number(StreamName { cuda_stream, pool });
    }
    Placed { older, contradictions: placer.contradictions, streams: placer.streams.names }
}

/// Follows the regions and the live blocks.
struct Placer<'a> {
    rounding: &'a Rounding,
    is_exact: bool,
    /// The sizes of the blocks that are live at the end.
    sizes: HashMap<u64, u64>,
    contradictions: u64,
    regions: RegionMap,
    /// The live blocks in regions that may leave the rest of a free block unsplit.
    live: BTreeMap<u64, u64>,
    streams: Streams,
    of_events: &'a [EventStream],
}

impl Placer<'_> {
    fn alloc(&mut self, life: &mut Life) {
        let region = self.regions.at(life.address);
        let (cuda_stream, pool) = self.of_events.get(life.stream as usize).copied().unwrap_or_default();
        let pool = pool.unwrap_or_else(|| region.map_or((0, 0), |(_, region)| region.pool));
        life.stream = self.streams.number(StreamName { cuda_stream, pool });
        let at_end = if life.freed.is_none() { self.sizes.get(&life.address).copied() } else { None };
        let ruled = self.granted(life, region);
        self.contradictions += u64::from(at_end.is_some_and(|bytes| bytes != ruled));
        life.granted = at_end.unwrap_or(ruled).max(life.requested);
        if region.is_some_and(|(_, region)| self.tracks(region)) {
            self.live.insert(life.address, life.granted);
        }
    }

    /// Returns whether the blocks of a region may keep the rest of a free block.
    const fn tracks(&self, region: KnownRegion) -> bool {
        !region.kind.is_small && !region.kind.is_expandable
    }

    fn granted(&self, life: &Life, region: Option<(u64, KnownRegion)>) -> u64 {
        match region {
            // Other allocators round in other ways.
            _ if self.is_exact => life.requested,
            Some((start, region)) if self.tracks(region) => {
                let next = life.address.checked_add(1).and_then(|next| self.live.range(next..).next());
                let end = start.saturating_add(region.bytes);
                let end = next.map_or(end, |(&next, _)| next.min(end));
                self.rounding.granted(region.kind, life.requested, end - life.address)
            }
            _ => self.rounding.round(life.requested),
        }
    }
}

/// Numbers streams in the order of their first use. The default stream is the first.
struct Streams {
    names: Vec<StreamName>,
    numbers: HashMap<StreamName, u32>,
    last: (StreamName, u32),
}

impl Default for Streams {
    fn default() -> Self {
        let first = StreamName::default();
        Self { names: vec![first], numbers: HashMap::from([(first, 0)]), last: (first, 0) }
    }
}

impl Streams {
    fn number(&mut self, name: StreamName) -> u32 {
        if self.last.0 == name {
            return self.last.1;
        }
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        self.last = (name, number);
        number
    }
}
