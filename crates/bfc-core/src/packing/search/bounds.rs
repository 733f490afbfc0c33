//! Lower bounds on the offsets of unplaced blocks.
//!
//! A block lies at least as high as the highest of its sections. If nothing carries it there, it lies on an unplaced
//! block, at least as high as the lowest of those can end. A section whose blocks all lie above its height rises to the
//! lowest of them, which may raise others. At the fixed point, the blocks of each section are stacked in order of these
//! bounds. No placement leaves more spare space there: this is the optimal order of jobs with release times on one machine.

use std::ops::Range;

use super::super::problem::Problem;
use super::{NONE, Stacking};

/// The bounds of the blocks and sections in the current group.
#[derive(Debug)]
pub(super) struct Bounds {
    /// By block: the minimum offset.
    pub(super) lowest: Vec<u64>,
    /// By block: whether the ground or a placed block can carry it there.
    pub(super) carried: Vec<bool>,
    /// By section: unplaced bytes.
    pub(super) to_come: Vec<u64>,
    /// By section: the smallest ends of the unplaced blocks.
    pub(super) least_ends: Vec<LeastEnds>,
    /// By section: the number of blocks that can lie at its height; `None` if unknown.
    pub(super) answers: Vec<Option<u64>>,
    /// Scratch, by section.
    floors: Vec<u64>,
    /// Scratch: the blocks of a group.
    sorted: Vec<u32>,
}

/// The lowest end of an unplaced block in a section, that block, and the lowest end of the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeastEnds {
    pub(super) first: u64,
    block: u32,
    second: u64,
}

impl LeastEnds {
    const NOTHING: Self = Self { first: u64::MAX, block: NONE, second: u64::MAX };

    fn note(&mut self, block: u32, end: u64) {
        if end < self.first {
            *self = Self { first: end, block, second: self.first };
        } else {
            self.second = self.second.min(end);
        }
    }

    const fn without(&self, block: u32) -> u64 {
        if self.block == block { self.second } else { self.first }
    }
}

impl Bounds {
    pub(super) fn new(blocks: usize, sections: usize) -> Self {
        Self {
            lowest: vec![0; blocks],
            carried: vec![false; blocks],
            to_come: vec![0; sections],
            least_ends: vec![LeastEnds::NOTHING; sections],
            answers: vec![None; sections],
            floors: vec![0; sections],
            sorted: Vec::with_capacity(blocks),
        }
    }

    /// Computes the smallest ends in all sections of a group.
    pub(super) fn note_least_ends(&mut self, problem: &Problem, group: &[u32], all: Range<usize>) {
        self.least_ends[all].fill(LeastEnds::NOTHING);
        for &block in group {
            let (start, end) = problem.sections.spans[block as usize];
            let block_end = self.lowest[block as usize] + problem.sizes[block as usize];
            for ends in &mut self.least_ends[start as usize..end as usize] {
                ends.note(block, block_end);
            }
        }
    }

    /// Computes the smallest ends of blocks outside of `section`, for [`least_end_beside`](Self::least_end_beside).
    pub(super) fn note_ends_beside(
        &mut self,
        problem: &Problem,
        group: &[u32],
        all: Range<usize>,
        section: usize,
    ) {
        // Blocks before the section by the section after their last, blocks after it by their first.
        self.floors[all.clone()].fill(u64::MAX);
        for &block in group {
            let (start, end) = problem.sections.spans[block as usize];
            let (start, end) = (start as usize, end as usize);
            let nearest = if end <= section {
                end
            } else if start > section {
                start
            } else {
                continue;
            };
            let block_end = self.lowest[block as usize] + problem.sizes[block as usize];
            self.floors[nearest] = self.floors[nearest].min(block_end);
        }
        // The minimum over all that reach this far or nearer.
        for before in (all.start..section).rev() {
            self.floors[before] = self.floors[before].min(self.floors[before + 1]);
        }
        for after in section + 2..all.end {
            self.floors[after] = self.floors[after].min(self.floors[after - 1]);
        }
    }

