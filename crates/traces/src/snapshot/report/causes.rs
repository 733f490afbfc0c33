//! Why reserved memory exceeds requested memory at a moment.
//!
//! ```text
//! reserved = requested + rounding + rest of blocks + blocks that wait + free in use segments + idle segments
//! ```
//!
//! Every byte of a segment belongs to exactly one of these, so the causes sum up to the difference.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use highwater_tracking::{LiveBlock, Recording};
use serde::Serialize;

use super::levels::MemoryLevel;
use super::units::{Pieces, Unit};
use crate::trace::snapshot::Rounding;

/// The smallest block, and the step of sizes.
const STEP: u64 = 512;

/// Free bytes by the stream that may use them. PyTorch never lends free memory of one stream to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FreeBytes {
    /// Of the stream that allocates at this moment.
    pub same_stream_bytes: u64,
    /// Of other streams.
    pub other_streams_bytes: u64,
    /// Of private pools, such as those of CUDA graphs.
    pub private_pools_bytes: u64,
}

impl FreeBytes {
    /// Returns the sum.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        let streams = self.same_stream_bytes.saturating_add(self.other_streams_bytes);
        streams.saturating_add(self.private_pools_bytes)
    }

    fn add(&mut self, owner: Belongs, bytes: u64) {
        let figure = match owner {
            Belongs::Same => &mut self.same_stream_bytes,
            Belongs::Other => &mut self.other_streams_bytes,
            Belongs::Private => &mut self.private_pools_bytes,
        };
        *figure = figure.saturating_add(bytes);
    }
}

/// The parts of the difference between reserved and requested bytes, which sum up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GapCauses {
    /// Requests rounded up to multiples of 512 bytes.
    pub rounding_bytes: u64,
    /// Further rounding by `roundup_power2_divisions`.
    pub power2_rounding_bytes: u64,
    /// The rest of blocks that were larger than the rounded request and not split.
    pub unsplit_bytes: u64,
    /// Blocks that the program freed and that other streams still use (`record_stream`).
    pub pending_bytes: u64,
    /// Free memory in segments that live blocks keep.
    pub kept_free: FreeBytes,
    /// Segments without live blocks. `empty_cache` returns them to the device, except those of private pools.
    pub idle: FreeBytes,
}

impl GapCauses {
    /// Returns the sum: reserved less requested bytes.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        let rounding = self.rounding_bytes.saturating_add(self.power2_rounding_bytes);
        let blocks = rounding.saturating_add(self.unsplit_bytes).saturating_add(self.pending_bytes);
        blocks.saturating_add(self.kept_free.sum()).saturating_add(self.idle.sum())
    }

    /// Returns the causes with their names, in a fixed order.
    #[must_use]
    pub const fn rows(&self) -> [(&'static str, u64); 10] {
        let (kept, idle) = (&self.kept_free, &self.idle);
        [
            ("rounding to 512 bytes", self.rounding_bytes),
            ("rounding by roundup_power2_divisions", self.power2_rounding_bytes),
            ("rest of blocks that were not split", self.unsplit_bytes),
            ("freed, but used by other streams", self.pending_bytes),
            ("free beside live blocks", kept.same_stream_bytes),
            ("free beside live blocks, other streams", kept.other_streams_bytes),
            ("free beside live blocks, private pools", kept.private_pools_bytes),
            ("idle segments", idle.same_stream_bytes),
            ("idle segments, other streams", idle.other_streams_bytes),
            ("idle segments, private pools", idle.private_pools_bytes),
        ]
    }
}

/// The blocks of one owner that keep free memory. A segment counts for the owner of its largest live block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentKeeper {
    /// The path of the owner: the line of Python or the op that allocated the block.
    pub owner: String,
    /// The category of the block.
    pub category: String,
    /// Segments, or pages of expandable segments.
    pub segments: u64,
    /// Segments whose only live block this is.
    pub single_block_segments: u64,
    /// Live blocks in these segments.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub block_bytes: u64,
    /// Free bytes in these segments.
    pub free_bytes: u64,
}

/// Segments with exactly one live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SingleBlockSegments {
    /// The number of segments, or of pages of expandable segments.
    pub segments: u64,
    /// The bytes of the blocks.
    pub block_bytes: u64,
    /// The free bytes that they keep.
    pub free_bytes: u64,
}

/// The memory at a moment, and why reserved bytes exceed requested ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GapMoment {
    /// The memory.
    #[serde(flatten)]
    pub level: MemoryLevel,
    /// Reserved less requested bytes: the sum of the causes.
    pub gap_bytes: u64,
    /// The causes.
    pub causes: GapCauses,
    /// Segments, or pages of expandable segments.
    pub segments: u64,
    /// Those without live blocks.
    pub idle_segments: u64,
    /// Segments that a single block keeps.
    pub single_block_segments: SingleBlockSegments,
    /// Bytes of live blocks outside of all known segments. They count as reserved.
    pub outside_bytes: u64,
    /// The owners of blocks that keep free memory, the most first.
    pub keepers: Vec<SegmentKeeper>,
}

/// To whom free memory belongs, seen from the stream that allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belongs {
    Same,
    Other,
    Private,
}

/// Explains moments of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Explainer<'a> {
    pub(super) recording: &'a Recording,
    /// By block: the event before which the program freed it, if the block waited for other streams.
    pub(super) pending: &'a HashMap<u32, u32>,
    /// By stream: whether it is a private pool.
    pub(super) private: &'a [bool],
    pub(super) rounding: Rounding,
}

