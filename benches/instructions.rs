//! Programs for counting instructions, which are the same on every run, however busy the machine is.
//!
//! `scripts/count-instructions` runs each under valgrind with two numbers of steps and compares the instructions per
//! step with `contributing/instructions.txt`. That finds repeated work and loops that are no longer compiled well.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use flate2::bufread::GzDecoder;
use highwater::alloc::{AddressOnlyMemory, BfcAllocator, BfcConfig};
use highwater::nn::{Conv2d, Embedding, Flatten, LayerNorm, MaxPool2d, Module, Parameter, TransformerBlock};
use highwater::prelude::*;
use highwater::{Conv2dOptions, Result, module};
use highwater_traces::{Replayer, Trace, TraceLimits};

/// One step of a program.
type Program = Box<dyn FnMut() -> anyhow::Result<()>>;

/// Prepares a program.
type Start = fn() -> anyhow::Result<Program>;

/// The programs, by name.
const PROGRAMS: [(&str, Start); 7] = [
    ("replay", replay),
    ("tiny", tiny),
    ("mlp", mlp),
    ("cnn", cnn),
    ("gpt", gpt),
    ("resnet_block", resnet_block),
    ("lstm", lstm),
];

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    match &args[..] {
        [] => PROGRAMS.iter().try_for_each(|(_, start)| start()?()),
        [name, steps] => {
            let steps: u32 = steps.parse().context("the number of steps")?;
            let Some((_, start)) = PROGRAMS.iter().find(|(known, _)| known == name) else {
                bail!("{name} is none of {}", PROGRAMS.map(|(known, _)| known).join(", "));
            };
            let mut step = start()?;
            // Starts what begins with the first step, such as the clock, whose calibration takes a varying number.
            step()?;
            counted_steps(&mut step, steps)
        }
        _ => bail!("a program and a number of steps, or nothing"),
    }
}

/// Runs the steps that valgrind counts: `scripts/count-instructions` names this function.
#[inline(never)]
fn counted_steps(step: &mut Program, steps: u32) -> anyhow::Result<()> {
    (0..steps).try_for_each(|_| step())
}

/// The digits run's own trace through a pool.
fn replay() -> anyhow::Result<Program> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/digits.trace.gz");
    let file = BufReader::new(GzDecoder::new(BufReader::new(File::open(path)?)));
    // Leaked, because the replayer borrows it for the rest of the program.
    let trace = Box::leak(Box::new(Trace::parse(file, &TraceLimits::default())?));
    let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(16)));
    let mut replayer = Replayer::new(trace);
    Ok(Box::new(move || Ok(replayer.run(&pool).map(drop)?)))
}

/// A training step on one thread, so that no waiting is counted.
fn training<M: Module + 'static>(
    build: impl FnOnce(&Device, &Rng) -> Result<M>,
    input: impl FnOnce(&Device, &Rng) -> Result<Tensor>,
    loss: impl Fn(&Tensor) -> Result<Tensor> + 'static,
    optimizer: impl FnOnce(Vec<(String, Parameter)>) -> Result<Box<dyn Optimizer>>,
) -> anyhow::Result<Program> {
    let device = Runtime::builder().threads(1).build()?.cpu()?;
    let rng = Rng::new(0);
    let (model, x) = (build(&device, &rng)?, input(&device, &rng)?);
    let mut optimizer = optimizer(model.parameters())?;
    Ok(Box::new(move || {
        let loss = loss(&model.forward(&x)?)?;
        loss.item::<f32>()?;
        Ok(optimizer.step(loss.backward()?)?)
    }))
}

fn sgd(parameters: Vec<(String, Parameter)>) -> Result<Box<dyn Optimizer>> {
    Ok(Box::new(Sgd::new(parameters, 0.05)?))
}

/// Class 1 for every row.
fn classes(logits: &Tensor) -> Result<Tensor> {
    let targets = Tensor::from_slice(logits.device(), &vec![1i64; logits.dims()[0]], [logits.dims()[0]])?;
    logits.cross_entropy(&targets)
}

/// 2-16-16-1 with batches of 4: mostly the overhead of ops.
fn tiny() -> anyhow::Result<Program> {
    training(
        |device, rng| {
            Ok(Sequential::new()
                .with("fc1", Linear::new(device, 2, 16, rng)?)
                .with("relu1", Relu)
                .with("fc2", Linear::new(device, 16, 16, rng)?)
                .with("relu2", Relu)
                .with("fc3", Linear::new(device, 16, 1, rng)?))
        },
        |device, rng| Tensor::uniform(device, [4, 2], -1.0, 1.0, rng),
        |y| y.mse_loss(&Tensor::zeros(y.device(), [4, 1])?),
        sgd,
    )
}

/// 784-256-128-10 with batches of 64.
fn mlp() -> anyhow::Result<Program> {
    training(
        |device, rng| {
            Ok(Sequential::new()
                .with("fc1", Linear::new(device, 784, 256, rng)?)
                .with("relu1", Relu)
                .with("fc2", Linear::new(device, 256, 128, rng)?)
                .with("relu2", Relu)
                .with("fc3", Linear::new(device, 128, 10, rng)?))
        },
        |device, rng| Tensor::uniform(device, [64, 784], 0.0, 1.0, rng),
        classes,
        sgd,
    )
}

