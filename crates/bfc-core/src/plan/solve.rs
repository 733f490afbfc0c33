//! The planner's driver: which methods run, in which order, for how long.

use super::greedy::{Offsets, Order, Problem, place};
use super::improve::improve;
use super::occupancy::Occupancy;
use super::pieces;
use super::search::{Outcome, Restarts};
use super::sections::Sections;
use super::shapes::Shapes;
use super::skyline;
use super::{BlockConstraint, Lifetime};
use crate::base::units::round_up;

/// The options of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The granule of offsets in bytes, a power of two. 256 for blocks of a pool.
    pub granule: u64,
    /// The search ends once the capacity is at most this many bytes. Without it, at the lower bound.
    pub target: Option<u64>,
    /// The effort in steps of free-space search, of which 10 to 20 million run per second. The first placement, from
    /// below, always runs.
    pub effort: u64,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { granule: 256, target: None, effort: 100_000_000 }
    }
}

impl PlanOptions {
    /// Sets the granule, a power of two.
    #[must_use]
    pub const fn with_granule(mut self, granule: u64) -> Self {
        self.granule = granule;
        self
    }

    /// Sets the sufficient capacity, in bytes.
    #[must_use]
    pub const fn with_target(mut self, target: u64) -> Self {
        self.target = Some(target);
        self
    }

    /// Sets the effort, in steps of free-space search.
    #[must_use]
    pub const fn with_effort(mut self, effort: u64) -> Self {
        self.effort = effort;
        self
    }
}

/// The progress of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanProgress {
    /// The smallest capacity found so far, in bytes.
    pub capacity: u64,
    /// The lower bound of all plans, in bytes.
    pub lower_bound: u64,
    /// The steps so far; see [`PlanOptions::effort`].
    pub steps: u64,
}

/// The result of the planner.
#[derive(Debug)]
pub(super) struct Solved {
    pub(super) offsets: Vec<u64>,
    pub(super) capacity: u64,
    pub(super) lower_bound: u64,
}

/// Computes offsets for checked lifetimes, in order of their starts, and checked constraints.
pub(super) fn solve(
    lifetimes: &[Lifetime],
    constraints: &[BlockConstraint],
    options: &PlanOptions,
    progress: &mut dyn FnMut(PlanProgress) -> bool,
) -> Solved {
    let rounded = |lifetime: &Lifetime| round_up(lifetime.bytes, options.granule).unwrap_or(u64::MAX);
    let sizes: Vec<u64> = lifetimes.iter().map(rounded).collect();
    let pieces = pieces::of((0..).zip(lifetimes.iter().copied()), constraints, options.granule);
    // A block that lends its bytes must still fit.
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let lower_bound = pieces::lower_bound(&pieces, options.granule).max(largest);
    let (shapes, sections) = if constraints.is_empty() {
        (None, Sections::new(lifetimes))
    } else {
        let (shapes, sections) = Shapes::new(&pieces, lifetimes.len());
        (Some(shapes), sections)
    };
    let problem = Problem { sizes, sections, shapes, lower_bound };
    let mut search = Search::new(&problem, options, progress);
    match &problem.shapes {
        None => stack_up(&mut search),
        Some(shapes) => search.place_first(shapes, &Order::Area.of(&problem)),
    }
    let best_order = greedy(&mut search);
    let mut restarts = can_be_searched(&problem).then(|| Restarts::new(&problem));
    // Most results come early. Then orders are improved until that stalls, and the rest of the effort follows.
    for part in [32, 4] {
        reach(&mut search, restarts.as_mut(), options.effort / part);
        narrow(&mut search, options.effort / part / 8);
    }
    improve(&mut search, best_order);
    for order in Order::ALL {
        improve(&mut search, order.of(&problem));
    }
    narrow(&mut search, options.effort / 16);
    reach(&mut search, restarts.as_mut(), options.effort);
    let Offsets { offsets, capacity } = search.best;
    Solved { offsets, capacity, lower_bound }
}

/// The best placement so far, and the remaining effort.
pub(super) struct Search<'a> {
    pub(super) problem: &'a Problem,
    pub(super) best: Offsets,
    /// The last placement.
    pub(super) last: Offsets,
    /// The capacity that ends the search.
    pub(super) goal: u64,
    occupancy: Occupancy,
    effort: u64,
    /// Steps of searches.
    searched: u64,
    progress: &'a mut dyn FnMut(PlanProgress) -> bool,
    stopped: bool,
}

impl<'a> Search<'a> {
    fn new(
        problem: &'a Problem,
        options: &PlanOptions,
        progress: &'a mut dyn FnMut(PlanProgress) -> bool,
    ) -> Self {
        Self {
            problem,
            best: Offsets::default(),
            last: Offsets::default(),
            goal: options.target.unwrap_or(0).max(problem.lower_bound),
            occupancy: Occupancy::new(problem.sections.count),
            effort: options.effort,
            searched: 0,
            progress,
            stopped: false,
        }
    }