impl Explainer<'_> {
    /// Explains the moment of `level`, at which `pieces` are the segments and `stream` allocates.
    pub(super) fn explain(&self, level: MemoryLevel, pieces: &Pieces<'_>, stream: u32) -> GapMoment {
        let mut moment = GapMoment { level, ..GapMoment::default() };
        let units = pieces.units();
        let mut live = self.recording.live_after(level.event);
        live.sort_by_key(|live| self.recording.block(live.block).address);
        let mut fill = Fill::new(&units);
        let (mut allocated, mut requested) = (0_u64, 0_u64);
        for block in &live {
            allocated = allocated.saturating_add(block.bytes);
            requested = requested.saturating_add(self.count_block(&mut moment.causes, block, level.event));
            if !fill.add(self.recording.block(block.block).address, block) {
                moment.outside_bytes = moment.outside_bytes.saturating_add(block.bytes);
            }
        }
        let mut keepers: BTreeMap<(u32, usize), SegmentKeeper> = BTreeMap::new();
        for (unit, content) in units.iter().zip(&fill.contents) {
            let (free, belongs) = (unit.bytes - content.bytes, self.belongs(unit, stream));
            moment.segments += 1;
            let Some(largest) = content.largest else {
                moment.idle_segments += 1;
                moment.causes.idle.add(belongs, free);
                continue;
            };
            moment.causes.kept_free.add(belongs, free);
            if free == 0 {
                continue;
            }
            let is_single = content.blocks == 1;
            if is_single {
                let single = &mut moment.single_block_segments;
                single.segments += 1;
                single.block_bytes += content.bytes;
                single.free_bytes += free;
            }
            let keeper = keepers.entry((largest.owner, largest.category.index())).or_insert_with(|| {
                let owner = self.recording.owner_path(largest.owner);
                SegmentKeeper { owner, category: largest.category.name().to_owned(), ..Default::default() }
            });
            keeper.segments += 1;
            keeper.single_block_segments += u64::from(is_single);
            keeper.blocks += content.blocks;
            keeper.block_bytes += content.bytes;
            keeper.free_bytes += free;
        }
        moment.keepers = keepers.into_values().collect();
        moment.keepers.sort_by_key(|keeper| Reverse((keeper.free_bytes, keeper.segments)));
        let reserved = units.iter().fold(moment.outside_bytes, |sum, unit| sum.saturating_add(unit.bytes));
        moment.level.reserved_bytes = reserved;
        (moment.level.allocated_bytes, moment.level.requested_bytes) = (allocated, requested);
        moment.gap_bytes = moment.level.gap_bytes();
        moment
    }

    /// Counts what a block holds beyond its request, and returns the requested bytes.
    fn count_block(&self, causes: &mut GapCauses, live: &LiveBlock, event: u32) -> u64 {
        if self.pending.get(&live.block).is_some_and(|&freed| freed <= event) {
            causes.pending_bytes = causes.pending_bytes.saturating_add(live.bytes);
            return 0;
        }
        let (granted, requested) = (live.bytes, self.recording.block(live.block).requested.min(live.bytes));
        let step = requested.max(1).checked_next_multiple_of(STEP).unwrap_or(granted).min(granted);
        let rounded = self.rounding.round(requested).clamp(step, granted);
        for (cause, bytes) in [
            (&mut causes.rounding_bytes, step - requested),
            (&mut causes.power2_rounding_bytes, rounded - step),
            (&mut causes.unsplit_bytes, granted - rounded),
        ] {
            *cause = cause.saturating_add(bytes);
        }
        requested
    }

    fn belongs(&self, unit: &Unit, stream: u32) -> Belongs {
        match unit.stream {
            // A segment without any known block most likely belongs to the only stream.
            None => Belongs::Same,
            Some(owner) if owner == stream => Belongs::Same,
            Some(owner) if self.private.get(owner as usize).copied().unwrap_or(false) => Belongs::Private,
            Some(_) => Belongs::Other,
        }
    }
}

/// The live blocks of a unit.
#[derive(Clone, Copy, Debug, Default)]
struct Content<'a> {
    bytes: u64,
    blocks: u64,
    largest: Option<&'a LiveBlock>,
}

/// Places live blocks in units, both by address.
#[derive(Debug)]
struct Fill<'a> {
    units: &'a [Unit],
    contents: Vec<Content<'a>>,
    /// The first unit that may contain the next block.
    next: usize,
    /// The end of the last block.
    end: u64,
}

impl<'a> Fill<'a> {
    fn new(units: &'a [Unit]) -> Self {
        Self { units, contents: vec![Content::default(); units.len()], next: 0, end: 0 }
    }

    /// Adds a block that is not below earlier ones. Returns whether it lies in adjacent units and beside earlier blocks.
    fn add(&mut self, address: u64, block: &'a LiveBlock) -> bool {
        let unit_end = |unit: &Unit| unit.address.saturating_add(unit.bytes);
        let end = address.saturating_add(block.bytes);
        while self.units.get(self.next).is_some_and(|unit| unit_end(unit) <= address) {
            self.next += 1;
        }
        let (mut covered, mut last) = (address, self.next);
        while let Some(unit) = self.units.get(last).filter(|unit| unit.address <= covered) {
            covered = unit_end(unit);
            if covered >= end {
                break;
            }
            last += 1;
        }
        let starts_inside = self.units.get(self.next).is_some_and(|unit| unit.address <= address);
        if !starts_inside || address < self.end || covered < end || last >= self.units.len() {
            return false;
        }
        let units = self.units[self.next..=last].iter().zip(&mut self.contents[self.next..=last]);
        for (unit, content) in units {
            content.bytes += unit_end(unit).min(end) - unit.address.max(address);
            content.blocks += 1;
            if content.largest.is_none_or(|largest| largest.bytes < block.bytes) {
                content.largest = Some(block);
            }
        }
        self.end = end;
        true
    }
}
