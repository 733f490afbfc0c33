//! Trains a convolutional network on MNIST, or data in its format, and reports where every byte went.
//!
//! cargo run --release --example train_mnist -- FOLDER

#[path = "../harness/mod.rs"]
mod harness;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use harness::{Session, idx};
use highwater::data::Augment;
use highwater::prelude::*;
use serde_json::json;

/// The fraction of images held out for testing.
const TEST_FRACTION: f64 = 0.2;

/// Train a convolutional network on images in MNIST's format, and report where every byte went.
#[derive(Debug, Parser)]
struct Args {
    /// The folder with one file whose name contains `images-idx3` and one with `labels-idx1`, plain or .gz
    folder: PathBuf,

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
    saves: harness::Saves,
}

fn main() -> ExitCode {
    harness::main("train_mnist", run)
}

/// Two convolutions with pooling, and a linear layer that scores each digit.
fn network(device: &Device, rng: &Rng) -> highwater::Result<Sequential> {
    let same = Conv2dOptions::padded(1);
    Ok(Sequential::new()
        .with("conv1", Conv2d::new(device, 1, 16, [3, 3], same, rng)?)
        .with("relu1", Relu)
        .with("pool1", MaxPool2d::new(2))
        .with("conv2", Conv2d::new(device, 16, 32, [3, 3], same, rng)?)
        .with("relu2", Relu)
        .with("pool2", MaxPool2d::new(2))
        .with("flat", Flatten)
        .with("dropout", Dropout::new(0.2, &rng.fork(0)))
        .with("fc", Linear::new(device, 32 * 7 * 7, 10, rng)?))
}

/// Rows of pixels as images of one channel.
fn images(rows: &Tensor) -> highwater::Result<Tensor> {
    rows.reshape([rows.dims().first().copied().unwrap_or(0), 1, 28, 28])
}

fn run(args: &Args, session: &Session) -> anyhow::Result<()> {
    let (device, seed) = (&session.device, session.seed);
    let data = idx::read(&args.folder)?.scaled(1.0 / 255.0);
    if data.width() != 28 * 28 {
        bail!("{}: images of {} pixels, not 28 by 28", args.folder.display(), data.width());
    }
    let (train, test) = data.split(TEST_FRACTION, seed)?;
    let network = network(device, &Rng::new(seed))?;
    let mut optimizer = AdamW::new(network.parameters(), args.learning_rate)?;

    let per_epoch = train.batches(args.batch_size, device)?.len() as u64;
    let steps = args.epochs.saturating_mul(per_epoch);
    let mut progress = session.progress(steps);
    progress.resume(args.saves.resume(&network, &mut optimizer)?);
    // Only whole epochs are saved.
    let first = progress.steps() / per_epoch.max(1);
    for epoch in first..args.stop_after.unwrap_or(args.epochs).min(args.epochs) {
        // Another thread prepares shifted batches while the network trains.
        let shift = Augment::images(1, 28, 28).crop(args.crop.into());
        let batches = train.batches(args.batch_size, device)?.shuffled(seed, epoch);
        let batches = batches.augmented(shift, seed, epoch)?;
        std::thread::scope(|scope| -> anyhow::Result<()> {
            for batch in batches.prefetched(scope, 2) {
                let (x, y) = batch?;
                let left = 1.0 - progress.steps() as f64 / steps as f64;
                optimizer.set_learning_rate(args.learning_rate * left)?;
                let loss = progress.run(|| {
                    let loss = network.forward(&images(&x)?)?.cross_entropy(&y)?;
                    optimizer.step(loss.backward()?)?;
                    Ok(loss)
                })?;
                progress.step(&loss, json!({ "learning_rate": optimizer.learning_rate() }))?;
            }
            Ok(())
        })?;
        if args.saves.is_due(epoch + 1) {
            args.saves.save(device, &network, &optimizer, progress.steps())?;
        }
    }
    let (steps, last_loss) = (progress.steps(), progress.loss());
    drop(progress);
    args.saves.save(device, &network, &optimizer, steps)?;

    let accuracy = accuracy(&network, &test, args.batch_size, device)?;
    let summary = match accuracy {
        Some(share) => {
            let unseen = test.rows();
            format!("{:.1} % of {unseen} test images classified correctly after {steps} steps", share * 100.0)
        }
        None => format!("{steps} steps, dry run"),
    };
    let results = json!({ "test_accuracy": accuracy, "final_loss": last_loss, "steps": steps });
    session.finish(&summary, results)
}

/// The fraction of images classified correctly; `None` on a device that computes nothing.
fn accuracy(
    network: &Sequential,
    data: &Dataset,
    batch_size: usize,
    device: &Device,
) -> highwater::Result<Option<f64>> {
    let _scope = module("test");
    let mut right = 0.0;
    for batch in data.batches(batch_size, device)? {
        let (x, y) = batch?;
        let digits = no_grad(|| network.forward(&images(&x)?))?.argmax(1)?;
        right += digits.eq(&y)?.to_dtype(DType::F64)?.sum_all()?.item_or(0.0)?;
    }
    Ok((!device.is_dry()).then(|| right / data.rows() as f64))
}