    /// Places the blocks in this order, up to the first that ends above `most` or the end of the effort. Returns
    /// whether all were placed, and whether that is the best so far.
    pub(super) fn place(&mut self, order: &[u32], most: u64) -> Option<bool> {
        let most_steps = self.effort.saturating_sub(self.searched);
        let placed = place(self.problem, order, most, most_steps, &mut self.occupancy, &mut self.last);
        let better = placed && self.last.capacity < self.best.capacity;
        if better {
            self.best.clone_from(&self.last);
        }
        self.report();
        placed.then_some(better)
    }

    /// Places blocks with alignments or gaps in this order. Stacks them if that exceeds the effort.
    fn place_first(&mut self, shapes: &Shapes, order: &[u32]) {
        let placed = self.place(order, u64::MAX).is_some();
        let first = if placed { self.last.clone() } else { shapes.stacked(&self.problem.sizes) };
        self.offer(first);
        self.report();
    }

    /// Keeps a complete placement if it is the first or the best.
    fn offer(&mut self, placement: Offsets) {
        if self.best.offsets.is_empty() || placement.capacity < self.best.capacity {
            self.best = placement;
        }
    }

    /// Runs repeated searches for a placement within `capacity`.
    fn stack(&mut self, restarts: &mut Restarts<'_>, capacity: u64, most_steps: u64) -> Outcome {
        let mut left = most_steps;
        while left > 0 && !self.is_over() {
            let left_of_all = self.effort.saturating_sub(self.steps());
            let (outcome, steps, offsets) = restarts.search(capacity, left.min(left_of_all));
            left = left.saturating_sub(steps);
            self.searched += steps;
            if outcome == Outcome::Found {
                self.best = Offsets::of(offsets, &self.problem.sizes);
            }
            self.report();
            if outcome != Outcome::GaveUp {
                return outcome;
            }
        }
        Outcome::GaveUp
    }

    /// Returns all steps so far.
    fn steps(&self) -> u64 {
        self.occupancy.steps() + self.searched
    }

    fn report(&mut self) {
        let (capacity, lower_bound) = (self.best.capacity, self.problem.lower_bound);
        let now = PlanProgress { capacity, lower_bound, steps: self.steps() };
        self.stopped |= !(self.progress)(now);
    }

    /// Whether the goal is reached or the effort used.
    pub(super) fn is_over(&self) -> bool {
        let found = self.best.capacity <= self.goal && self.best.offsets.len() == self.problem.sizes.len();
        found || self.stopped || self.steps() >= self.effort
    }
}

/// The most blocks for searches, whose recursion is as deep as there are blocks. An unoptimized build takes a KiB of
/// stack for each, and threads have 2 MiB.
const SEARCHED_BLOCKS: usize = 1000;

/// Whether searches are possible. They support neither alignments nor gaps.
const fn can_be_searched(problem: &Problem) -> bool {
    problem.sizes.len() <= SEARCHED_BLOCKS && problem.shapes.is_none()
}

/// Searches for a placement at the goal, unless few steps prove it futile.
fn reach(search: &mut Search<'_>, restarts: Option<&mut Restarts<'_>>, steps: u64) {
    let Some(restarts) = restarts.filter(|_| steps >= 2 * Restarts::least_steps(search.problem)) else {
        return;
    };
    if !search.is_over() && search.stack(restarts, search.goal, steps) == Outcome::Impossible {
        search.goal += 1;
    }
}

/// Bisects placements between the goal and the best, with a step limit for each search.
fn narrow(search: &mut Search<'_>, steps: u64) {
    if !can_be_searched(search.problem) || steps < 2 * Restarts::least_steps(search.problem) {
        return;
    }
    let mut low = search.goal + 1;
    // A capacity half a thousandth above the goal is sufficient.
    while !search.is_over() && search.best.capacity.saturating_sub(low) > low / 2000 {
        let capacity = low + (search.best.capacity - low) / 2;
        match search.stack(&mut Restarts::new(search.problem), capacity, steps) {
            Outcome::Found => continue,
            Outcome::Impossible => search.goal = capacity + 1,
            Outcome::GaveUp => {}
        }
        low = capacity + 1;
    }
}

/// Places the blocks on the skyline in several orders. The first one always runs.
fn stack_up(search: &mut Search<'_>) {
    for order in [Order::Lifetime, Order::Area, Order::Size] {
        let order = order.of(search.problem);
        let mut stacked = Offsets::default();
        search.searched += skyline::stack(search.problem, &order, &mut stacked);
        search.offer(stacked);
        search.report();
        if search.is_over() {
            break;
        }
    }
}

/// Places the blocks greedily in several orders. Returns the best of these orders.
fn greedy(search: &mut Search<'_>) -> Vec<u32> {
    let (mut best, mut least) = (Vec::new(), u64::MAX);
    for order in Order::ALL {
        if search.is_over() {
            break;
        }
        let order = order.of(search.problem);
        if search.place(&order, least.saturating_sub(1)).is_some() {
            (best, least) = (order, search.last.capacity);
        }
    }
    best
}
