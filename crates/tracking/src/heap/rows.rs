//! The counters of all scopes: a table without locks that grows by segments.
//!
//! Segment `k` has twice as many rows as segment `k - 1`, and rows never move. New segments come from the system's
//! allocator, because this code runs within the global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use bfc_core::OwnerId;

/// Memory of the heap that was allocated in one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapFigures {
    /// Live bytes as requested.
    pub live_bytes: u64,
    /// The most live bytes at one time.
    pub peak_bytes: u64,
    /// Allocations and reallocations.
    pub calls: u64,
}

/// The counters of one scope. A cache line each, because threads often work in different scopes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row {
    live: AtomicU64,
    peak: AtomicU64,
    calls: AtomicU64,
}

impl Row {
    const fn new() -> Self {
        Self { live: AtomicU64::new(0), peak: AtomicU64::new(0), calls: AtomicU64::new(0) }
    }

    #[inline]
    fn add(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        // A new peak is rare, and a load costs less than an update.
        if live > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(live, Ordering::Relaxed);
        }
    }

    #[inline]
    fn remove(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Changes the bytes in one step, so that a reallocation is no peak.
    #[inline]
    fn change(&self, before: u64, after: u64) {
        if after > before { self.add(after - before) } else { self.remove(before - after) }
    }

    fn figures(&self) -> HeapFigures {
        HeapFigures {
            live_bytes: self.live.load(Ordering::Relaxed),
            peak_bytes: self.peak.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
        }
    }
}

/// The rows of the first segment.
const FIRST: usize = 64;

/// Enough segments for every owner.
const SEGMENTS: usize = 16;

static FIRST_ROWS: [Row; FIRST] = [const { Row::new() }; FIRST];

/// The further segments, or null.
static SEGMENT_ROWS: [AtomicPtr<Row>; SEGMENTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS];

/// Returns the segment of an index above the first rows, and the position in it.
const fn position(index: usize) -> (usize, usize) {
    let segment = (index / FIRST).ilog2() as usize;
    (segment, index - (FIRST << segment))
}

/// Returns the layout of a segment.
fn layout(segment: usize) -> Option<Layout> {
    Layout::array::<Row>(FIRST << segment).ok()
}

/// Returns the row of a scope, if its segment exists.
#[inline]
fn existing(index: usize) -> Option<&'static Row> {
    if index < FIRST {
        return Some(&FIRST_ROWS[index]);
    }
    let (segment, place) = position(index);
    let rows = SEGMENT_ROWS.get(segment)?.load(Ordering::Acquire);
    if rows.is_null() {
        return None;
    }
    // SAFETY: the segment has more than `place` rows.
    let row = unsafe { rows.add(place) };
    // SAFETY: segments are initialized before they are published, and live forever.
    Some(unsafe { &*row })
}

/// Creates the segment of a scope.
#[cold]
fn create(index: usize) -> Option<&'static Row> {
    let (segment, _) = position(index);
    let (slot, layout) = (SEGMENT_ROWS.get(segment)?, layout(segment)?);
    // SAFETY: the layout is not empty.
    let rows = unsafe { System.alloc_zeroed(layout) }.cast::<Row>();
    if rows.is_null() {
        return None;
    }
    // Zeroed rows are valid. Another thread may have been faster.
    if slot.compare_exchange(ptr::null_mut(), rows, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: this thread has just allocated the rows, and no other has seen them.
        unsafe { System.dealloc(rows.cast(), layout) };
    }
    existing(index)
}

/// Charges an allocation to a scope, or to the root if there is no memory for the scope's row. Returns the scope charged.
#[inline]
pub(super) fn charge(scope: OwnerId, bytes: usize) -> u32 {
    let index = scope.index();
    let (row, index) = match existing(index).or_else(|| create(index)) {
        Some(row) => (row, index as u32),
        None => (&FIRST_ROWS[0], 0),
    };
    row.calls.fetch_add(1, Ordering::Relaxed);
    row.add(bytes as u64);
    index
}

/// Ends an allocation that was charged to this scope.
#[inline]
pub(super) fn credit(scope: u32, bytes: usize) {
    if let Some(row) = existing(scope as usize) {
        row.remove(bytes as u64);
    }
}

/// Changes the size of an allocation that was charged to this scope.
#[inline]
pub(super) fn change(scope: u32, before: usize, after: usize) {
    if let Some(row) = existing(scope as usize) {
        row.calls.fetch_add(1, Ordering::Relaxed);
        row.change(before as u64, after as u64);
    }
}

/// Returns the figures of the scopes that ever allocated.
pub(super) fn by_scope() -> Vec<(OwnerId, HeapFigures)> {
    let segments = SEGMENT_ROWS.iter().enumerate();
    let existing_segments = segments.filter(|(_, rows)| !rows.load(Ordering::Acquire).is_null());
    let further = existing_segments.flat_map(|(segment, _)| (FIRST << segment)..(FIRST << (segment + 1)));
    let rows = (0..FIRST).chain(further).filter_map(|index| Some((index, existing(index)?.figures())));
    rows.filter(|(_, figures)| figures.calls > 0)
        .map(|(index, figures)| (OwnerId::from_index(index), figures))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_fill_segments_in_order() {
        let all = [FIRST, 2 * FIRST - 1, 2 * FIRST, 4 * FIRST - 1, 4 * FIRST].map(position);
        assert_eq!(all, [(0, 0), (0, FIRST - 1), (1, 0), (1, 2 * FIRST - 1), (2, 0)]);
        // The last owner has a row.
        assert_eq!(position((1 << 20) - 1).0, 13);
        assert!(position((1 << 20) - 1).0 < SEGMENTS);
    }

    #[test]
    fn an_index_beyond_all_rows_has_no_row() {
        assert!(existing(u32::MAX as usize).is_none());
        assert!(create(u32::MAX as usize).is_none());
    }
}
