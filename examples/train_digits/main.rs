//! Trains a small network on handwritten digits and reports where every byte went.
//!
//! cargo run --release --example train_digits -- --help

mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use highwater::prelude::*;
use highwater::train::{Ended, Every, Options, Outcome, Output, Run, SaveOptions, Trainer};
use highwater::{largest_fit, smallest_pool};
use serde_json::json;

/// The fraction of images held out for testing.
const TEST_FRACTION: f64 = 0.2;

/// The brightness of a white pixel in the data.
const WHITE: f32 = 16.0;

/// The epochs of a dry run: later ones repeat the second.
const DRY_EPOCHS: u64 = 2;

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
    saves: SaveOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.run("train_digits", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let images = read_csv(&args.data, &CsvOptions::default())?.scaled(1.0 / WHITE);
    let too_few = || format!("{}: too few images for a test set", args.data.display());
    let (train, test) = images.split(TEST_FRACTION, run.seed()).with_context(too_few)?;
    let training = Training { args, run, train, test };
    match args.fit_batch {
        Some(mib) => training.fit_batch(Bytes::mib(mib)),
        None if args.find_pool => training.find_pool(),
        None => training.train_once(),
    }
}

/// The data and the options of a training run.
struct Training<'a> {
    args: &'a Args,
    run: &'a Run,
    train: ArrayDataset,
    test: ArrayDataset,
}

impl Training<'_> {
    /// Trains a new network with any batch size on any device.
    fn run(
        &self,
        device: &Device,
        batch_size: usize,
        epochs: u64,
        output: Output<'_>,
    ) -> highwater::Result<Outcome> {
        let (args, seed, numbers, run) = (self.args, self.run.seed(), self.args.dtype, self.run);
        let network = model::network(args.network, device, &Rng::new(seed))?;
        network.convert(numbers.dtype())?;
        let mut optimizer = run.parallel(network.parameters(), |own| AdamW::new(own, args.learning_rate))?;
        Trainer::new(&network, &mut optimizer)
            .epochs(args.stop_after.unwrap_or(epochs).min(epochs))
            .schedule_by(|at| args.learning_rate * (1.0 - at.epoch as f64 / epochs as f64))
            .scaler((numbers == model::Numbers::F16).then(LossScaler::dynamic))
            .allow_nan(args.allow_nan)
            .evaluate(|| model::accuracy(&network, numbers, &self.test, batch_size, device))
            .saves(args.saves.saves(Every::Epochs))
            .world(run.world())
            .accumulate(run.accumulate())
            .output(output)
            .fit(
                |epoch| {
                    Ok(self.train.batches(batch_size, device)?.shuffled(seed, epoch).sharded(run.world()))
                },
                |(x, y)| model::loss(&network, &x.to_dtype(numbers.dtype())?, y),
            )
    }

    /// A dry run of the epochs that differ.
    fn dry(&self, device: &Device, batch_size: usize) -> highwater::Result<()> {
        self.run(device, batch_size, self.args.epochs.min(DRY_EPOCHS), Output::default()).map(drop)
    }

    fn train_once(&self) -> anyhow::Result<()> {
        let (args, run) = (self.args, self.run);
        let outcome = self.run(run.device(), args.batch_size, args.epochs, run.output())?;
        if let Ended::Diverged { .. } = outcome.ended {
            bail!("{}; use --allow-nan to continue", outcome.ended);
        }
        let (steps, unseen) = (outcome.steps, self.test.rows());
        let accuracy = outcome.figures.get("test_accuracy");
        let summary = match accuracy {
            Some(share) => {
                format!("{:.1} % of {unseen} test images classified correctly after {outcome}", share * 100.0)
            }
            None => outcome.to_string(),
        };
        let results = json!({ "test_accuracy": accuracy, "final_loss": outcome.loss, "steps": steps });
        Ok(run.finish(&summary, results)?)
    }

    /// Prints the largest batch that trains in a pool of this size, found by dry runs.
    fn fit_batch(&self, memory: Bytes) -> anyhow::Result<()> {
        let run = self.run;
        let options = run.dry_run_options().limit(memory);
        let images = self.train.rows() as u64;
        let found =
            largest_fit(options, 1..=images, |device, batch_size| self.dry(device, batch_size as usize))?;
        let failure = found.failure.as_ref().map(|failure| failure.number);
        let results = json!({
            "fit_batch_bytes": memory.get(),
            "largest_batch": found.largest,
            "refused_batch": failure,
        });
        let summary = format!("in {memory}, by {} dry runs, of batches\n{found}", found.runs);
        match &found.run {
            Some(dry) => Ok(run.finish_dry(&summary, dry, results)?),
            None => bail!("{summary}"),
        }
    }

    /// Prints the smallest pool in which the network trains, found by dry runs.
    fn find_pool(&self) -> anyhow::Result<()> {
        let run = self.run;
        let found = smallest_pool(run.dry_run_options(), |device| self.dry(device, self.args.batch_size))?;
        let failure = found.failure.as_ref().map(|failure| failure.number);
        let results = json!({ "smallest_pool_bytes": found.smallest.get(), "refused_pool_bytes": failure });
        Ok(run.finish_dry(&format!("by {} dry runs\n{found}", found.runs), &found.run, results)?)
    }
}
