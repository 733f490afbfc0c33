//! Trains a small network on handwritten digits and reports where every byte went.
//!
//! cargo run --release --example train_digits -- --help

#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod training;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use harness::Session;
use highwater::prelude::*;
use serde_json::json;

use training::{Diverged, Outcome, Training};

/// The fraction of images held out for testing.
const TEST_FRACTION: f64 = 0.2;

/// The brightness of a white pixel in the data.
const WHITE: f32 = 16.0;

/// Train a small network on handwritten digits, and report where every byte went.
#[derive(Debug, Parser)]
struct Args {
    /// The network
    #[arg(long, value_enum, default_value_t = model::Network::Mlp)]
    network: model::Network,

    /// Passes over the training images
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    /// The element type of parameters and activations; computations use f32
    #[arg(long, value_enum, default_value_t = model::Numbers::F32)]
    dtype: model::Numbers,

    /// Images per step
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: usize,

    /// The learning rate at the start; it falls to zero by the end
    #[arg(long, value_name = "RATE", default_value_t = 0.005)]
    learning_rate: f64,

    /// The images: a CSV file, plain or compressed, whose last column is the digit
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz"))]
    data: PathBuf,

    /// Stop after this epoch, as if interrupted: the learning rate is that of all epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_after: Option<u64>,

    /// Find the largest batch that trains in a pool of this many MiB, by dry runs
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30), conflicts_with = "pool")]
    fit_batch: Option<u64>,

    /// Find the smallest pool that trains, by dry runs
    #[arg(long, conflicts_with_all = ["pool", "fit_batch"])]
    find_pool: bool,

    /// Continue if the loss becomes NaN or infinite
    #[arg(long)]
    allow_nan: bool,

    #[command(flatten)]
    saves: harness::Saves,
}

fn main() -> ExitCode {
    harness::main("train_digits", run)
}

fn run(args: &Args, session: &Session) -> anyhow::Result<()> {
    let images = read_csv(&args.data, &CsvOptions::default())?.scaled(1.0 / WHITE);
    let too_few = || format!("{}: too few images for a test set", args.data.display());
    let (train, test) = images.split(TEST_FRACTION, session.seed).with_context(too_few)?;
    let training = Training { args, session, train, test };
    match args.fit_batch {
        Some(mib) => fit(&training, Bytes::mib(mib)),
        None if args.find_pool => find_pool(&training),
        None => train_once(&training),
    }
}

fn train_once(training: &Training<'_>) -> anyhow::Result<()> {
    let (args, session) = (training.args, training.session);
    let steps = args.epochs.saturating_mul(training.steps_per_epoch(args.batch_size, &session.device)?);
    let mut progress = session.progress(steps);
    let outcome = training.run(&session.device, args.batch_size, args.epochs, &mut progress)?;
    let (steps, final_loss) = (progress.steps(), progress.loss());
    drop(progress);
    let Outcome { test_accuracy, diverged } = outcome;
    if let Some(Diverged { loss, epoch }) = diverged {
        bail!("the loss is {loss} at step {steps}, epoch {epoch}; use --allow-nan to continue");
    }
    let summary = match test_accuracy {
        Some(share) => {
            let unseen = training.test.rows();
            format!("{:.1} % of {unseen} test images classified correctly after {steps} steps", share * 100.0)
        }
        None => format!("{steps} steps, dry run"),
    };
    let results = json!({ "test_accuracy": test_accuracy, "final_loss": final_loss, "steps": steps });
    session.finish(&summary, results)
}

/// Prints the largest batch that trains in a pool of this size, found by dry runs.
fn fit(training: &Training<'_>, memory: Bytes) -> anyhow::Result<()> {
    let found = training.largest_batch(training.session.dry_run_options().limit(memory))?;
    let failure = found.failure.as_ref().map(|failure| failure.number);
    let results =
        json!({ "fit_batch_bytes": memory.get(), "largest_batch": found.largest, "refused_batch": failure });
    let summary = format!("in {memory}, by {} dry runs, of batches\n{found}", found.runs);
    match &found.run {
        Some(run) => training.session.finish_dry(&summary, run, results),
        None => bail!("{summary}"),
    }
}

/// Prints the smallest pool in which the network trains, found by dry runs.
fn find_pool(training: &Training<'_>) -> anyhow::Result<()> {
    let found = training.smallest_pool(training.session.dry_run_options())?;
    let failure = found.failure.as_ref().map(|failure| failure.number);
    let results = json!({ "smallest_pool_bytes": found.smallest.get(), "refused_pool_bytes": failure });
    training.session.finish_dry(&format!("by {} dry runs\n{found}", found.runs), &found.run, results)
}
