//! The segments of PyTorch's allocator at a moment, in the units that it can return.
//!
//! A segment returns to the device as a whole. An expandable segment consists of pages, and each page without a live
//! block can return.
//!
//! ```text
//! segment              [ live | free | live        ]   kept by two blocks
//! expandable segment   [ live | free ][ free      ][ live  ]   the page in the middle is idle
//! ```

use std::collections::BTreeMap;

use bfc_core::MIB;
use highwater_tracking::{BlockLife, Region};

use crate::trace::snapshot::SnapshotSegment;

/// The largest block of the small pool.
const SMALL: u64 = MIB;

/// The pages of expandable segments, for small and large blocks.
const SMALL_PAGE: u64 = 2 * MIB;
const LARGE_PAGE: u64 = 20 * MIB;

/// The most units that are distinguished. Further expandable segments count as a whole.
const MOST_UNITS: usize = 1 << 20;

/// A range of addresses that the allocator took in one piece, or the rest of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    /// The stream of its blocks; `None` until one is known.
    stream: Option<u32>,
    is_small: bool,
    is_expandable: bool,
}

/// A unit that returns to the device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: Option<u32>,
}

/// Which segments exist, from event to event.
#[derive(Clone, Debug)]
pub(super) struct Pieces<'a> {
    /// By address, without overlaps.
    pieces: BTreeMap<u64, Piece>,
    /// The number of pieces without a stream.
    unnamed: usize,
    /// The segments at the end, by address.
    last: &'a [SnapshotSegment],
    is_expandable: bool,
}

impl<'a> Pieces<'a> {
    /// Starts without segments. `last` are the segments at the end, by address.
    pub(super) const fn new(last: &'a [SnapshotSegment], is_expandable: bool) -> Self {
        Self { pieces: BTreeMap::new(), unnamed: 0, last, is_expandable }
    }

    /// Counts a region that the allocator took or returned.
    pub(super) fn change(&mut self, region: &Region) {
        self.remove(region.address, region.bytes);
        if region.taken && region.bytes > 0 {
            let (stream, is_small) = (None, region.bytes <= SMALL_PAGE);
            let piece = Piece { bytes: region.bytes, stream, is_small, is_expandable: self.is_expandable };
            self.pieces.insert(region.address, piece);
            self.unnamed += 1;
        }
    }

    /// Removes a range. Pieces that are partly outside keep the rest.
    fn remove(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        while let Some((&start, &piece)) = self.pieces.range(..end).next_back() {
            let piece_end = start.saturating_add(piece.bytes);
            if piece_end <= address {
                break;
            }
            self.pieces.remove(&start);
            self.unnamed -= usize::from(piece.stream.is_none());
            let mut keep = |from: u64, to: u64| {
                if from < to {
                    self.pieces.insert(from, Piece { bytes: to - from, ..piece });
                    self.unnamed += usize::from(piece.stream.is_none());
                }
            };
            keep(end.max(start), piece_end);
            keep(start, address.min(piece_end));
        }
    }

    /// Learns the stream and the pool of a segment from a block in it.
    pub(super) fn note(&mut self, block: &BlockLife) {
        if self.unnamed == 0 {
            return;
        }
        let found = self.pieces.range_mut(..=block.address).next_back();
        let Some((&start, piece)) = found else { return };
        if piece.stream.is_none() && block.address - start < piece.bytes {
            (piece.stream, piece.is_small) = (Some(block.stream), block.granted <= SMALL);
            self.unnamed -= 1;
        }
    }

    /// Returns the units by address.
    pub(super) fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        for (&address, piece) in &self.pieces {
            let last = self.last_segment(address);
            let stream = piece.stream.or(last.map(|segment| segment.stream));
            let is_expandable = piece.is_expandable || last.is_some_and(|segment| segment.is_expandable);
            let page = if piece.is_small { SMALL_PAGE } else { LARGE_PAGE };
            let room = MOST_UNITS.saturating_sub(units.len()) as u64;
            let length = if is_expandable && piece.bytes / page < room { page } else { piece.bytes };
            let mut done = 0;
            while done < piece.bytes {
                let bytes = length.min(piece.bytes - done);
                units.push(Unit { address: address + done, bytes, stream });
                done += bytes;
            }
        }
        units
    }

    /// Returns the segment at the end that contains the address.
    fn last_segment(&self, address: u64) -> Option<&'a SnapshotSegment> {
        let index = self.last.partition_point(|segment| segment.address <= address).checked_sub(1)?;
        self.last.get(index).filter(|segment| address - segment.address < segment.bytes)
    }
}
