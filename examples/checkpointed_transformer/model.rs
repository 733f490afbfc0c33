//! A small transformer that learns to continue repeating sequences.

use highwater::Result;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::train::{Outcome, Output, Run, Saves, Trainer};

use super::Args;

/// The number of distinct tokens.
const TOKENS: usize = 16;

/// The period of the sequences.
const PERIOD: usize = 5;

/// The limit for the norm of gradients.
const LONGEST_GRADIENT: f64 = 1.0;

/// Embeds tokens and positions, applies blocks, and scores every next token.
#[derive(Debug, Module)]
pub(crate) struct Transformer {
    seed: u64,
    tokens: Embedding,
    positions: Embedding,
    blocks: Sequential,
    head: Linear,
}

impl Transformer {
    pub(crate) fn new(device: &Device, args: &Args, seed: u64) -> Result<Self> {
        let rng = Rng::new(seed);
        let mut blocks = Sequential::new();
        for layer in 0..args.layers {
            let block = TransformerBlock::new(device, args.width, args.heads, &rng)?.causal();
            blocks = blocks.with(&format!("block{layer}"), block);
        }
        Ok(Self {
            seed,
            tokens: Embedding::new(device, TOKENS, args.width, &rng)?,
            positions: Embedding::new(device, args.context, args.width, &rng)?,
            blocks,
            head: Linear::new(device, args.width, TOKENS, &rng)?,
        })
    }

    /// Trains for this number of steps. The plan says which blocks run again: recomputation needs nothing else.
    pub(crate) fn train(
        &self,
        args: &Args,
        (run, world): (&Run, &World),
        plan: &Plan,
        steps: u64,
        (saves, output): (Saves, Output<'_>),
    ) -> Result<Outcome> {
        let device = self.head.weight().tensor().device().clone();
        let make = |own| AdamW::new(own, args.learning_rate);
        let mut optimizer = run.parallel_in(world, plan.shard, self.parameters(), make)?;
        Trainer::new(self, &mut optimizer)
            .world(world)
            .plan(plan)
            .clip_norm(LONGEST_GRADIENT)
            .saves(saves)
            .output(output)
            .train_steps(
                steps,
                |number| batch(&device, (plan.micro_batch, args.context), self.seed, number),
                |(x, y)| self.loss(x, y),
            )
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let scores = self.forward(x)?;
        let _scope = module("loss");
        scores.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
    }
}

#[module]
impl Module for Transformer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(x.device(), 0, x.dims().last().copied().unwrap_or(0))?;
        let rows = self.tokens.forward(x)?;
        let rows = rows.add(&self.positions.forward(&places)?)?;
        self.head.forward(&self.blocks.forward(&rows)?)
    }
}

/// Sequences that repeat random tokens, and their next tokens. The batches of all sizes have the same sequences in the same
/// order.
fn batch(
    device: &Device,
    (size, context): (usize, usize),
    seed: u64,
    number: u64,
) -> Result<(Tensor, Tensor)> {
    let length = context + 1;
    let mut tokens = Vec::with_capacity(size * length);
    for sequence in 0..size as u64 {
        // Generated on the host, because a dry device has no values. A simple generator (Knuth's MMIX) suffices.
        let mut state = seed ^ (number * size as u64 + sequence + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % TOKENS
        };
        let repeated: Vec<usize> = (0..PERIOD).map(|_| draw()).collect();
        tokens.extend((0..length).map(|place| repeated[place % PERIOD] as i64));
    }
    let tokens = Tensor::from_slice(device, &tokens, [size, length])?;
    Ok((tokens.narrow(1, 0, context)?.contiguous()?, tokens.narrow(1, 1, context)?.contiguous()?))
}