    /// Returns the smallest end of the blocks in `sections`, excluding those in the section of the last computation.
    pub(super) fn least_end_beside(&self, sections: Range<usize>, section: usize) -> u64 {
        let before = if sections.start < section { self.floors[sections.start + 1] } else { u64::MAX };
        let after = if sections.end - 1 > section { self.floors[sections.end - 1] } else { u64::MAX };
        before.min(after)
    }
}

impl Stacking<'_> {
    /// Computes the bounds of the group in the sections of `range` and raises heights. Returns `false` if no placement
    /// fits the capacity.
    pub(super) fn bound(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> bool {
        let all = range.0 as usize..range.1 as usize;
        loop {
            let carried = self.keep_up(group);
            if !carried && !self.lift(group, all.clone()) {
                return false;
            }
            match self.raise(group, all.clone(), capacity) {
                Some(true) => {}
                Some(false) => break,
                None => return false,
            }
        }
        self.has_room(group, all, capacity)
    }

    /// Raises every block to its highest section. Returns whether all are carried there.
    fn keep_up(&mut self, group: &[u32]) -> bool {
        let mut all_carried = true;
        for &block in group {
            let sections = self.sections(block);
            // Each block counts as a step, and so does every sixteenth of its sections.
            self.steps += 1 + sections.len() as u64 / 16;
            let highest = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
            let height = highest(&self.ground.heights[sections.clone()]);
            let carried = highest(&self.ground.tops[sections]) == height;
            self.bounds.lowest[block as usize] = height;
            self.bounds.carried[block as usize] = carried;
            all_carried &= carried;
        }
        all_carried
    }

    /// Raises uncarried blocks onto other unplaced ones. Returns `false` if there is none.
    fn lift(&mut self, group: &[u32], all: Range<usize>) -> bool {
        self.bounds.note_least_ends(self.problem, group, all);
        for &block in group.iter().filter(|&&block| !self.bounds.carried[block as usize]) {
            let ends = &self.bounds.least_ends[self.sections(block)];
            let Some(least) = ends.iter().map(|ends| ends.without(block)).min().filter(|&end| end < u64::MAX)
            else {
                return false;
            };
            let lowest = &mut self.bounds.lowest[block as usize];
            *lowest = (*lowest).max(least);
        }
        true
    }

    /// Raises each section to its lowest unplaced block. Returns whether any rose; `None` if one then has too little
    /// space.
    fn raise(&mut self, group: &[u32], all: Range<usize>, capacity: u64) -> Option<bool> {
        self.steps += all.len() as u64;
        self.bounds.floors[all.clone()].fill(u64::MAX);
        self.bounds.to_come[all.clone()].fill(0);
        for &block in group {
            let (sections, size) = (self.sections(block), self.size(block));
            let lowest = self.bounds.lowest[block as usize];
            for floor in &mut self.bounds.floors[sections.clone()] {
                *floor = lowest.min(*floor);
            }
            for to_come in &mut self.bounds.to_come[sections] {
                *to_come += size;
            }
        }
        let mut rose = false;
        for section in all {
            let floor = self.bounds.floors[section];
            if floor.saturating_add(self.bounds.to_come[section]) > capacity {
                self.weights[section] += 1;
                return None;
            }
            rose |= floor > self.ground.heights[section];
            self.ground.heights[section] = floor.max(self.ground.heights[section]);
        }
        Some(rose)
    }

    /// Whether the blocks of each section fit when stacked in order of their bounds.
    fn has_room(&mut self, group: &[u32], all: Range<usize>, capacity: u64) -> bool {
        let mut sorted = std::mem::take(&mut self.bounds.sorted);
        sorted.clear();
        sorted.extend_from_slice(group);
        sorted.sort_unstable_by_key(|&block| self.bounds.lowest[block as usize]);
        self.bounds.floors[all].fill(0);
        let mut fits = true;
        'blocks: for &block in &sorted {
            let (lowest, size) = (self.bounds.lowest[block as usize], self.size(block));
            for section in self.sections(block) {
                let end = self.bounds.floors[section].max(lowest) + size;
                self.bounds.floors[section] = end;
                if end > capacity {
                    self.weights[section] += 1;
                    fits = false;
                    break 'blocks;
                }
            }
        }
        self.bounds.sorted = sorted;
        fits
    }
}
