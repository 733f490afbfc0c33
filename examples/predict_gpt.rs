//! Predicts the memory of a training step of GPTs of three sizes on GPUs that this machine does not have.
//!
//! cargo run --release --example predict_gpt

use std::time::Instant;

use highwater::tracking::table::{Table, bytes};
use highwater::{Error, Result, dry_run, prelude::*};

const VOCABULARY: usize = 50_257;
const CONTEXT: usize = 1024;
const BATCH: usize = 2;

/// GPT-2's architecture (Radford et al. 2019): the output layer shares the embedding table.
#[derive(Debug)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Sequential,
    norm: LayerNorm,
}

impl Gpt {
    fn new(device: &Device, layers: usize, width: usize, heads: usize) -> Result<Self> {
        let rng = Rng::new(0);
        let mut blocks = Sequential::new();
        for layer in 0..layers {
            let block = TransformerBlock::new(device, width, heads, &rng)?.causal();
            blocks = blocks.with(&layer.to_string(), block);
        }
        Ok(Self {
            tokens: Embedding::new(device, VOCABULARY, width, &rng)?,
            positions: Embedding::new(device, CONTEXT, width, &rng)?,
            blocks,
            norm: LayerNorm::new(device, width)?,
        })
    }
}

impl Module for Gpt {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = self.positions.forward(&Tensor::arange(tokens.device(), 0, tokens.dims()[1])?)?;
        let x = self.blocks.forward(&self.tokens.forward(tokens)?.add(&positions)?)?;
        self.norm.forward(&x)?.matmul(&self.tokens.weight().tensor().t()?)
    }

    visit_parts!(tokens, positions, blocks, norm);
}

/// Two training steps, written as for a real device: the second one has the optimizer's state from its beginning.
fn train(device: &Device, layers: usize, width: usize, heads: usize) -> Result<()> {
    let gpt = Gpt::new(device, layers, width, heads)?;
    let mut optimizer = AdamW::new(gpt.parameters(), 3e-4)?;
    for _ in 0..2 {
        let tokens = Tensor::zeros_of(device, [BATCH, CONTEXT], DType::I64)?;
        let scores = gpt.forward(&tokens)?.flatten(0, 1)?;
        let loss = scores.cross_entropy(&tokens.flatten(0, 1)?)?;
        optimizer.step(loss.backward()?)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut table = Table::new(&["GPT", "on", "peak", "of", "predicted in"]);
    for (name, layers, width, heads) in
        [("124 M", 12, 768, 12), ("1.5 B", 48, 1600, 25), ("7 B", 32, 4096, 32)]
    {
        for gpu in ["rtx-4090", "h100-80g", "h200"] {
            let profile: DeviceProfile = gpu.parse()?;
            let limit = profile.memory().map_or_else(String::new, |memory| bytes(memory.get()));
            let start = Instant::now();
            let run = dry_run(profile, |device| train(device, layers, width, heads));
            let time = format!("{:.0} ms", start.elapsed().as_secs_f64() * 1e3);
            let peak = match run {
                Ok(run) => bytes(run.peak.in_use),
                Err(Error::Allocation { op, .. }) => format!("out of memory in {op}"),
                Err(error) => return Err(error),
            };
            table.line(name, [gpu.to_owned(), peak, limit, time]);
        }
    }
    print!("{table}");
    Ok(())
}
