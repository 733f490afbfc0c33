//! Trains a small network on handwritten digits and reports where every byte went.
//!
//! cargo run --release --example train_digits -- --help

mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::smallest_pool;
use highwater::train::{Ended, Every, FitOptions, Options, Outcome, Run, SaveOptions, Trainer};
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

    /// Find the smallest pool that trains, by dry runs
    #[arg(long, conflicts_with_all = ["pool", "fit"])]
    find_pool: bool,

    /// Continue if the loss becomes NaN or infinite
    #[arg(long)]
    allow_nan: bool,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().with_fit(&args.fit).run("train_digits", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let images = read_csv(&args.data, &CsvOptions::default())?.scaled(1.0 / WHITE);
    let too_few = || format!("{}: too few images for a test set", args.data.display());
    let (train, test) = images.split(TEST_FRACTION, run.seed()).with_context(too_few)?;
    let training = Training { args, run, train, test };
    if args.find_pool { training.find_pool() } else { training.train_once() }
}

/// The data and the options of a training run.
struct Training<'a> {
    args: &'a Args,
    run: &'a Run,
    train: ArrayDataset,
    test: ArrayDataset,
}

impl Training<'_> {
    /// Trains a new network with any plan on any device.
    fn run(&self, device: &Device, plan: &Plan, world: &World, epochs: u64) -> highwater::Result<Outcome> {
        let (args, seed, numbers, run) = (self.args, self.run.seed(), self.args.dtype, self.run);
        let batch_size = plan.micro_batch;
        let network = model::network(args.network, device, &Rng::new(seed))?;
        network.convert(numbers.dtype())?;
        let mut optimizer = run.parallel_in(world, plan.shard, network.parameters(), |own| {
            AdamW::new(own, args.learning_rate)
        })?;
        Trainer::new(&network, &mut optimizer)
            .epochs(args.stop_after.unwrap_or(epochs).min(epochs))
            .schedule_by(|at| args.learning_rate * (1.0 - at.epoch as f64 / epochs as f64))
            .scaler((numbers == model::Numbers::F16).then(LossScaler::dynamic))
            .allow_nan(args.allow_nan)
            .evaluate(|| model::accuracy(&network, numbers, &self.test, batch_size, device))
            .saves(args.saves.saves(Every::Epochs))
            .world(world)
            .plan(plan)
            .output(run.output_of(plan))
            .train(
                |epoch| Ok(self.train.batches(batch_size, device)?.shuffled(seed, epoch).sharded(world)),
                |(x, y)| model::loss(&network, &x.to_dtype(numbers.dtype())?, y),
            )
    }

    fn train_once(&self) -> anyhow::Result<()> {
        let (args, run) = (self.args, self.run);
        let dry = |device: &Device, plan: &Plan, world: &World| {
            self.run(device, plan, world, args.epochs).map(drop)
        };
        let plan = run.plan(args.batch_size, dry)?;
        let outcome = self.run(run.device(), &plan, run.world(), args.epochs)?;
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

    /// Prints the smallest pool in which the network trains, found by dry runs.
    fn find_pool(&self) -> anyhow::Result<()> {
        let (run, plan) = (self.run, self.run.whole_batch(self.args.batch_size));
        let epochs = self.args.epochs.min(DRY_EPOCHS);
        let dry = |device: &Device| self.run(device, &plan, run.world(), epochs).map(drop);
        let found = smallest_pool(run.dry_run_options(), dry)?;
        let failure = found.failure.as_ref().map(|failure| failure.number);
        let results = json!({ "smallest_pool_bytes": found.smallest.get(), "refused_pool_bytes": failure });
        Ok(run.finish_dry(&format!("by {} dry runs\n{found}", found.runs), &found.run, results)?)
    }
}
