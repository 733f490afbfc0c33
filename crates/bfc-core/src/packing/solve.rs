//! The packer's driver: which methods run, in which order, for how long.

use super::greedy::greedy;
use super::pieces;
use super::problem::{Offsets, Order, Problem};
use super::search::{Outcome, Restarts};
use super::sections::Sections;
use super::skyline;
use super::{BlockConstraint, Lifetime};
use crate::base::units::round_up;

/// The options of the packer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackingOptions {
    /// The granule of offsets in bytes, a power of two. 256 for blocks of a pool.
    pub granule: u64,
    /// The search ends once the capacity is at most this many bytes. Without it, at the lower bound.
    pub target: Option<u64>,
    /// The effort in steps, of which 10 to 20 million run per second. The first placement always runs.
    pub effort: u64,
}

impl Default for PackingOptions {
    fn default() -> Self {
        Self { granule: 256, target: None, effort: 100_000_000 }
    }
}

impl PackingOptions {
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

    /// Sets the effort, in steps.
    #[must_use]
    pub const fn with_effort(mut self, effort: u64) -> Self {
        self.effort = effort;
        self
    }
}

/// The progress of the packer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackingProgress {
    /// The smallest capacity found so far, in bytes.
    pub capacity: u64,
    /// The lower bound of all packings, in bytes.
    pub lower_bound: u64,
    /// The steps so far; see [`PackingOptions::effort`].
    pub steps: u64,
}

/// Computes offsets for checked lifetimes, in order of their starts, and checked constraints. Returns them with the
/// lower bound of any capacity.
pub(super) fn solve(
    lifetimes: &[Lifetime],
    constraints: &[BlockConstraint],
    options: &PackingOptions,
    progress: &mut dyn FnMut(PackingProgress) -> bool,
) -> (Offsets, u64) {
    let rounded = |lifetime: &Lifetime| round_up(lifetime.bytes, options.granule).unwrap_or(u64::MAX);
    let sizes: Vec<u64> = lifetimes.iter().map(rounded).collect();
    let pieces = pieces::of((0..).zip(lifetimes.iter().copied()), constraints, options.granule);
    // A block that lends its bytes must still fit.
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let lower_bound = pieces::lower_bound(&pieces, options.granule).max(largest);
    let problem = Problem { sizes, sections: Sections::new(lifetimes), lower_bound };
    let mut search = Search::new(&problem, options, progress);
    if constraints.is_empty() {
        stack_up(&mut search);
        if problem.sizes.len() <= SEARCHED_BLOCKS {
            search_placements(&mut search);
        }
    } else {
        greedy(&mut search, pieces);
    }
    (search.best.unwrap_or_default(), lower_bound)
}

/// The most blocks for searches, whose recursion is as deep as there are blocks. An unoptimized build takes a KiB of
/// stack for each, and threads have 2 MiB.
const SEARCHED_BLOCKS: usize = 1000;

/// Searches for placements at the goal and above it. Most results come early.
fn search_placements(search: &mut Search<'_>) {
    let effort = search.effort;
    let mut restarts = Restarts::new(search.problem);
    for part in [32, 4] {
        reach(search, &mut restarts, effort / part);
        narrow(search, effort / part / 8);
    }
    narrow(search, effort / 16);
    reach(search, &mut restarts, effort);
}

/// The best placement so far, and the remaining effort.
pub(super) struct Search<'a> {
    pub(super) problem: &'a Problem,
    pub(super) best: Option<Offsets>,
    /// The capacity that ends the search.
    pub(super) goal: u64,
    effort: u64,
    /// The steps so far.
    pub(super) steps: u64,
    progress: &'a mut dyn FnMut(PackingProgress) -> bool,
    stopped: bool,
}

impl<'a> Search<'a> {
    fn new(
        problem: &'a Problem,
        options: &PackingOptions,
        progress: &'a mut dyn FnMut(PackingProgress) -> bool,
    ) -> Self {
        Self {
            problem,
            best: None,
            goal: options.target.unwrap_or(0).max(problem.lower_bound),
            effort: options.effort,
            steps: 0,
            progress,
            stopped: false,
        }
    }

    /// Returns the best capacity so far.
    fn capacity(&self) -> u64 {
        self.best.as_ref().map_or(u64::MAX, |best| best.capacity)
    }

    /// Keeps a placement if it is the first or the best.
    pub(super) fn offer(&mut self, placement: Offsets) {
        if self.best.is_none() || placement.capacity < self.capacity() {
            self.best = Some(placement);
        }
    }

    /// Runs repeated searches for a placement within `capacity`.
    fn stack(&mut self, restarts: &mut Restarts<'_>, capacity: u64, most_steps: u64) -> Outcome {
        let mut left = most_steps;
        while left > 0 && !self.is_over() {
            let (outcome, steps, offsets) = restarts.search(capacity, left.min(self.steps_left()));
            left = left.saturating_sub(steps);
            self.steps += steps;
            if outcome == Outcome::Found {
                self.best = Some(Offsets::of(offsets, &self.problem.sizes));
            }
            self.report();
            if outcome != Outcome::GaveUp {
                return outcome;
            }
        }
        Outcome::GaveUp
    }

    pub(super) fn steps_left(&self) -> u64 {
        self.effort.saturating_sub(self.steps)
    }

    pub(super) fn report(&mut self) {
        let (capacity, lower_bound) = (self.capacity(), self.problem.lower_bound);
        self.stopped |= !(self.progress)(PackingProgress { capacity, lower_bound, steps: self.steps });
    }

    /// Whether the goal is reached or the effort used.
    pub(super) fn is_over(&self) -> bool {
        self.capacity() <= self.goal || self.stopped || self.steps >= self.effort
    }
}

/// Searches for a placement at the goal, unless few steps prove it futile.
fn reach(search: &mut Search<'_>, restarts: &mut Restarts<'_>, steps: u64) {
    let futile = search.is_over() || steps < 2 * Restarts::least_steps(search.problem);
    if !futile && search.stack(restarts, search.goal, steps) == Outcome::Impossible {
        search.goal += 1;
    }
}

/// Bisects placements between the goal and the best, with a step limit for each search.
fn narrow(search: &mut Search<'_>, steps: u64) {
    if steps < 2 * Restarts::least_steps(search.problem) {
        return;
    }
    let mut low = search.goal + 1;
    // A capacity half a thousandth above the goal is sufficient.
    while !search.is_over() && search.capacity().saturating_sub(low) > low / 2000 {
        let capacity = low + (search.capacity() - low) / 2;
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
        let (placement, steps) = skyline::stack(search.problem, &order);
        search.steps += steps;
        search.offer(placement);
        search.report();
        if search.is_over() {
            break;
        }
    }
}
