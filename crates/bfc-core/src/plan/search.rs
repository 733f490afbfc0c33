//! Searching for a placement within a given capacity.
//!
//! The space is filled from below. Everything to come in a section lies at its height or above. Of one section at a time
//! it is asked which block lies at that height, or whether none does and the room up to the next one is lost. In a
//! placement exactly one answer is true, so nothing is tried twice; and the section can be the one where the trouble is,
//! instead of the next one in an order that everything must follow.
//!
//! Only placements are looked for in which each block lies on the ground or on another: all blocks of any placement can
//! sink until that is so. Therefore
//!
//! - a block only comes to lie where one already placed carries it;
//! - a section is only asked if nothing to come could slip below the blocks that the answer may name (`choose`);
//! - room that is lost is lost up to where something to come could carry the next block.
//!
//! What else makes it bearable: bounds that hold before anything is tried (`bounds`); blocks that share no section with
//! the others are placed on their own; a block that lives in all sections of such a group lies on top of it; of two
//! blocks that live in the same sections, only one order is tried if they are of one size or lie on each other.
//!
//! Sources: Moffitt, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning" (ASPLOS 2023)
//! for sunk placements, bounds by section and groups; Boussemart, Hemery, Lecoutre, Sais, "Boosting systematic search by
//! weighting constraints" (ECAI 2004) for sections that weigh more each time they overflow.

mod bounds;
mod restarts;

use bounds::Bounds;
pub(super) use restarts::Restarts;

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

/// Which section is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The lowest; of equals one where the first block of the order can lie.
    First,
    /// The lowest; of equals the one with the fewest answers.
    Lowest,
    /// The one with the fewest answers for its weight; of equals the lowest.
    Hardest,
}

/// No block.
const NONE: u32 = u32::MAX;

/// A search with one order of trying.
#[derive(Debug)]
pub(super) struct Stacking<'a> {
    problem: &'a Problem,
    /// By block: its place in the order in which blocks are tried.
    ranks: Vec<u32>,
    choice: Choice,
    /// By section: how often it overflowed, in this search and those before it.
    weights: &'a mut [u64],
    /// By block.
    pub(super) offsets: Vec<u64>,
    ground: Ground,
    bounds: Bounds,
    pub(super) steps: u64,
    most_steps: u64,
}

/// On what blocks to come are placed, by section.
#[derive(Clone, Debug)]
struct Ground {
    /// Nothing to come lies lower.
    heights: Vec<u64>,
    /// Where the highest block ends.
    tops: Vec<u64>,
    /// That block, or [`NONE`].
    highest: Vec<u32>,
}

impl Ground {
    fn new(sections: usize) -> Self {
        Self { heights: vec![0; sections], tops: vec![0; sections], highest: vec![NONE; sections] }
    }

    /// The part in the sections from `start` to `end`.
    fn part(&self, (start, end): (u32, u32)) -> Self {
        let all = start as usize..end as usize;
        Self {
            heights: self.heights[all.clone()].to_vec(),
            tops: self.tops[all.clone()].to_vec(),
            highest: self.highest[all].to_vec(),
        }
    }

    /// Puts back what [`part`](Self::part) gave.
    fn restore(&mut self, (start, end): (u32, u32), part: &Self) {
        let all = start as usize..end as usize;
        self.heights[all.clone()].copy_from_slice(&part.heights);
        self.tops[all.clone()].copy_from_slice(&part.tops);
        self.highest[all].copy_from_slice(&part.highest);
    }
}

/// What lies on top of a group.
enum TopOff {
    /// No block spans it.
    Nothing,
    /// What spans it does, from this height on; these are the other blocks.
    Rest(Vec<u32>, u64),
    /// What spans it would, but the group has no room for that.
    TooHigh,
}

/// What lies at the height of a section?
struct Question {
    section: usize,
    height: u64,
    /// The blocks that could, those to be tried first in front.
    blocks: Vec<u32>,
    /// Where the section goes on if none does.
    next: Option<u64>,
}

impl Stacking<'_> {
    /// Looks for a placement of all blocks below `capacity`.
    fn run_all(&mut self, capacity: u64) -> Outcome {
        // Groups are found by one pass over the blocks in the order of their first sections.
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

    /// The groups of blocks that hang together, each with the sections that it lives in.
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

    /// Lays the blocks that span a group on top of it: whatever lies above one can lie below it as well.
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
        // The others may have to sink anew, below what was said of their heights while that block was among them.
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

    /// Asks one section after the other, until one answer leads to a placement or none is left.
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
                    // Groups that were placed before another failed have left their mark anywhere in the range.
                    Outcome::Impossible => self.ground.restore(range, &before),
                    decided => return decided,
                }
            }
            // None of them: the room is lost.
            let Some(next) = question.next else { return Outcome::Impossible };
            self.ground.heights[question.section] = next;
        }
    }

    /// The next question, or what there is to say without one.
    fn ask(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> Result<Question, Outcome> {
        if self.steps > self.most_steps {
            return Err(Outcome::GaveUp);
        }
        if !self.bound(group, range, capacity) {
            return Err(Outcome::Impossible);
        }
        // Among the lowest sections there is always one to ask.
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

    /// Lays a block at this height and returns the others of its group, unless a twin of it is tried elsewhere.
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

    /// The section to ask. What it can answer must be all that is possible: each block that can lie at its height is
    /// carried there, and in none of the block's sections can another come to lie below it.
    fn choose(&mut self, group: &[u32], range: (u32, u32), capacity: u64) -> Option<usize> {
        let all = range.0 as usize..range.1 as usize;
        self.bounds.answers[all.clone()].fill(Some(0));
        self.bounds.first[all.clone()].fill(u32::MAX);
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
                    let first = &mut self.bounds.first[section];
                    *first = self.ranks[block as usize].min(*first);
                }
            }
        }
        let open = all.filter_map(|section| {
            let slack = capacity - self.ground.heights[section] - self.bounds.to_come[section];
            let answers = self.bounds.answers[section]? + u64::from(slack > 0);
            Some((section, answers, self.ground.heights[section]))
        });
        let chosen = match self.choice {
            Choice::First => {
                open.min_by_key(|&(section, answers, height)| (height, self.bounds.first[section], answers))
            }
            Choice::Lowest => open.min_by_key(|&(_, answers, height)| (height, answers)),
            Choice::Hardest => open.min_by(|a, b| {
                // Fractions, compared without dividing.
                let (of_a, of_b) = (a.1 * self.weights[b.0], b.1 * self.weights[a.0]);
                of_a.cmp(&of_b).then(a.2.cmp(&b.2))
            }),
        };
        chosen.map(|(section, ..)| section)
    }

    /// The least height above its own at which the section can go on, if nothing lies at its own; `None` if too much
    /// would be lost. For sections that were chosen.
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
            // The lowest one in this section lies on one to come, which is not in this section.
            let carried = self.bounds.least_end_beside(self.sections(block), section);
            next = next.min(if lowest > height { lowest } else { carried });
        }
        (next > height && next - height <= slack).then_some(next)
    }

    /// Whether placements with this block at this height have twins that are tried elsewhere: the block exchanged with the
    /// one directly below it in the same sections, or with another of its kind.
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
