//! The regions that pools hold, as pieces of addresses over time, and the sum of their bytes.
//!
//! A pool may return memory in other pieces than it took it, for example when it joins neighbors or unmaps a part of a
//! segment. A returned piece ends here, and what is left of its neighbors continues as pieces of their own.

use std::collections::BTreeMap;

use serde::Serialize;

use super::data::{differences, steps_up};
use super::sample::{Moments, Sample};
use super::space::Space;
use crate::record::{EventKind, Recording, Region};

/// The most pieces on a page.
const MOST_PIECES: usize = 1 << 14;

/// The most intervals of the curve, each of which keeps its lowest and its highest point.
const INTERVALS: usize = 1 << 13;

/// The streams of the blocks of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    Unknown,
    One(u32),
    Several,
}

/// A held piece, by its address.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    from_ns: u64,
    streams: Streams,
}

/// The held pieces of all pools.
#[derive(Debug)]
struct Held {
    pools: Vec<BTreeMap<u64, Piece>>,
    bytes: u128,
}

impl Held {
    fn new(recording: &Recording) -> Self {
        Self { pools: vec![BTreeMap::new(); recording.pools().len()], bytes: 0 }
    }

    /// Changes the pieces by a region that a pool took or returned, and tells the pieces that end.
    fn change(&mut self, region: &Region, at_ns: u64, ended: impl FnMut(u64, Piece)) {
        if region.taken { self.take(region, at_ns) } else { self.give_back(region, at_ns, ended) }
    }

    /// Adds the parts of a region that the pool does not hold yet.
    fn take(&mut self, region: &Region, at_ns: u64) {
        let pieces = &mut self.pools[region.pool as usize];
        let (mut from, end) = (region.address, region.address.saturating_add(region.bytes));
        if let Some((_, before)) = pieces.range(..=from).next_back() {
            from = from.max(before.end);
        }
        while from < end {
            let next = pieces.range(from..end).next().map(|(&address, piece)| (address, piece.end));
            let (stop, resume) = next.unwrap_or((end, end));
            if from < stop {
                pieces.insert(from, Piece { end: stop, from_ns: at_ns, streams: Streams::Unknown });
                self.bytes += u128::from(stop - from);
            }
            from = resume;
        }
    }

    fn give_back(&mut self, region: &Region, at_ns: u64, mut ended: impl FnMut(u64, Piece)) {
        let pieces = &mut self.pools[region.pool as usize];
        let (from, end) = (region.address, region.address.saturating_add(region.bytes));
        let before = pieces.range(..from).next_back().filter(|(_, piece)| piece.end > from);
        let mut next = before.map_or(from, |(&address, _)| address);
        while next < end {
            let Some((&address, &piece)) = pieces.range(next..end).next() else { break };
            pieces.remove(&address);
            ended(address, piece);
            if address < from {
                pieces.insert(address, Piece { end: from, from_ns: at_ns, ..piece });
            }
            if piece.end > end {
                pieces.insert(end, Piece { from_ns: at_ns, ..piece });
            }
            self.bytes -= u128::from(piece.end.min(end) - address.max(from));
            next = piece.end;
        }
    }

    /// The bytes of all pieces.
    fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }
}

/// The reserved bytes of all pools over time.
#[derive(Debug, Serialize)]
pub(super) struct Reserved {
    /// The number of points before downsampling.
    points: usize,
    /// Nanoseconds, as differences.
    at_ns: Vec<u64>,
    /// As differences.
    bytes: Vec<i128>,
    /// The most reserved bytes.
    peak_bytes: u64,
    /// When the reserved bytes exceed the live bytes the most.
    gap: Gap,
}

/// Reserved and live bytes at a moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Gap {
    /// The event that leaves them.
    #[serde(skip)]
    pub(super) event: u32,
    pub(super) at_ns: u64,
    reserved: u64,
    live: u64,
}

impl Reserved {
    /// Adds up the regions of all pools. Returns `None` if a pool with blocks has no regions: its reserved bytes are
    /// unknown.
    pub(super) fn of(recording: &Recording) -> Option<Self> {
        let mut has_regions = vec![false; recording.pools().len()];
        for region in recording.regions() {
            has_regions[region.pool as usize] = true;
        }
        let are_known =
            recording.blocks().iter().all(|block| block.granted == 0 || has_regions[block.pool as usize]);
        if recording.regions().is_empty() || !are_known {
            return None;
        }

        let mut held = Held::new(recording);
        let mut curve = Lowered::new(recording.regions().len());
        let (mut gap, mut live) = (None::<Gap>, 0_u64);
        for (number, event) in (0_u32..).zip(recording.events()) {
            match event.kind {
                EventKind::Region(region) => {
                    let region = &recording.regions()[region as usize];
                    held.change(region, event.at_ns, |_, _| ());
                    curve.push(event.at_ns, held.bytes());
                    // A pool takes a region for the block that follows.
                    if region.taken {
                        continue;
                    }
                }
                EventKind::Alloc(block) => live += recording.block(block).granted,
                EventKind::Free(block) => live -= recording.block(block).granted,
                _ => continue,
            }
            // Events that replace lost ones are no moments of the run.
            if (number as usize) < recording.carried_events() {
                continue;
            }
            let reserved = held.bytes();
            let is_larger = |gap: Gap| reserved.saturating_sub(live) > gap.reserved.saturating_sub(gap.live);
            if gap.is_none_or(is_larger) {
                gap = Some(Gap { event: number, at_ns: event.at_ns, reserved, live });
            }
        }
        let (points, peak_bytes) = (recording.regions().len(), curve.most);
        let kept = curve.finish();
        Some(Self {
            points,
            at_ns: steps_up(kept.iter().map(|&(at_ns, _)| at_ns)),
            bytes: differences(kept.iter().map(|&(_, bytes)| i128::from(bytes))).collect(),
            peak_bytes,
            gap: gap.unwrap_or_default(),
        })
    }

