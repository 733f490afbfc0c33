//! The programs in Highwater.

use highwater::nn::Parameter;
use highwater::nn::{Conv2d, Embedding, Flatten, LayerNorm, LinearOptions, MaxPool2d, MultiHeadAttention};
use highwater::prelude::*;
use highwater::tracking::Tracker;
use highwater::{Conv2dOptions, Result};

use crate::Step;
use crate::workload::{Batches, DISTINCT, GPT, Gpt, Workload};

/// How Highwater runs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Disables Highwater's op accounts.
    #[arg(long)]
    unmarked: bool,
}

/// A step of the workload, on this many threads.
pub fn start(
    workload: Workload,
    threads: usize,
    Options { unmarked }: Options,
) -> anyhow::Result<Step> {
    let tracker = if unmarked { Tracker::disabled() } else { Tracker::new() };
    let runtime = Runtime::builder().threads(threads).tracker(tracker).build()?;
    let device = runtime.cpu()?;
    let batches = Batches::new(workload);
    let rng = Rng::new(0);
    let linear = |inputs, outputs| Linear::new(&device, inputs, outputs, &rng);
    let model: Box<dyn Module> = match workload {
        Workload::Mlp => Box::new(
            Sequential::new()
                .with("fc1", linear(784, 256)?)
                .with("relu1", Relu)
                .with("fc2", linear(256, 128)?)
                .with("relu2", Relu)
                .with("fc3", linear(128, 10)?),
        ),
        Workload::Tiny => Box::new(
            Sequential::new()
                .with("fc1", linear(2, 16)?)
                .with("relu1", Relu)
                .with("fc2", linear(16, 16)?)
                .with("relu2", Relu)
                .with("fc3", linear(16, 1)?),
        ),
        Workload::Cnn => {
            let conv = |inputs, outputs| {
                let options = Conv2dOptions { padding: [1, 1].into(), ..Conv2dOptions::default() };
                Conv2d::new(&device, inputs, outputs, [3, 3], options, &rng)
            };
            Box::new(
                Sequential::new()
                    .with("conv1", conv(1, 16)?)
                    .with("relu1", Relu)
                    .with("pool1", MaxPool2d::new(2))
                    .with("conv2", conv(16, 32)?)
                    .with("relu2", Relu)
                    .with("pool2", MaxPool2d::new(2))
                    .with("flatten", Flatten)
                    .with("fc", linear(32 * 49, 10)?),
            )
        }
        Workload::Gpt => Box::new(CharGpt::new(&device, &rng)?),
    };
    let parameters = model.parameters();
    let weights = workload.weights();
    anyhow::ensure!(parameters.len() == weights.len(), "{} parameters", parameters.len());
    for ((name, parameter), (shape, values)) in parameters.iter().zip(&weights) {
        anyhow::ensure!(parameter.tensor().dims() == *shape, "{name}: {:?}", parameter.tensor().dims());
        parameter.set(&Tensor::from_slice(&device, values, &shape[..])?)?;
    }
    let mut optimizer: Box<dyn Optimizer> = match workload {
        Workload::Mlp => Box::new(Sgd::new(parameters, 0.1)?),
        Workload::Tiny => Box::new(Sgd::new(parameters, 0.05)?),
        Workload::Cnn => Box::new(Sgd::new(parameters, 0.01)?.with_momentum(0.9)?),
        Workload::Gpt => Box::new(AdamW::new(parameters, 3e-4)?.with_weight_decay(0.01)?),
    };
    let n = workload.batch();
    Ok(Box::new(move |step| {
        let at = step % DISTINCT;
        let loss = match workload {
            Workload::Tiny => {
                let x = Tensor::from_slice(&device, &batches.inputs[at], [n, 2])?;
                let y = Tensor::from_slice(&device, &batches.values[at], [n, 1])?;
                model.forward(&x)?.mse_loss(&y, Reduction::Mean)?
            }
            Workload::Gpt => {
                let x = Tensor::from_slice(&device, &batches.tokens[at], [n, GPT.context])?;
                let y = Tensor::from_slice(&device, &batches.classes[at], [n * GPT.context])?;
                model.forward(&x)?.reshape([n * GPT.context, GPT.classes])?.cross_entropy(&y)?
            }
            Workload::Mlp | Workload::Cnn => {
                let shape: &[usize] = if workload == Workload::Mlp { &[n, 784] } else { &[n, 1, 28, 28] };
                let x = Tensor::from_slice(&device, &batches.inputs[at], shape)?;
                let y = Tensor::from_slice(&device, &batches.classes[at], [n])?;
                model.forward(&x)?.cross_entropy(&y)?
            }
        };
        let value = loss.item::<f32>()?;
        optimizer.step(loss.backward()?)?;
        Ok(value)
    }))
}

/// As in `examples/train_chargpt`, but with the exact GELU.
#[derive(Debug)]
struct CharGpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Sequential,
    norm: LayerNorm,
    head: Linear,
}

impl CharGpt {
    fn new(device: &Device, rng: &Rng) -> Result<Self> {
        let Gpt { layers, width, heads, context, classes } = GPT;
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
        })
    }
}

impl Module for CharGpt {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(x.device(), 0, GPT.context)?;
        let mixed =
            self.tokens.forward(x)?.add(&self.positions.forward(&places)?)?;
        let mixed = self.blocks.forward(&mixed)?;
        self.head.forward(&self.norm.forward(&mixed)?)
    }

    visit_parts!(tokens, positions, blocks, norm, head);
}

#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.norm1.forward(x)?)?)?;
        let inside = self.up.forward(&self.norm2.forward(&x)?)?.gelu()?;
        x.add(&self.down.forward(&inside)?)
    }

    visit_parts!(norm1, attention, norm2, up, down);
}
