//! Selects spans of time, so that the state at many moments of a long recording is complete.
//!
//! The moments are those of every 2ⁿ-th event and a few chosen ones. A span is kept if it covers one of them, so the
//! spans that cover a kept moment are exactly those that held then. The most important spans last longest and cost
//! least: one span serves all moments that it covers.

use highwater_files::lean;

use crate::record::{Event, Recording};

/// The level of spans that cover a chosen moment. No grid of events is as coarse.
const CHOSEN: u32 = 64;

/// The most moments of the grid.
const MOST_MOMENTS: usize = 1 << 13;

/// The moments of a recording from which a sample selects.
#[derive(Debug)]
pub(super) struct Moments<'a> {
    events: &'a [Event],
    chosen: Vec<u64>,
}

impl<'a> Moments<'a> {
    /// Keeps these times at any level.
    pub(super) fn new(recording: &'a Recording, mut chosen: Vec<u64>) -> Self {
        chosen.sort_unstable();
        chosen.dedup();
        Self { events: recording.events(), chosen }
    }

    /// Returns the finest level with few enough moments.
    pub(super) fn first_level(&self) -> u32 {
        let strides = self.events.len().div_ceil(MOST_MOMENTS).max(1);
        strides.next_power_of_two().trailing_zeros() + 1
    }

    /// Returns the coarsest level of which a moment is from `from_ns` until before `to_ns`; 0 without one.
    ///
    /// Level n has the times of the events whose indices are multiples of 2ⁿ⁻¹.
    pub(super) fn level(&self, from_ns: u64, to_ns: u64) -> u32 {
        let next = self.chosen.partition_point(|&at| at < from_ns);
        if self.chosen.get(next).is_some_and(|&at| at < to_ns) {
            return CHOSEN;
        }
        let first = self.events.partition_point(|event| event.at_ns < from_ns);
        let end = self.events.partition_point(|event| event.at_ns < to_ns);
        match first.checked_sub(1) {
            _ if first >= end => 0,
            // The index 0 is a multiple of everything.
            None => CHOSEN,
            // A multiple lies between two indices if their difference begins at its bit or above.
            Some(before) => (before ^ (end - 1)).ilog2() + 1,
        }
    }

    /// Returns the times of the moments of a level, in order.
    pub(super) fn times(&self, level: u32) -> Vec<u64> {
        if level > CHOSEN {
            return Vec::new();
        }
        let stride = 1_usize.checked_shl(level.saturating_sub(1)).unwrap_or(usize::MAX);
        let grid = self.events.iter().step_by(stride).map(|event| event.at_ns);
        let mut times: Vec<u64> = grid.chain(self.chosen.iter().copied()).collect();
        times.sort_unstable();
        times.dedup();
        times
    }
}

/// A limited number of spans, those of the coarsest levels.
#[derive(Debug)]
pub(super) struct Sample<T> {
    most: usize,
    level: u32,
    kept: Vec<(u32, T)>,
}

impl<T> Sample<T> {
    /// Creates a sample that keeps at most so many spans, of this level or above.
    pub(super) const fn new(most: usize, level: u32) -> Self {
        Self { most, level, kept: Vec::new() }
    }

    /// Adds a span of this level. Raises the level of the sample until the spans are few enough.
    pub(super) fn offer(&mut self, level: u32, span: T) {
        while self.kept.len() >= self.most && level >= self.level {
            self.level += 1;
            let least = self.level;
            self.kept.retain(|&(level, _)| level >= least);
            if self.kept.is_empty() {
                self.kept = Vec::new();
            }
        }
        if level >= self.level {
            lean::push(&mut self.kept, (level, span));
        }
    }

    /// Returns the lowest level of which every span is kept.
    pub(super) const fn level(&self) -> u32 {
        self.level
    }

    /// Returns the spans, in the order in which they were added.
    pub(super) fn into_spans(self) -> impl Iterator<Item = T> {
        self.kept.into_iter().map(|(_, span)| span)
    }
}
