//! Trains a convolutional network on MNIST, or data in its format, and reports where every byte went.
//!
//! cargo run --release --example train_mnist -- FOLDER
//! cargo run --release --example train_mnist -- FOLDER --network resnet

mod idx;
mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::train::{
    Accuracy, Every, FitOptions, Metric, Options, Outcome, Run, SaveOptions, Trainer, evaluate,
};
use serde_json::json;

/// The fraction of images held out for testing.
const TEST_FRACTION: f64 = 0.2;

/// Train a convolutional network on images in MNIST's format, and report where every byte went.
#[derive(Debug, Parser)]
struct Args {
    /// The folder with one file whose name contains `images-idx3` and one with `labels-idx1`, plain or .gz
    folder: PathBuf,

    #[arg(long, value_enum, default_value_t = model::Network::Cnn)]
    network: model::Network,

    /// Passes over the training images
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    /// Stop after this epoch, as if interrupted: the learning rate is that of all epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_after: Option<u64>,

    /// Images per step
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: usize,

    /// The learning rate at the start; it falls to zero by the end
    #[arg(long, value_name = "RATE", default_value_t = 0.002)]
    learning_rate: f64,

    /// Shift each image by up to this many pixels in each direction, at random
    #[arg(long, value_name = "PIXELS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..28))]
    crop: u8,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().with_fit(&args.fit).run("train_mnist", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let (device, seed) = (run.device(), run.seed());
    let data = idx::read(&args.folder)?.scaled(1.0 / 255.0);
    if data.shape().dims() != [1, 28, 28] {
        bail!("{}: images of {} pixels, not 28 by 28", args.folder.display(), data.width());
    }
    let (train, test) = data.split(TEST_FRACTION, seed)?;
    let new_network = |device: &Device| model::network(args.network, device, &Rng::new(seed));
    let plan = run.plan(args.batch_size, |device, plan, world| {
        train_on(&train, &new_network(device)?, (args, run), (device, plan, world)).map(drop)
    })?;
    let network = new_network(device)?;
    let outcome = train_on(&train, &network, (args, run), (device, &plan, run.world()))?;
    let _scope = module("test");
    let mut accuracy = Accuracy::default();
    let test_batches = test.batches(args.batch_size, device)?;
    evaluate(test_batches, |x| network.forward(x), &mut [&mut accuracy])?;
    let summary = match accuracy.value() {
        Some(share) => {
            let unseen = test.rows();
            format!("{:.1} % of {unseen} test images classified correctly after {outcome}", share * 100.0)
        }
        None => outcome.to_string(),
    };
    let results =
        json!({ "test_accuracy": accuracy.value(), "final_loss": outcome.loss, "steps": outcome.steps });
    Ok(run.finish(&summary, results)?)
}

/// Trains a network with any plan on any device.
fn train_on(
    train: &ArrayDataset,
    network: &Sequential,
    (args, run): (&Args, &Run),
    (device, plan, world): (&Device, &Plan, &World),
) -> highwater::Result<Outcome> {
    let seed = run.seed();
    let mut optimizer =
        run.parallel_in(world, plan.shard, network.parameters(), |own| AdamW::new(own, args.learning_rate))?;
    let steps = args.epochs.saturating_mul(plan.steps_of_epoch(train.rows()));
    Trainer::new(network, &mut optimizer)
        .epochs(args.stop_after.unwrap_or(args.epochs).min(args.epochs))
        .schedule_by(|at| args.learning_rate * (1.0 - at.step as f64 / steps as f64))
        .saves(args.saves.saves(Every::Epochs))
        .world(world)
        .plan(plan)
        .output(run.output_of(plan))
        .train(
            |epoch| {
                // Another thread prepares shifted batches while the network trains.
                let shift = Augment::images(1, 28, 28).crop(args.crop.into());
                let batches = train.batches(plan.micro_batch, device)?.shuffled(seed, epoch).sharded(world);
                Ok(batches.augmented(shift, seed, epoch)?.workers(1))
            },
            |(x, y)| network.forward(x)?.cross_entropy(y),
        )
}
