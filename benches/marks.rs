//! Measures the cost of op accounts and recordings in a training step, in percent.
//!
//! Run with `cargo bench -p highwater-benches --bench marks`.
//!
//! The same step runs without op accounts, with them, and with an additional recording in memory. Short
//! rounds of all three alternate, so that other work on the machine affects all alike. The result is the
//! median of the ratios within a round.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use highwater::prelude::*;
use highwater::tensor::{Conv2dOptions, Pool2dOptions};
use highwater::tracking::Tracker;
use highwater::{Result, Runtime};

#[path = "../examples/train_digits/model.rs"]
#[allow(dead_code, reason = "the example also measures how well it reads")]
mod digits;

/// The number of rounds and the duration of each. Short, because a shared machine's speed changes within tens of
/// milliseconds.
const ROUNDS: usize = 2000;
const ROUND: Duration = Duration::from_millis(1);

/// The mode of a step.
#[derive(Clone, Copy, Debug)]
enum Way {
    Bare,
    Marks,
    Recording,
}

const WAYS: [Way; 3] = [Way::Bare, Way::Marks, Way::Recording];

type Step = Box<dyn FnMut() -> Result<()>>;

/// A training step for a device.
type MakeStep = fn(&Device) -> Result<Step>;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // `cargo test --benches` only checks that it runs.
    let rounds = if std::env::args().any(|argument| argument == "--test") { 1 } else { ROUNDS };
    let mut out = io::stdout().lock();
    writeln!(out, "{:<28}{:>12}{:>12}{:>20}", "step", "bare", "marks", "marks, recording")?;
    let steps: [(&str, MakeStep); 4] = [
        ("2-16-16-1, batch 4", tiny_step),
        ("digits, batch 64", digits_step),
        ("convolutions, batch 32", conv_step),
        ("transformer block", block_step),
    ];
    for (name, make) in steps {
        let mut ways = Vec::new();
        for way in WAYS {
            let tracker = if matches!(way, Way::Bare) { Tracker::disabled() } else { Tracker::new() };
            if matches!(way, Way::Recording) {
                tracker.start_log(Bytes::mib(16));
            }
            let device = Runtime::builder().threads(1).tracker(tracker).build()?.cpu()?;
            ways.push(make(&device)?);
        }
        let mut times: Vec<[f64; 3]> = Vec::new();
        let count = steps_in(&mut ways[0])?;
        for _ in 0..rounds {
            let mut round = [0.0; 3];
            for (step, time) in ways.iter_mut().zip(&mut round) {
                *time = run(step, count)?.as_secs_f64() / count as f64;
            }
            times.push(round);
        }
        let bare = median(times.iter().map(|round| round[0])) * 1e6;
        let more = |way: usize| (median(times.iter().map(|round| round[way] / round[0])) - 1.0) * 100.0;
        writeln!(out, "{name:<28}{bare:>9.1} µs{:>10.2} %{:>18.2} %", more(1), more(2))?;
    }
    Ok(())
}

/// The steps per round, after warming up.
fn steps_in(step: &mut Step) -> Result<u32> {
    run(step, 20)?;
    let one = run(step, 20)? / 20;
    Ok((ROUND.as_nanos() / one.as_nanos().max(1)).clamp(1, 10_000) as u32)
}

