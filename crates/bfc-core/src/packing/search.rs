//! The search for a placement within a given capacity.
//!
//! The search fills the space from below. In each section, all unplaced blocks lie at its height or above. The search
//! picks one section and branches: which block lies at that height, or none, so that the space up to the next one is
//! lost. Exactly one answer holds in any placement, so no placement is tried twice. Any section can be picked, such as
//! the tightest one, which a fixed order would not allow.
//!
//! The search considers only placements in which each block lies on the ground or on another block. Every placement can
//! sink into such a form. Therefore
//!
//! - a block is placed only where a placed block carries it,
//! - a section is picked only if no unplaced block could slip below the candidates (`choose`),
//! - lost space ends where an unplaced block could carry the next one.
//!
//! Four more rules prune the search:
//!
//! - Lower bounds hold before any branch (`bounds`).
//! - Groups of blocks without common sections are placed separately.
//! - A block that lives in all sections of its group lies on top of it.
//! - For two blocks in the same sections, only one order is tried if they have one size or touch.
//!
//! Sources:
//!
//! - Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning" (ASPLOS 2023), for
//!   sunk placements, bounds by section and groups.
//! - Boussemart, Hemery, Lecoutre, Sais, "Boosting systematic search by weighting constraints" (ECAI 2004), for sections
//!   whose weight rises each time they overflow.

mod bounds;
mod restarts;

use bounds::Bounds;
pub(super) use restarts::Restarts;

use super::problem::Problem;

/// The outcome of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A placement within the capacity was found.
    Found,
    /// No placement exists.
    Impossible,
    /// The steps were used up.
    GaveUp,
}

/// The rule that picks the next section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The lowest; among equals the one with the fewest candidates.
    Lowest,
    /// The fewest candidates per weight; among equals the lowest.
    Hardest,
}

/// No block.
const NONE: u32 = u32::MAX;

/// A search with one branching order.
#[derive(Debug)]
pub(super) struct Stacking<'a> {
    problem: &'a Problem,
    /// By block: its rank in the branching order.
    ranks: Vec<u32>,
    choice: Choice,
    /// By section: how often it overflowed, in this search and earlier ones.
    weights: &'a mut [u64],
    /// The offsets, by block.
    pub(super) offsets: Vec<u64>,
    ground: Ground,
    bounds: Bounds,
    pub(super) steps: u64,
    most_steps: u64,
}

/// The state of each section: the ground of the unplaced blocks.
#[derive(Clone, Debug)]
struct Ground {
    /// The height: no unplaced block lies lower.
    heights: Vec<u64>,
    /// The end of the highest placed block.
    tops: Vec<u64>,
    /// That block, or [`NONE`].
    highest: Vec<u32>,
}

impl Ground {
    fn new(sections: usize) -> Self {
        Self { heights: vec![0; sections], tops: vec![0; sections], highest: vec![NONE; sections] }
    }

    /// Copies the part in the sections from `start` to `end`.
    fn part(&self, (start, end): (u32, u32)) -> Self {
        let all = start as usize..end as usize;
        Self {
            heights: self.heights[all.clone()].to_vec(),
            tops: self.tops[all.clone()].to_vec(),
            highest: self.highest[all].to_vec(),
        }
    }

    /// Restores a result of [`part`](Self::part).
    fn restore(&mut self, (start, end): (u32, u32), part: &Self) {
        let all = start as usize..end as usize;
        self.heights[all.clone()].copy_from_slice(&part.heights);
        self.tops[all.clone()].copy_from_slice(&part.tops);
        self.highest[all].copy_from_slice(&part.highest);
    }
}

/// The blocks on top of a group.
enum TopOff {
    /// No block spans the group.
    Nothing,
    /// The spanning blocks, from this height on; these are the other blocks.
    Rest(Vec<u32>, u64),
    /// The group has no space for the spanning blocks.
    TooHigh,
}

/// A branch: the candidates at the height of a section.
struct Question {
    section: usize,
    height: u64,
    /// The candidate blocks in branching order.
    blocks: Vec<u32>,
    /// The next height of the section if none of them lies there.
    next: Option<u64>,
}

