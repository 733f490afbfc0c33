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
