//! From lifetimes to offsets: which methods are tried, in which order, for how long.

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

/// How a plan is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// What offsets are multiples of, in bytes; a power of two. 256 for blocks of a pool.
    pub granule: u64,
    /// The search ends once the capacity is at most this many bytes. Without it, at the lower bound.
    pub target: Option<u64>,
    /// How much work may be spent, in steps of looking for room: 10 to 20 million a second. A first placement, from
    /// below, is always done.
    pub effort: u64,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { granule: 256, target: None, effort: 100_000_000 }
    }
}

impl PlanOptions {
    /// The same options with another granule, a power of two.
    #[must_use]
    pub const fn with_granule(mut self, granule: u64) -> Self {
        self.granule = granule;
        self
    }

    /// The same options with a capacity that is good enough, in bytes.
    #[must_use]
    pub const fn with_target(mut self, target: u64) -> Self {
        self.target = Some(target);
        self
    }

    /// The same options with another effort, in steps of looking for room.
    #[must_use]
    pub const fn with_effort(mut self, effort: u64) -> Self {
        self.effort = effort;
        self
    }
}

/// How far the search for a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanProgress {
    /// The least capacity found so far, in bytes.
    pub capacity: u64,
    /// What no plan can go below, in bytes.
    pub lower_bound: u64,
    /// Steps of looking for room so far; see [`PlanOptions::effort`].
    pub steps: u64,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Solved {
    pub(super) offsets: Vec<u64>,
    pub(super) capacity: u64,
    pub(super) lower_bound: u64,
}

/// Offsets for checked lifetimes, in the order of their starts, and checked constraints.
pub(super) fn solve(
    lifetimes: &[Lifetime],
    constraints: &[BlockConstraint],
    options: &PlanOptions,
    progress: &mut dyn FnMut(PlanProgress) -> bool,
) -> Solved {
    let rounded = |lifetime: &Lifetime| round_up(lifetime.bytes, options.granule).unwrap_or(u64::MAX);
    let sizes: Vec<u64> = lifetimes.iter().map(rounded).collect();
    let pieces = pieces::of((0..).zip(lifetimes.iter().copied()), constraints, options.granule);
    // A block that lends its bytes still has to fit.
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
    // Most of what can be found is found soon. Then orders are improved until that leads nowhere, and then comes the rest.
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

/// The best placement so far, and what may still be spent on a better one.
pub(super) struct Search<'a> {
    pub(super) problem: &'a Problem,
    pub(super) best: Offsets,
    /// What was placed last.
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

    /// Places the blocks in this order, up to the first that ends above `most`, or until the effort is spent; whether all
    /// were placed, and if so whether that is the best so far.
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

    /// Places blocks with alignments or gaps in this order. If that takes more than the effort, lays them one above the other.
    fn place_first(&mut self, shapes: &Shapes, order: &[u32]) {
        let placed = self.place(order, u64::MAX).is_some();
        let first = if placed { self.last.clone() } else { shapes.stacked(&self.problem.sizes) };
        self.offer(first);
        self.report();
    }

    /// Keeps a placement of all blocks if it is the first, or better than the best.
    fn offer(&mut self, placement: Offsets) {
        if self.best.offsets.is_empty() || placement.capacity < self.best.capacity {
            self.best = placement;
        }
    }

    /// Searches for a placement within `capacity`, again and again.
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

    /// All steps so far.
    fn steps(&self) -> u64 {
        self.occupancy.steps() + self.searched
    }

    fn report(&mut self) {
        let (capacity, lower_bound) = (self.best.capacity, self.problem.lower_bound);
        let now = PlanProgress { capacity, lower_bound, steps: self.steps() };
        self.stopped |= !(self.progress)(now);
    }

    /// Whether there is nothing left to find, or nothing left to spend.
    pub(super) fn is_over(&self) -> bool {
        let found = self.best.capacity <= self.goal && self.best.offsets.len() == self.problem.sizes.len();
        found || self.stopped || self.steps() >= self.effort
    }
}

/// The most blocks for which placements are searched for: the search goes as deep as there are blocks. An unoptimised build
/// takes a KiB of stack for each, and threads have 2 MiB.
const SEARCHED_BLOCKS: usize = 1000;

/// Whether placements can be searched for. The search knows neither alignments nor gaps.
const fn can_be_searched(problem: &Problem) -> bool {
    problem.sizes.len() <= SEARCHED_BLOCKS && problem.shapes.is_none()
}

/// Searches for a placement at the goal, unless so few steps lead nowhere.
fn reach(search: &mut Search<'_>, restarts: Option<&mut Restarts<'_>>, steps: u64) {
    let Some(restarts) = restarts.filter(|_| steps >= 2 * Restarts::least_steps(search.problem)) else {
        return;
    };
    if !search.is_over() && search.stack(restarts, search.goal, steps) == Outcome::Impossible {
        search.goal += 1;
    }
}

/// Searches for placements between the goal and the best, each time with so many steps, unless they lead nowhere.
fn narrow(search: &mut Search<'_>, steps: u64) {
    if !can_be_searched(search.problem) || steps < 2 * Restarts::least_steps(search.problem) {
        return;
    }
    let mut low = search.goal + 1;
    // What is half a thousandth above is good enough.
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

/// Lays the blocks onto the skyline in several orders, of which the first is always done.
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

/// Places the blocks in several orders, and returns the best of these.
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