impl Stacking<'_> {
    /// Searches for a placement of all blocks below `capacity`.
    fn run_all(&mut self, capacity: u64) -> Outcome {
        // One pass over the blocks in order of their first sections finds the groups.
        let mut blocks: Vec<u32> = (0..).take(self.problem.sizes.len()).collect();
        blocks.sort_by_key(|&block| self.span(block));
        self.place_groups(&blocks, capacity)
    }

    fn span(&self, block: u32) -> (u32, u32) {
        self.problem.sections.spans[block as usize]
    }

    fn sections(&self, block: u32) -> std::ops::Range<usize> {
        let (start, end) = self.span(block);
        start as usize..end as usize
    }

    fn size(&self, block: u32) -> u64 {
        self.problem.sizes[block as usize]
    }

    /// Places blocks that fall into groups without common sections, the smallest group first.
    fn place_groups(&mut self, blocks: &[u32], capacity: u64) -> Outcome {
        for (group, range) in self.groups(blocks) {
            let outcome = match self.top_off(group, range, capacity) {
                TopOff::Nothing => self.fill(group, range, capacity),
                TopOff::Rest(rest, top) => self.place_groups(&rest, top),
                TopOff::TooHigh => Outcome::Impossible,
            };
            if outcome != Outcome::Found {
                return outcome;
            }
        }
        Outcome::Found
    }

    /// Returns the connected groups of blocks, each with its sections.
    fn groups<'b>(&self, blocks: &'b [u32]) -> Vec<(&'b [u32], (u32, u32))> {
        let mut groups = Vec::new();
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
            groups.push((group, (start, end)));
            rest = others;
        }
        groups.sort_by_key(|(group, _)| group.len());
        groups
    }

    /// Places the blocks that span a group on top of it: anything above such a block can lie below it too.
    fn top_off(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> TopOff {
        let mut top = capacity;
        for &block in group {
            if self.span(block) != range {
                continue;
            }
            let Some(below) = top.checked_sub(self.size(block)) else { return TopOff::TooHigh };
            top = below;
            self.offsets[block as usize] = top;
        }
        if top == capacity {
            return TopOff::Nothing;
        }
        // The remaining blocks may sink below the heights computed with that block among them.
        let all = range.0 as usize..range.1 as usize;
        self.ground.heights[all.clone()].copy_from_slice(&self.ground.tops[all.clone()]);
        self.ground.highest[all.clone()].fill(NONE);
        if let Some(over) = self.ground.heights[all.clone()].iter().position(|&height| height > top) {
            self.weights[all.start + over] += 1;
            return TopOff::TooHigh;
        }
        let spans_not = |&block: &u32| self.span(block) != range;
        TopOff::Rest(group.iter().copied().filter(spans_not).collect(), top)
    }

    /// Branches on one section after the other, until a placement is found or no candidate is left.
    fn fill(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> Outcome {
        loop {
            let question = match self.ask(group, range, capacity) {
                Ok(question) => question,
                Err(outcome) => return outcome,
            };
            let before = self.ground.part(range);
            for &block in &question.blocks {
                let Some(rest) = self.lay(block, question.height, group) else { continue };
                match self.place_groups(&rest, capacity) {
                    // Groups placed before another one failed have changed the whole range.
                    Outcome::Impossible => self.ground.restore(range, &before),
                    decided => return decided,
                }
            }
            // None of them: the space is lost.
            let Some(next) = question.next else { return Outcome::Impossible };
            self.ground.heights[question.section] = next;
        }
    }

    /// Returns the next branch, or the outcome if there is none.
    fn ask(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> Result<Question, Outcome> {
        if self.steps > self.most_steps {
            return Err(Outcome::GaveUp);
        }
        if !self.bound(group, range, capacity) {
            return Err(Outcome::Impossible);
        }
        // One of the lowest sections can always be picked.
        let section = self.choose(group, range, capacity).ok_or(Outcome::GaveUp)?;
        let height = self.ground.heights[section];
        let next = self.next_height(group, range, section, capacity);
        let answers = |&block: &u32| {
            self.bounds.lowest[block as usize] == height && self.sections(block).contains(&section)
        };
        let mut blocks: Vec<u32> = group.iter().copied().filter(answers).collect();
        blocks.sort_unstable_by_key(|&block| self.ranks[block as usize]);
        Ok(Question { section, height, blocks, next })
    }

    /// Places a block at this height and returns the rest of its group, unless an equivalent placement is tried
    /// elsewhere.
    fn lay(&mut self, block: u32, height: u64, group: &[u32]) -> Option<Vec<u32>> {
        self.steps += group.len() as u64 / 16;
        if self.has_twin(block, height, group) {
            return None;
        }
        let (all, end) = (self.sections(block), height + self.size(block));
        self.offsets[block as usize] = height;
        self.ground.heights[all.clone()].fill(end);
        self.ground.tops[all.clone()].fill(end);
        self.ground.highest[all].fill(block);
        Some(group.iter().copied().filter(|&other| other != block).collect())
    }

    /// Picks the next section. Its candidates must be complete: each block that can lie at its height is carried there,
    /// and no unplaced block can slip below it in any of the block's sections.
    fn choose(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> Option<usize> {
        let all = range.0 as usize..range.1 as usize;
        self.bounds.answers[all.clone()].fill(Some(0));
        self.bounds.note_least_ends(self.problem, group, all.clone());
        for &block in group {
            let lowest = self.bounds.lowest[block as usize];
            let heights = &self.ground.heights;
            let beside =
                |section: usize| heights[section] == lowest || self.bounds.least_ends[section].first > lowest;
            let clear = self.bounds.carried[block as usize] && self.sections(block).all(beside);
            for section in self.sections(block) {
                if self.ground.heights[section] == lowest {
                    let answers = &mut self.bounds.answers[section];
                    *answers = if clear { answers.map(|count| count + 1) } else { None };
                }
            }
        }
        let open = all.filter_map(|section| {
            let slack = capacity - self.ground.heights[section] - self.bounds.to_come[section];
            let answers = self.bounds.answers[section]? + u64::from(slack > 0);
            Some((section, answers, self.ground.heights[section]))
        });
        let chosen = match self.choice {
            Choice::Lowest => open.min_by_key(|&(_, answers, height)| (height, answers)),
            Choice::Hardest => open.min_by(|a, b| {
                // Compares fractions without division.
                let (of_a, of_b) = (a.1 * self.weights[b.0], b.1 * self.weights[a.0]);
                of_a.cmp(&of_b).then(a.2.cmp(&b.2))
            }),
        };
        chosen.map(|(section, ..)| section)
    }

    /// Returns the lowest next height of a picked section without a block at its height; `None` if too much space would
    /// be lost.
    fn next_height(
        &mut self,
        group: &[u32],
        range: (u32, u32),
        section: usize,
        capacity: u64,
    ) -> Option<u64> {
        let height = self.ground.heights[section];
        let slack = capacity - height - self.bounds.to_come[section];
        if slack == 0 {
            return None;
        }
        self.steps += group.len() as u64;
        self.bounds.note_ends_beside(self.problem, group, range.0 as usize..range.1 as usize, section);
        let mut next = u64::MAX;
        for &block in group.iter().filter(|&&block| self.sections(block).contains(&section)) {
            let lowest = self.bounds.lowest[block as usize];
            // The lowest block in this section lies on an unplaced one that is not in this section.
            let carried = self.bounds.least_end_beside(self.sections(block), section);
            next = next.min(if lowest > height { lowest } else { carried });
        }
        (next > height && next - height <= slack).then_some(next)
    }

    /// Whether placements with this block at this height have equivalents that are tried elsewhere: exchanged with the
    /// block directly below it in the same sections, or with an equal block.
    fn has_twin(&self, block: u32, height: u64, group: &[u32]) -> bool {
        let span = self.span(block);
        let earlier = |other: u32| self.ranks[other as usize] < self.ranks[block as usize];
        let below = self.ground.highest[span.0 as usize];
        if below != NONE
            && self.span(below) == span
            && self.offsets[below as usize] + self.size(below) == height
            && !earlier(below)
        {
            return true;
        }
        let same = |&other: &u32| self.span(other) == span && self.size(other) == self.size(block);
        group.iter().any(|other| same(other) && earlier(*other))
    }
}
