//! Restarts of the search with variations.
//!
//! A search that went wrong early rarely recovers, while another branching order may succeed immediately. Each search
//! is therefore cut short, and the next one starts with another order, another section rule, and the accumulated
//! section weights. After the first round, blocks also move by some positions in the order. The moves come from a fixed
//! pseudorandom sequence, so results are reproducible.
//!
//! Source: Gomes, Selman, Kautz, "Boosting combinatorial search through randomization" (AAAI 1998).

use super::super::problem::{Order, Problem};
use super::bounds::Bounds;
use super::{Choice, Ground, Outcome, Stacking};

/// The section rules that each order is tried with.
const CHOICES: [Choice; 2] = [Choice::Lowest, Choice::Hardest];

/// The most positions that a block moves.
const MOVES: u64 = 60;

/// The sequence of searches of one problem.
#[derive(Debug)]
pub(in super::super) struct Restarts<'a> {
    problem: &'a Problem,
    orders: [Vec<u32>; Order::ALL.len()],
    weights: Vec<u64>,
    /// The round, and the number of its finished searches.
    round: usize,
    searches: usize,
    /// The step limit of each search in this round.
    most_steps: u64,
    /// The state of the pseudorandom sequence.
    number: u64,
}

impl<'a> Restarts<'a> {
    pub(in super::super) fn new(problem: &'a Problem) -> Self {
        Self {
            problem,
            orders: Order::ALL.map(|order| order.of(problem)),
            weights: vec![1; problem.sections.count as usize],
            round: 0,
            searches: 0,
            most_steps: 4 * Self::least_steps(problem),
            number: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Approximately the steps of placing all blocks without backtracking.
    pub(in super::super) fn least_steps(problem: &Problem) -> u64 {
        let lengths: u64 = problem.sections.spans.iter().map(|&(start, end)| u64::from(end - start)).sum();
        let blocks = problem.sizes.len() as u64;
        blocks * (blocks + u64::from(problem.sections.count) + lengths / 16) / 2
    }

    /// Runs the next search for a placement below `capacity`, of at most `most_steps`. Returns its outcome, its steps,
    /// and the offsets if it found any.
    pub(in super::super) fn search(&mut self, capacity: u64, most_steps: u64) -> (Outcome, u64, Vec<u64>) {
        let choice = CHOICES[self.searches % CHOICES.len()];
        let ranks = self.ranks(self.searches / CHOICES.len(), self.round > 0);
        let steps = self.most_steps.min(most_steps);
        self.searches += 1;
        if self.searches == Order::ALL.len() * CHOICES.len() {
            (self.round, self.searches) = (self.round + 1, 0);
            self.most_steps += self.most_steps / 10;
        }
        let (blocks, sections) = (self.problem.sizes.len(), self.weights.len());
        let mut stacking = Stacking {
            problem: self.problem,
            ranks,
            choice,
            weights: &mut self.weights,
            offsets: vec![0; blocks],
            ground: Ground::new(sections),
            bounds: Bounds::new(blocks, sections),
            steps: 0,
            most_steps: steps,
        };
        let outcome = stacking.run_all(capacity);
        (outcome, stacking.steps, stacking.offsets)
    }

    /// Returns the rank of each block in an order, with random moves.
    fn ranks(&mut self, order: usize, moved: bool) -> Vec<u32> {
        let mut places: Vec<(u64, u32)> = (0..).zip(self.orders[order].iter().copied()).collect();
        if moved {
            for (place, _) in &mut places {
                *place += self.next_number() % MOVES;
            }
            places.sort_unstable();
        }
        let mut ranks = vec![0; places.len()];
        for (rank, (_, block)) in (0..).zip(places) {
            ranks[block as usize] = rank;
        }
        ranks
    }

    /// Marsaglia's xorshift.
    const fn next_number(&mut self) -> u64 {
        self.number ^= self.number << 13;
        self.number ^= self.number >> 7;
        self.number ^= self.number << 17;
        self.number
    }
}