    /// Returns the moment at which the reserved bytes exceed the live bytes the most.
    pub(super) const fn gap(&self) -> Gap {
        self.gap
    }
}

/// A curve that keeps the lowest and the highest point of each interval, and the last point.
#[derive(Debug)]
struct Lowered {
    length: usize,
    /// Points of the current interval so far, and its lowest and its highest.
    points: usize,
    extremes: Option<[(u64, u64); 2]>,
    last: Option<(u64, u64)>,
    most: u64,
    kept: Vec<(u64, u64)>,
}

impl Lowered {
    fn new(points: usize) -> Self {
        let length = points.div_ceil(INTERVALS).max(1);
        Self { length, points: 0, extremes: None, last: None, most: 0, kept: Vec::new() }
    }

    fn push(&mut self, at_ns: u64, bytes: u64) {
        let point = (at_ns, bytes);
        self.most = self.most.max(bytes);
        let [low, high] = self.extremes.get_or_insert([point; 2]);
        if bytes < low.1 {
            *low = point;
        }
        if bytes > high.1 {
            *high = point;
        }
        self.last = Some(point);
        self.points += 1;
        if self.points == self.length {
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(mut extremes) = self.extremes.take() else { return };
        extremes.sort_unstable();
        self.kept.extend(extremes);
        self.points = 0;
    }

    fn finish(mut self) -> Vec<(u64, u64)> {
        self.close();
        self.kept.extend(self.last);
        self.kept.dedup();
        self.kept
    }
}

/// The pieces of regions for the map.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Begin, end, position, bytes, and the stream if all its blocks have the same.
    pub(super) rows: Vec<(u64, u64, u64, u64, Option<u32>)>,
    /// The level of which every piece is kept; 0 if all are.
    pub(super) level: u32,
    /// By pool: whether blocks lie in several pieces, so that neighbors are one region of the pool.
    pub(super) are_joined: Vec<bool>,
}

impl Pieces {
    /// Collects the pieces of a recording. A piece that lasts until the end ends after the last event.
    pub(super) fn of(recording: &Recording, space: &Space, moments: &Moments<'_>) -> Self {
        let mut held = Held::new(recording);
        let mut sample = Sample::new(MOST_PIECES, 0);
        let mut are_joined = vec![false; recording.pools().len()];
        let mut tell = |pool: u32, address: u64, piece: Piece, to_ns: u64| {
            let stream = if let Streams::One(stream) = piece.streams { Some(stream) } else { None };
            let row = (piece.from_ns, to_ns, space.place(pool, address), piece.end - address, stream);
            sample.offer(moments.level(piece.from_ns, to_ns), row);
        };
        for event in recording.events() {
            match event.kind {
                EventKind::Region(region) => {
                    let region = &recording.regions()[region as usize];
                    held.change(region, event.at_ns, |address, piece| {
                        tell(region.pool, address, piece, event.at_ns);
                    });
                }
                EventKind::Alloc(block) => {
                    let block = recording.block(block);
                    let pieces = &mut held.pools[block.pool as usize];
                    let Some((_, piece)) = pieces.range_mut(..=block.address).next_back() else { continue };
                    if block.address >= piece.end {
                        continue;
                    }
                    piece.streams = match piece.streams {
                        Streams::Unknown => Streams::One(block.stream),
                        Streams::One(stream) if stream == block.stream => piece.streams,
                        _ => Streams::Several,
                    };
                    are_joined[block.pool as usize] |=
                        block.address.saturating_add(block.granted) > piece.end;
                }
                _ => {}
            }
        }
        for (pool, pieces) in (0..).zip(&held.pools) {
            for (&address, &piece) in pieces {
                tell(pool, address, piece, recording.end_ns().saturating_add(1));
            }
        }
        let level = sample.level();
        let mut rows: Vec<_> = sample.into_spans().collect();
        rows.sort_by_key(|&(from_ns, ..)| from_ns);
        Self { rows, level, are_joined }
    }
}
