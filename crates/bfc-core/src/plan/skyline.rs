//! Placement from below: whatever fits is laid onto the lowest part of the skyline.
//!
//! The skyline says how high the space is filled in each section. Of the blocks whose sections all lie in its lowest part,
//! the first of an order is placed there; if there is none, that part can no longer be used and rises to the lower of
//! its neighbours. No block is ever compared with those placed before, so the time is about proportional to the number of
//! blocks, however many live at a time; greedy placement looks at all of these for each block.
//!
//! Source: Burke, Kendall, Whitwell, "A new placement heuristic for the orthogonal stock-cutting problem" (2004); for
//! memory, Sekiyama and others (2018).

use std::collections::{BTreeMap, BTreeSet};

use super::greedy::{Offsets, Problem};
use super::within::Within;

/// How high the space is filled, in parts of equal height.
#[derive(Debug, Default)]
struct Skyline {
    /// By first section: the section after the last, and the height.
    parts: BTreeMap<u32, (u32, u64)>,
    /// Height and first section.
    by_height: BTreeSet<(u64, u32)>,
}

impl Skyline {
    /// Takes the lowest part out, the earliest of several: its sections and its height.
    fn take_lowest(&mut self) -> Option<((u32, u32), u64)> {
        let (height, start) = self.by_height.pop_first()?;
        let (end, _) = self.parts.remove(&start)?;
        Some(((start, end), height))
    }

    /// Puts a part in where none is, and joins it to neighbours of its height.
    fn put(&mut self, (mut start, mut end): (u32, u32), height: u64) {
        if start == end {
            return;
        }
        if let Some((&before, &(_, same))) = self.parts.range(..start).next_back()
            && self.parts[&before] == (start, height)
        {
            self.forget(before, same);
            start = before;
        }
        if let Some(&(after, same)) = self.parts.get(&end)
            && same == height
        {
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

    /// The height of the lower neighbour of sections that are not in the skyline.
    fn lower_neighbour(&self, (start, end): (u32, u32)) -> Option<u64> {
        let before = self.parts.range(..start).next_back().filter(|(_, part)| part.0 == start);
        let after = self.parts.get(&end);
        before.map(|(_, part)| part.1).into_iter().chain(after.map(|part| part.1)).min()
    }
}

/// Places all blocks, those in front of the order first where several fit. Returns the steps it took.
pub(super) fn stack(problem: &Problem, order: &[u32], into: &mut Offsets) -> u64 {
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
        } else if let Some(height) = skyline.lower_neighbour(sections) {
            skyline.put(sections, height);
        }
        // A part without neighbours is all there is, and nothing is left to place.
    }
    *into = Offsets::of(offsets, &problem.sizes);
    left.steps
}
