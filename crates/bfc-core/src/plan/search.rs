//! Searching for a placement within a given capacity.
//!
//! Blocks are stacked from below: each lies on the highest of those placed before it that live together with it, and
//! none lies lower than the one placed before. Every placement can be brought into this form by letting all blocks
//! sink, so the search is complete. What makes it bearable:
//!
//! - The room between a block and what lies below it is lost. If what is left does not hold what is still to come in
//!   some section, there is no placement.
//! - A block is only placed next if no other could end below its start.
//! - Blocks that share no section with the others are placed on their own.
//! - A block that lives in all sections of such a group lies on top of it.
//!
//! Source: Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning" (ASPLOS
//! 2023), for all but the last rule.

use super::greedy::Problem;

/// What came of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A placement within the capacity.
    Found,
    /// There is none.
    Impossible,
    /// The steps were used up.
    GaveUp,
}

/// The last block placed; the next lies higher, or as high and comes later in the order.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    offset: u64,
    rank: u32,
}

/// A block that could come next.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    offset: u64,
    rank: u32,
    index: u32,
}

/// A search with one order of trying.
#[derive(Debug)]
pub(super) struct Stacking<'a> {
    problem: &'a Problem,
    /// By block: its place in the order in which blocks are tried.
    ranks: Vec<u32>,
    /// By block.
    pub(super) offsets: Vec<u64>,
    /// By section: where the highest block ends.
    heights: Vec<u64>,
    /// Scratch, by section: the least offset at which anything to come can lie, and how much is to come.
    floors: Vec<u64>,
    to_come: Vec<u64>,
    pub(super) steps: u64,
    most_steps: u64,
}

impl<'a> Stacking<'a> {
    /// `order` are all blocks, those to be tried first in front.
    pub(super) fn new(problem: &'a Problem, order: &[u32], most_steps: u64) -> Self {
        let mut ranks = vec![0; order.len()];
        for (rank, &block) in (1..).zip(order) {
            ranks[block as usize] = rank;
        }
        let sections = vec![0; problem.sections.count as usize];
        Self {
            problem,
            ranks,
            offsets: vec![0; order.len()],
            heights: sections.clone(),
            floors: sections.clone(),
            to_come: sections,
            steps: 0,
            most_steps,
        }
    }

    /// Looks for a placement of all blocks below `capacity`.
    pub(super) fn run(&mut self, capacity: u64) -> Outcome {
        // Groups are found by one pass over the blocks in the order of their first sections.
        let mut blocks: Vec<u32> = (0..).take(self.problem.sizes.len()).collect();
        blocks.sort_by_key(|&block| self.span(block));
        self.place_groups(&blocks, Last::default(), capacity)
    }

    fn span(&self, block: u32) -> (u32, u32) {
        self.problem.sections.spans[block as usize]
    }

    fn size(&self, block: u32) -> u64 {
        self.problem.sizes[block as usize]
    }

    /// Places blocks that fall into groups without common sections.
    fn place_groups(&mut self, blocks: &[u32], last: Last, capacity: u64) -> Outcome {
        let mut rest = blocks;
        while let Some(&first) = rest.first() {
            let (start, mut end) = self.span(first);
            let apart = rest.iter().position(|&block| {
                let span = self.span(block);
                let apart = span.0 >= end;
                end = if apart { end } else { end.max(span.1) };
                apart
            });
            let (group, others) = rest.split_at(apart.unwrap_or(rest.len()));
            match self.place_group(group, (start, end), last, capacity) {
                Outcome::Found => rest = others,
                failed => return failed,
            }
        }
        Outcome::Found
    }

    /// Places blocks that live in the sections of `range` and hang together.
    fn place_group(&mut self, group: &[u32], range: (u32, u32), last: Last, capacity: u64) -> Outcome {
        // Whatever lies above a block that spans the group can lie below it as well.
        let mut top = capacity;
        for &block in group {
            if self.span(block) != range {
                continue;
            }
            let Some(below) = top.checked_sub(self.size(block)) else { return Outcome::Impossible };
            top = below;
            self.offsets[block as usize] = top;
        }
        if top == capacity {
            return self.place_next(group, range, last, capacity);
        }
        // Where nothing else is to come, nothing else would notice that they lie too low.
        if self.heights[range.0 as usize..range.1 as usize].iter().any(|&height| height > top) {
            return Outcome::Impossible;
        }
        let rest: Vec<u32> = group.iter().copied().filter(|&block| self.span(block) != range).collect();
        self.place_groups(&rest, last, top)
    }

    /// Tries each block that could come next.
    fn place_next(&mut self, group: &[u32], range: (u32, u32), last: Last, capacity: u64) -> Outcome {
        self.steps += group.len() as u64 + u64::from(range.1 - range.0);
        if self.steps > self.most_steps {
            return Outcome::GaveUp;
        }
        let mut candidates = Vec::new();
        if !self.candidates(group, range, last, capacity, &mut candidates) {
            return Outcome::Impossible;
        }
        let all = range.0 as usize..range.1 as usize;
        let mut rest = Vec::with_capacity(group.len());
        for Candidate { offset, rank, index } in candidates {
            let block = group[index as usize];
            let span = self.span(block);
            let sections = span.0 as usize..span.1 as usize;
            // Groups that were placed before another failed have left their mark anywhere in the range.
            let before = self.heights[all.clone()].to_vec();
            let end = offset + self.size(block);
            self.heights[sections].fill(end);
            self.offsets[block as usize] = offset;
            rest.clear();
            rest.extend(group.iter().copied().filter(|&other| other != block));
            match self.place_groups(&rest, Last { offset, rank }, capacity) {
                Outcome::Impossible => self.heights[all.clone()].copy_from_slice(&before),
                decided => return decided,
            }
        }
        Outcome::Impossible
    }

    /// Who could come next, best first; `false` if there is no room for all in some section.
    fn candidates(
        &mut self,
        group: &[u32],
        range: (u32, u32),
        last: Last,
        capacity: u64,
        into: &mut Vec<Candidate>,
    ) -> bool {
        let all = range.0 as usize..range.1 as usize;
        self.floors[all.clone()].fill(u64::MAX);
        self.to_come[all.clone()].fill(0);
        let mut lowest_end = u64::MAX;
        for (index, &block) in (0..).zip(group) {
            let ((start, end), size) = (self.span(block), self.size(block));
            let sections = start as usize..end as usize;
            let support = self.heights[sections.clone()].iter().copied().max().unwrap_or(0);
            let offset = support.max(last.offset);
            for section in sections {
                self.floors[section] = self.floors[section].min(offset);
                self.to_come[section] += size;
            }
            lowest_end = lowest_end.min(offset + size);
            let rank = self.ranks[block as usize];
            // One whose support lies lower than the last block can only come on top of one yet to come.
            if (support, rank) > (last.offset, last.rank) {
                into.push(Candidate { offset, rank, index });
            }
        }
        let mut sums = self.floors[all.clone()].iter().zip(&self.to_come[all]);
        if sums.any(|(&floor, &to_come)| to_come > 0 && floor.saturating_add(to_come) > capacity) {
            return false;
        }
        into.retain(|candidate| candidate.offset < lowest_end);
        into.sort_unstable_by_key(|candidate| (candidate.offset, candidate.rank));
        true
    }
}
