//! Trains a generative adversarial network (Goodfellow et al. 2014) on points of the plane.
//!
//! Two networks train against each other. The critic learns to distinguish points of the data from points of the generator; the
//! generator learns to make points that the critic takes for data. The generator's loss depends on both networks, so its backward pass
//! also gives gradients of the critic. `step` refuses such gradients, and `step_partial` ignores them.
//!
//! cargo run --release --example train_gan

use std::process::ExitCode;

use clap::Parser;
use highwater::prelude::*;
use highwater::train::{Options, Run};
use highwater::{Error, Result};
use serde_json::json;

/// The mean of the data, and its standard deviation, along both axes.
const MEAN: [f64; 2] = [2.0, -1.0];
const DEVIATION: [f64; 2] = [0.5, 1.5];

/// The generator's input size, and the width of hidden layers.
const NOISE: usize = 4;
const HIDDEN: usize = 32;

/// The number of points for evaluation.
const MEASURED: usize = 4096;

/// Train a generative adversarial network on points of the plane.
#[derive(Debug, Parser)]
struct Args {
    /// Steps of each network
    #[arg(long, value_name = "N", default_value_t = 2000)]
    steps: u64,

    /// Points of each kind per step
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: u16,

    /// The learning rate at the start; it falls to zero by the end
    #[arg(long, value_name = "RATE", default_value_t = 0.004)]
    learning_rate: f64,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.run("train_gan", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let (device, rng) = (run.device(), Rng::new(run.seed()));
    let generator = Sequential::new().with("generator", network(device, NOISE, 2, &rng)?);
    let critic = Sequential::new().with("critic", network(device, 2, 1, &rng)?);
    let adam = |network: &Sequential| {
        let adam = |own| Adam::new(own, args.learning_rate)?.with_betas(0.5, 0.99);
        run.parallel(network.parameters(), adam)
    };
    let (mut makes, mut judges) = (adam(&generator)?, adam(&critic)?);

    // Each rank draws its own points.
    let rng = if run.world().size() > 1 { rng.fork(run.world().rank() as u64) } else { rng };
    let points = usize::from(args.batch_size);
    let make = |count: usize| generator.forward(&Tensor::normal(device, [count, NOISE], 0.0, 1.0, &rng)?);
    let is_data = Tensor::ones(device, [points, 1])?;
    let is_made = Tensor::zeros(device, [points, 1])?;
    let judged = |points: &Tensor, as_what: &Tensor| critic.forward(points)?.bce_with_logits(as_what);

    let rate = Schedule::Cosine { start: args.learning_rate, end: 0.0, steps: args.steps };
    let mut output = run.output();
    output.begin(0, Some(args.steps))?;
    while output.steps() < args.steps {
        for optimizer in [&mut makes, &mut judges] {
            optimizer.set_learning_rate(rate.learning_rate(output.steps()))?;
        }
        let loss = output.run(|| {
            // The critic's step. Its points are constants: no gradient reaches the generator.
            let made = no_grad(|| make(points))?;
            let loss = judged(&data(device, points, &rng)?, &is_data)?.add(&judged(&made, &is_made)?)?;
            judges.step(loss.backward()?)?;

            // The generator's step goes through the critic, which stays unchanged.
            let loss = judged(&make(points)?, &is_data)?;
            makes.step_partial(loss.backward()?)?;
            Ok::<_, Error>(loss)
        })?;
        output.step(&loss, [("learning_rate", makes.learning_rate())])?;
    }
    output.finish()?;
    let steps = output.steps();

    let made = no_grad(|| make(MEASURED)?.to_dtype(DType::F32))?;
    let (mean, deviation) = (made.mean(0)?, made.std(0, 1)?);
    if device.is_dry() {
        return Ok(run.finish("dry run", json!({ "steps": steps }))?);
    }
    let (mean, deviation) = (mean.to_vec::<f32>()?, deviation.to_vec::<f32>()?);
    let apart = |found: &[f32], expected: [f64; 2]| {
        let differences =
            found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
        differences.fold(0.0, f64::max)
    };
    let (mean_error, deviation_error) = (apart(&mean, MEAN), apart(&deviation, DEVIATION));
    let summary = format!(
        "made points have mean {mean:.2?} and deviation {deviation:.2?} after {steps} steps; the data has {MEAN:?} and {DEVIATION:?}"
    );
    let results = json!({ "steps": steps, "mean_error": mean_error, "deviation_error": deviation_error });
    Ok(run.finish(&summary, results)?)
}

/// A perceptron with two hidden layers.
fn network(device: &Device, inputs: usize, outputs: usize, rng: &Rng) -> Result<Sequential> {
    Ok(Sequential::new()
        .with("fc1", Linear::new(device, inputs, HIDDEN, rng)?)
        .with("relu", Relu)
        .with("fc2", Linear::new(device, HIDDEN, HIDDEN, rng)?)
        .with("relu", Relu)
        .with("fc3", Linear::new(device, HIDDEN, outputs, rng)?))
}

/// Points of the data.
fn data(device: &Device, count: usize, rng: &Rng) -> Result<Tensor> {
    let standard = Tensor::normal(device, [count, 2], 0.0, 1.0, rng)?;
    let [mean, deviation] = [MEAN, DEVIATION].map(|values| values.map(|value| value as f32));
    standard.mul(&Tensor::from_slice(device, &deviation, 2)?)?.add(&Tensor::from_slice(device, &mean, 2)?)
}