fn run(step: &mut Step, count: u32) -> Result<Duration> {
    let start = Instant::now();
    (0..count).try_for_each(|_| step())?;
    Ok(start.elapsed())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A network whose ops compute almost nothing.
fn tiny_step(device: &Device) -> Result<Step> {
    let rng = Rng::new(0);
    let network = Sequential::new()
        .with("fc1", Linear::new(device, 2, 16, &rng)?)
        .with("relu1", Relu)
        .with("fc2", Linear::new(device, 16, 16, &rng)?)
        .with("relu2", Relu)
        .with("fc3", Linear::new(device, 16, 1, &rng)?);
    let mut optimizer = Sgd::new(network.parameters(), 1e-2)?;
    let x = Tensor::uniform(device, [4, 2], -1.0, 1.0, &rng)?;
    let y = Tensor::zeros(device, [4, 1])?;
    Ok(Box::new(move || optimizer.step(network.forward(&x)?.mse_loss(&y)?.backward()?)))
}

/// The step of `train_digits`.
fn digits_step(device: &Device) -> Result<Step> {
    let rng = Rng::new(0);
    let network = digits::network(digits::Network::Mlp, device, &rng)?;
    let mut optimizer = AdamW::new(network.parameters(), 1e-3)?;
    let x = Tensor::uniform(device, [64, 64], 0.0, 1.0, &rng)?;
    let y = Tensor::from_slice(device, &[3i64; 64], [64])?;
    Ok(Box::new(move || optimizer.step(digits::loss(&network, &x, &y)?.backward()?)))
}

/// Two convolutions with pooling and a linear layer on images of 28×28.
fn conv_step(device: &Device) -> Result<Step> {
    let rng = Rng::new(0);
    let filters = |shape: [usize; 4]| Parameter::new(Tensor::normal(device, shape, 0.0, 0.1, &rng)?);
    let (first, second) = (filters([8, 1, 3, 3])?, filters([16, 8, 3, 3])?);
    let scores = Linear::new(device, 16 * 5 * 5, 10, &rng)?;
    let parameters =
        [("conv1", &first), ("conv2", &second)].map(|(name, filters)| (name.to_owned(), filters.clone()));
    let parameters = parameters.into_iter().chain(scores.parameters()).collect::<Vec<_>>();
    let mut optimizer = AdamW::new(parameters, 1e-3)?;
    let x = Tensor::uniform(device, [32, 1, 28, 28], 0.0, 1.0, &rng)?;
    let y = Tensor::from_slice(device, &[3i64; 32], [32])?;
    Ok(Box::new(move || {
        let layer = |name: &str, x: &Tensor, filters: &Parameter| {
            let _scope = module(name);
            x.conv2d(&filters.tensor(), Conv2dOptions::default())?
                .relu()?
                .max_pool2d(Pool2dOptions::square(2))
        };
        let seen = layer("conv2", &layer("conv1", &x, &first)?, &second)?;
        let loss = scores.forward(&seen.reshape([32, 16 * 5 * 5])?)?.cross_entropy(&y)?;
        optimizer.step(loss.backward()?)
    }))
}

/// One-head attention over 128 positions and a feed-forward part, both with residuals.
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    up: Linear,
    down: Linear,
}

const WIDTH: usize = 192;

fn block_step(device: &Device) -> Result<Step> {
    let rng = Rng::new(0);
    let linear = |from, to| Linear::new(device, from, to, &rng);
    let block = Block {
        query: linear(WIDTH, WIDTH)?,
        key: linear(WIDTH, WIDTH)?,
        value: linear(WIDTH, WIDTH)?,
        up: linear(WIDTH, 4 * WIDTH)?,
        down: linear(4 * WIDTH, WIDTH)?,
    };
    let layers = [&block.query, &block.key, &block.value, &block.up, &block.down];
    let parameters = layers.into_iter().flat_map(|layer| layer.parameters()).collect::<Vec<_>>();
    let mut optimizer = AdamW::new(parameters, 1e-3)?;
    let x = Tensor::normal(device, [128, WIDTH], 0.0, 1.0, &rng)?;
    let y = Tensor::from_slice(device, &[7i64; 128], [128])?;
    Ok(Box::new(move || {
        let attended = {
            let _scope = module("block.attention");
            let scores = block.query.forward(&x)?.matmul(&block.key.forward(&x)?.transpose(0, 1)?)?;
            let weights = scores.mul_scalar(1.0 / (WIDTH as f64).sqrt())?.softmax(1)?;
            x.add(&weights.matmul(&block.value.forward(&x)?)?)?
        };
        let out = {
            let _scope = module("block.feed_forward");
            attended.add(&block.down.forward(&block.up.forward(&attended)?.relu()?)?)?
        };
        let loss = out.cross_entropy(&y)?;
        optimizer.step(loss.backward()?)
    }))
}
