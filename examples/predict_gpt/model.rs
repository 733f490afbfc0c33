//! GPT-2's architecture (Radford et al. 2019) in three sizes.

use highwater::{Result, prelude::*};

pub(crate) const VOCABULARY: usize = 50_257;

/// The size of a GPT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
}

pub(crate) const SIZES: [Size; 3] = [
    Size { name: "124M", layers: 12, width: 768, heads: 12 },
    Size { name: "1.5B", layers: 48, width: 1600, heads: 25 },
    Size { name: "7B", layers: 32, width: 4096, heads: 32 },
];

/// The output layer shares the embedding table.
#[derive(Debug, Module)]
pub(crate) struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Sequential,
    norm: LayerNorm,
}

impl Gpt {
    pub(crate) fn new(device: &Device, size: Size, context: usize) -> Result<Self> {
        let rng = Rng::new(0);
        let mut blocks = Sequential::new();
        for layer in 0..size.layers {
            let block = TransformerBlock::new(device, size.width, size.heads, &rng)?.causal();
            blocks = blocks.with(&layer.to_string(), block);
        }
        Ok(Self {
            tokens: Embedding::new(device, VOCABULARY, size.width, &rng)?,
            positions: Embedding::new(device, context, size.width, &rng)?,
            blocks,
            norm: LayerNorm::new(device, size.width)?,
        })
    }

    /// The gradients of a batch of zeros: a dry run computes no values. The loss computes its scores by chunks of rows.
    pub(crate) fn gradients(&self, device: &Device, batch: usize, context: usize) -> Result<Gradients> {
        let tokens = Tensor::zeros_of(device, [batch, context], DType::I64)?;
        self.linear_loss(&tokens)?.backward()
    }

    /// The loss of predicting `tokens`, without a tensor of all scores.
    pub(crate) fn linear_loss(&self, tokens: &Tensor) -> Result<Tensor> {
        let options = LinearCrossEntropyOptions::default();
        self.tokens.linear_cross_entropy(&self.hidden(tokens)?, tokens, options)
    }

    /// The hidden states before the output layer.
    fn hidden(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = self.positions.forward(&Tensor::arange(tokens.device(), 0, tokens.dims()[1])?)?;
        self.norm.forward(&self.blocks.forward(&self.tokens.forward(tokens)?.add(&positions)?)?)
    }
}

#[module]
impl Module for Gpt {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.tokens.logits(&self.hidden(tokens)?)
    }
}
