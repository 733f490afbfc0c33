//! The GPT in Highwater: as in `examples/train_chargpt`, but with the exact GELU.

use highwater::prelude::*;

use crate::workload::gpt;

#[derive(Debug, Module)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Sequential,
    norm: LayerNorm,
    head: Linear,
    context: usize,
}

impl Gpt {
    pub fn new(sizes: gpt::Gpt, device: &Device, rng: &Rng) -> Result<Self> {
        let gpt::Gpt { layers, width, heads, context, classes } = sizes;
        let mut blocks = Sequential::new();
        for layer in 0..layers {
            let block = Block {
                norm1: LayerNorm::new(device, width)?,
                attention: MultiHeadAttention::new(device, width, heads, rng)?.causal(),
                norm2: LayerNorm::new(device, width)?,
                up: Linear::new(device, width, 4 * width, rng)?,
                down: Linear::new(device, 4 * width, width, rng)?,
            };
            blocks = blocks.with(&format!("block{layer}"), block);
        }
        let options = LinearOptions { bias: None, ..LinearOptions::default() };
        Ok(Self {
            tokens: Embedding::new(device, classes, width, rng)?,
            positions: Embedding::new(device, context, width, rng)?,
            blocks,
            norm: LayerNorm::new(device, width)?,
            head: Linear::with_options(device, width, classes, options, rng)?,
            context,
        })
    }
}

#[module]
impl Module for Gpt {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(x.device(), 0, self.context)?;
        let mixed = self.tokens.forward(x)?.add(&self.positions.forward(&places)?)?;
        let mixed = self.norm.forward(&self.blocks.forward(&mixed)?)?;
        self.head.forward(&mixed)?.flatten(0, 1)
    }
}

#[derive(Debug, Module)]
struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

#[module]
impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.norm1.forward(x)?)?)?;
        let inside = self.up.forward(&self.norm2.forward(&x)?)?.gelu()?;
        x.add(&self.down.forward(&inside)?)
    }
}
