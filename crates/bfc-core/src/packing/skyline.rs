//! Placement from below: blocks go onto the lowest part of the skyline.
//!
//! The skyline is the filled height in each section. Of the blocks whose sections all lie in its lowest part, the first
//! of an order is placed there. If there is none, that part is lost and rises to its lower neighbor. No block is
//! compared with placed ones, so the time is roughly proportional to the number of blocks.
//!
//! Source: Burke, Kendall, Whitwell, "A new placement heuristic for the orthogonal stock-cutting problem" (2004); for
//! memory, Sekiyama and others (2018).

use std::collections::{BTreeMap, BTreeSet};

use super::problem::{Offsets, Problem};
use super::within::Within;

/// The filled heights, in parts of equal height.
#[derive(Debug, Default)]
struct Skyline {
    /// By first section: the end section and the height.
    parts: BTreeMap<u32, (u32, u64)>,
    /// Height and first section.
    by_height: BTreeSet<(u64, u32)>,
}

impl Skyline {
    /// Removes the lowest part, the earliest among equals. Returns its sections and height.
    fn take_lowest(&mut self) -> Option<((u32, u32), u64)> {
        let (height, start) = self.by_height.pop_first()?;
        let (end, _) = self.parts.remove(&start)?;
        Some(((start, end), height))
    }

    /// Inserts a part where none is, and merges it with neighbors of the same height.
    fn put(&mut self, (mut start, mut end): (u32, u32), height: u64) {
        if start == end {
            return;
        }
        let before = self.parts.range(..start).next_back().map(|(&before, &part)| (before, part));
        if let Some((before, part)) = before.filter(|&(_, part)| part == (start, height)) {
            self.forget(before, part.1);
            start = before;
        }
        if let Some((after, same)) = self.parts.get(&end).copied().filter(|part| part.1 == height) {
            self.forget(end, same);
            end = after;
        }
        self.parts.insert(start, (end, height));
        self.by_height.insert((height, start));
    }

    fn forget(&mut self, start: u32, height: u64) {
        self.parts.remove(&start);
        self.by_height.remove(&(height, start));
    }

    /// Returns the height of the lower neighbor of sections outside of the skyline.
    fn lower_neighbor(&self, (start, end): (u32, u32)) -> Option<u64> {
        let before = self.parts.range(..start).next_back().filter(|(_, part)| part.0 == start);
        let after = self.parts.get(&end);
        before.map(|(_, part)| part.1).into_iter().chain(after.map(|part| part.1)).min()
    }
}

/// Places all blocks, in order where several fit. Returns the placement and the number of steps.
pub(super) fn stack(problem: &Problem, order: &[u32]) -> (Offsets, u64) {
    let mut left = Within::new(&problem.sections, order);
    let mut skyline = Skyline::default();
    skyline.put((0, problem.sections.count), 0);
    let mut offsets = vec![0; order.len()];
    while let Some((sections, height)) = skyline.take_lowest() {
        if let Some(rank) = left.take(sections) {
            let block = order[rank as usize] as usize;
            let span = problem.sections.spans[block];
            offsets[block] = height;
            skyline.put((sections.0, span.0), height);
            skyline.put((span.1, sections.1), height);
            skyline.put(span, height + problem.sizes[block]);
        } else if let Some(height) = skyline.lower_neighbor(sections) {
            skyline.put(sections, height);
        }
        // A part without neighbors is the whole skyline, and no block is left to place.
    }
    (Offsets::of(offsets, &problem.sizes), left.steps)
}
