//! A character-level GPT.

use highwater::Result;
use highwater::nn::LinearOptions;
use highwater::prelude::*;
use highwater::train::{Figures, Mean};

use super::Args;

/// Windows of test text for the loss.
const TEST_WINDOWS: usize = 64;

/// The sampling temperature: below 1, likely characters become likelier.
const TEMPERATURE: f64 = 0.8;

/// Embeds characters and positions, applies blocks, and scores every next character.
#[derive(Debug, Module)]
pub(crate) struct CharGpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Sequential,
    norm: LayerNorm,
    head: Linear,
}

impl CharGpt {
    pub(crate) fn new(device: &Device, classes: usize, args: &Args, rng: &Rng) -> Result<Self> {
        let mut blocks = Sequential::new();
        for layer in 0..args.layers {
            let block = TransformerBlock::new(device, args.width, args.heads, rng)?.causal();
            blocks = blocks.with(&format!("block{layer}"), block);
        }
        let options = LinearOptions { bias: None, ..LinearOptions::default() };
        Ok(Self {
            tokens: Embedding::new(device, classes, args.width, rng)?,
            positions: Embedding::new(device, args.context, args.width, rng)?,
            blocks,
            norm: LayerNorm::new(device, args.width)?,
            head: Linear::with_options(device, args.width, classes, options, rng)?,
        })
    }

    pub(crate) fn device(&self) -> Device {
        self.head.weight().tensor().device().clone()
    }

    /// The cross-entropy of the next characters `y` after those in `x`.
    pub(crate) fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let scores = self.forward(x)?;
        let _scope = module("loss");
        scores.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
    }

    /// The mean test loss, as `validation_loss`.
    pub(crate) fn mean_loss(&self, text: &Text, args: &Args, seed: u64) -> Result<Figures> {
        let (device, mut mean) = (self.device(), Mean::default());
        for round in 0..TEST_WINDOWS.div_ceil(args.batch_size.max(1)) as u64 {
            let (x, y) = text.windows(&device, args.batch_size, args.context, seed, round)?;
            mean.add(&self.loss(&x, &y)?, args.batch_size)?;
        }
        Ok([("validation_loss", mean.value())].into())
    }

    /// Generates text; `None` on a device that computes nothing.
    pub(crate) fn write(&self, text: &Text, args: &Args, seed: u64) -> Result<Option<String>> {
        let _scope = module("write");
        let device = self.device();
        if device.is_dry() {
            return Ok(None);
        }
        let (chance, mut written) = (Rng::new(seed).fork(1), text.encode("\n").unwrap_or_else(|| vec![0]));
        for _ in 0..args.sample {
            let seen = &written[written.len().saturating_sub(args.context)..];
            let x = Tensor::from_slice(&device, seen, [1, seen.len()])?;
            let scores = no_grad(|| self.forward(&x))?.narrow(1, seen.len() - 1, 1)?;
            let scores = scores.mul_scalar(1.0 / TEMPERATURE)?;
            written.push(scores.categorical(&chance)?.item::<i64>()?);
        }
        Ok(Some(text.decode(&written[1..])))
    }
}

#[module]
impl Module for CharGpt {
    /// Maps characters (`[n, len]`) to scores of the next ones (`[n, len, classes]`).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let len = x.dims().last().copied().unwrap_or(0);
        let places = Tensor::arange(x.device(), 0, len)?;
        let tokens = self.tokens.forward(x)?;
        let mixed = tokens.add(&self.positions.forward(&places)?)?;
        let mixed = self.blocks.forward(&mixed)?;
        self.head.forward(&self.norm.forward(&mixed)?)
    }
}
