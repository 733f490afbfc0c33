//! Random numbers of a model when a step has several micro-batches.
//!
//! Micro-batch `k` of a step draws from the same place whether one process computes it after the others, or another rank
//! computes it at the same time. So one process that accumulates four batches gives the values of four ranks.

use highwater_nn::modules::Module;
use highwater_tensor::Rng;
use highwater_tensor::backend::RandomKey;

/// The numbers that one micro-batch may draw from each generator: calls of dropout, not elements.
const DRAWS: u64 = 1 << 24;

/// The generators of a model.
pub(super) struct Draws {
    rngs: Vec<Rng>,
    /// Their states before the step.
    before: Vec<RandomKey>,
    /// The micro-batches of a step on all ranks.
    parts: u64,
}

impl Draws {
    /// Finds the generators of a model, whose steps have this many micro-batches.
    pub(super) fn new(model: &dyn Module, parts: u64) -> Self {
        let mut rngs: Vec<Rng> = Vec::new();
        // With one micro-batch there is nothing to place.
        if parts > 1 {
            for (_, rng) in model.rngs() {
                if !rngs.iter().any(|known| known.is_same(&rng)) {
                    rngs.push(rng);
                }
            }
        }
        Self { rngs, before: Vec::new(), parts }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.before = self.rngs.iter().map(Rng::state).collect();
    }

    /// Moves the generators to the place of a micro-batch of the step.
    pub(super) fn place(&self, part: u64) {
        for (rng, before) in self.rngs.iter().zip(&self.before) {
            let sequence = before.sequence.wrapping_add(part.wrapping_mul(DRAWS));
            rng.set_state(RandomKey { sequence, ..*before });
        }
    }

    /// Ends the step: the generators continue after all of its micro-batches.
    pub(super) fn end(&self) {
        self.place(self.parts);
    }
}

#[cfg(test)]
mod tests {
    use highwater_nn::modules::{Dropout, Sequential};

    use super::*;

    /// The first key that each micro-batch of two steps draws, if this process computes every `size`-th one.
    fn keys(rank: u64, size: u64) -> Vec<RandomKey> {
        let rng = Rng::new(5);
        let model = Sequential::new()
            .with("a", Dropout::new(0.5, &rng).unwrap())
            .with("b", Dropout::new(0.5, &rng).unwrap());
        let mut draws = Draws::new(&model, 4);
        let mut keys = Vec::new();
        for _ in 0..2 {
            draws.begin();
            for part in (rank..4).step_by(size as usize) {
                draws.place(part);
                keys.push(rng.next_key());
                let _ = rng.next_key();
            }
            draws.end();
        }
        keys.push(rng.state());
        keys
    }

    #[test]
    fn micro_batches_draw_the_same_numbers_on_any_number_of_ranks() {
        let all = keys(0, 1);
        for size in [2, 4] {
            for rank in 0..size {
                let own: Vec<_> = all[..8].iter().skip(rank).step_by(size).copied().collect();
                let found = keys(rank as u64, size as u64);
                assert_eq!(found[..found.len() - 1], own);
                assert_eq!(found.last(), all.last());
            }
        }
        assert!((0..8).all(|first| (first + 1..8).all(|second| all[first] != all[second])));
    }

    #[test]
    fn a_step_of_one_batch_leaves_the_generators_alone() {
        let rng = Rng::new(5);
        let model = Dropout::new(0.5, &rng).unwrap();
        let mut draws = Draws::new(&model, 1);
        draws.begin();
        draws.place(0);
        let _ = rng.next_key();
        draws.end();
        assert_eq!(rng.state().sequence, 1);
    }
}