/// Two convolutions with pooling, batches of 16 images of 28×28, with momentum.
fn cnn() -> anyhow::Result<Program> {
    training(
        |device, rng| {
            let conv = |inputs, outputs| {
                let options = Conv2dOptions { padding: [1, 1].into(), ..Conv2dOptions::default() };
                Conv2d::new(device, inputs, outputs, [3, 3], options, rng)
            };
            Ok(Sequential::new()
                .with("conv1", conv(1, 16)?)
                .with("relu1", Relu)
                .with("pool1", MaxPool2d::new(2))
                .with("conv2", conv(16, 32)?)
                .with("relu2", Relu)
                .with("pool2", MaxPool2d::new(2))
                .with("flatten", Flatten)
                .with("fc", Linear::new(device, 32 * 49, 10, rng)?))
        },
        |device, rng| Tensor::uniform(device, [16, 1, 28, 28], 0.0, 1.0, rng),
        classes,
        |parameters| Ok(Box::new(Sgd::new(parameters, 0.01)?.with_momentum(0.9)?)),
    )
}

/// A small language model: two blocks of width 64, 4 sequences of 32 tokens, with AdamW.
#[derive(Debug, Module)]
struct Gpt {
    tokens: Embedding,
    blocks: Sequential,
    norm: LayerNorm,
    head: Linear,
}

#[module]
impl Module for Gpt {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.blocks.forward(&self.tokens.forward(x)?)?;
        let logits = self.head.forward(&self.norm.forward(&x)?)?;
        logits.reshape([4 * 32, 65])
    }
}

fn gpt() -> anyhow::Result<Program> {
    training(
        |device, rng| {
            Ok(Gpt {
                tokens: Embedding::new(device, 65, 64, rng)?,
                blocks: Sequential::new()
                    .with("block0", TransformerBlock::new(device, 64, 4, rng)?.causal())
                    .with("block1", TransformerBlock::new(device, 64, 4, rng)?.causal()),
                norm: LayerNorm::new(device, 64)?,
                head: Linear::new(device, 64, 65, rng)?,
            })
        },
        |device, _| {
            let tokens: Vec<i64> = (0..4 * 32).map(|place| place * 37 % 65).collect();
            Tensor::from_slice(device, &tokens, [4, 32])
        },
        classes,
        |parameters| Ok(Box::new(AdamW::new(parameters, 3e-4)?.with_weight_decay(0.01)?)),
    )
}

/// A residual block with stride 2 and batch norms, and a linear layer on the mean of each channel.
#[derive(Debug, Module)]
struct ResidualBlock {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    shortcut: Conv2d,
    norm3: BatchNorm,
    head: Linear,
}

#[module]
impl Module for ResidualBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.norm1.forward(&self.conv1.forward(x)?)?.relu()?;
        let y = self.norm2.forward(&self.conv2.forward(&y)?)?;
        let shortcut = self.norm3.forward(&self.shortcut.forward(x)?)?;
        self.head.forward(&y.add(&shortcut)?.relu()?.mean([2, 3])?)
    }
}

/// 16 to 32 channels, batches of 8 images of 16×16, with momentum.
fn resnet_block() -> anyhow::Result<Program> {
    training(
        |device, rng| {
            let conv = |inputs, size: usize, stride| -> Result<Conv2d> {
                let options = Conv2dOptions { stride: [stride; 2], ..Conv2dOptions::padded(size / 2) };
                Ok(Conv2d::new(device, inputs, 32, [size; 2], options, rng)?.without_bias())
            };
            Ok(ResidualBlock {
                conv1: conv(16, 3, 2)?,
                norm1: BatchNorm::new(device, 32)?,
                conv2: conv(32, 3, 1)?,
                norm2: BatchNorm::new(device, 32)?,
                shortcut: conv(16, 1, 2)?,
                norm3: BatchNorm::new(device, 32)?,
                head: Linear::new(device, 32, 10, rng)?,
            })
        },
        |device, rng| Tensor::uniform(device, [8, 16, 16, 16], 0.0, 1.0, rng),
        classes,
        |parameters| Ok(Box::new(Sgd::new(parameters, 0.01)?.with_momentum(0.9)?)),
    )
}

/// Two LSTM layers of 64, and a linear layer on the last state.
#[derive(Debug, Module)]
struct Recurrent {
    layers: Lstm,
    head: Linear,
}

#[module]
impl Module for Recurrent {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.layers.forward(x)?.select(1, -1)?)
    }
}

/// 8 sequences of 16 steps, with AdamW.
fn lstm() -> anyhow::Result<Program> {
    training(
        |device, rng| {
            let options = RecurrentOptions { layers: 2, ..RecurrentOptions::default() };
            Ok(Recurrent {
                layers: Lstm::with_options(device, 32, 64, options, rng)?,
                head: Linear::new(device, 64, 10, rng)?,
            })
        },
        |device, rng| Tensor::uniform(device, [8, 16, 32], -1.0, 1.0, rng),
        classes,
        |parameters| Ok(Box::new(AdamW::new(parameters, 3e-4)?.with_weight_decay(0.01)?)),
    )
}
