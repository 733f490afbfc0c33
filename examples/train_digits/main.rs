//! Trains a small network on real handwritten digits, and says where every byte went.
//!
//! cargo run --release --example train_digits -- --help

#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use harness::Session;
use highwater::prelude::*;
use serde_json::json;

use progress::Progress;

/// The share of the images that the network never sees in training.
const TEST_FRACTION: f64 = 0.2;

/// The brightness of a white pixel in the data.
const WHITE: f32 = 16.0;

/// Train a small network on handwritten digits, and say where every byte went.
#[derive(Debug, Parser)]
struct Args {
    /// Passes over the training images
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    /// Images per step
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: usize,

    /// The learning rate at the start; it falls to zero by the end
    #[arg(long, value_name = "RATE", default_value_t = 0.005)]
    learning_rate: f64,

    /// The images: a CSV file, plain or compressed, whose last column is the digit
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz"))]
    data: PathBuf,

    /// Go on when the loss is no longer a number
    #[arg(long)]
    allow_nan: bool,

    #[command(flatten)]
    options: harness::Options,
}

impl AsRef<harness::Options> for Args {
    fn as_ref(&self) -> &harness::Options {
        &self.options
    }
}

fn main() -> ExitCode {
    harness::main("train_digits", run)
}

fn run(args: &Args, session: Session) -> anyhow::Result<()> {
    let (device, seed) = (session.device.clone(), args.options.seed);
    let images = read_csv(&args.data, &CsvOptions::default())?.scaled(1.0 / WHITE);
    let (train, test) = images.split(TEST_FRACTION, seed)?;
    if test.rows() == 0 {
        bail!("{}: too few images to keep some unseen", args.data.display());
    }
    let network = model::network(&device, &Rng::new(seed))?;
    let mut optimizer = AdamW::new(network.parameters(), args.learning_rate)?;

    let steps_per_epoch = train.batches(args.batch_size, &device)?.len() as u64;
    let mut progress = Progress::new(&device, args.epochs.saturating_mul(steps_per_epoch));
    let (mut steps, mut final_loss, mut test_accuracy) = (0, None, None);
    for epoch in 0..args.epochs {
        optimizer.set_learning_rate(args.learning_rate * (1.0 - epoch as f64 / args.epochs as f64))?;
        for batch in train.batches(args.batch_size, &device)?.shuffled(seed, epoch) {
            let (x, y) = batch?;
            let loss = model::train_step(&network, &mut optimizer, &x, &y)?.item_or(f32::NAN)?;
            steps += 1;
            if !device.is_dry() {
                if !loss.is_finite() && !args.allow_nan {
                    bail!("the loss is {loss} at step {steps}, epoch {}; --allow-nan goes on", epoch + 1);
                }
                final_loss = Some(loss);
            }
            progress.step(final_loss)?;
        }
        test_accuracy = model::accuracy(&network, &test, args.batch_size, &device)?;
        progress.show_accuracy(test_accuracy);
    }
    drop(progress);

    let summary = match test_accuracy {
        Some(share) => {
            format!("{:.1} % of {} unseen images read right after {steps} steps", share * 100.0, test.rows())
        }
        None => format!("{steps} steps, nothing computed"),
    };
    let results = json!({ "test_accuracy": test_accuracy, "final_loss": final_loss, "steps": steps });
    session.finish(&summary, results)
}
