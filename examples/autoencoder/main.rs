//! Trains an autoencoder on pictures of digits and draws the reconstructions.
//!
//! cargo run --release --example autoencoder -- --picture digits.png

#[path = "../train_mnist/idx.rs"]
mod idx;
mod model;
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::train::{Every, FitOptions, Options, Outcome, Run, SaveOptions, Trainer, output_path};
use picture::Drawing;
use serde_json::json;

/// The fraction of pictures held out for testing.
const TEST_FRACTION: f64 = 0.2;

/// The number of test pictures to draw.
const DRAWN: usize = 16;

/// The brightness of a white pixel in the digits, and in MNIST.
const WHITE: [f32; 2] = [16.0, 255.0];

/// Train an autoencoder on pictures of digits, and draw the reconstructions.
#[derive(Debug, Parser)]
struct Args {
    /// The pictures: a CSV file, plain or compressed, whose last column is the label
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz"))]
    data: PathBuf,

    /// Read pictures in MNIST's format from this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "data")]
    idx: Option<PathBuf>,

    /// Draw test pictures to this PNG file: the originals on top, then reconstructions before training and after 1, 2,
    /// 4, 8 epochs and so on
    #[arg(long, value_name = "FILE.png", value_parser = output_path())]
    picture: Option<PathBuf>,

    /// The size of the code
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    code: u16,

    /// The width of the hidden layers
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    hidden: u16,

    /// Passes over the training pictures
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    /// Stop after this epoch, as if interrupted: the learning rate is that of all epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_after: Option<u64>,

    /// Pictures per step
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: usize,

    /// The learning rate at the start; it falls to zero by the end
    #[arg(long, value_name = "RATE", default_value_t = 0.003)]
    learning_rate: f64,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().with_fit(&args.fit).run("autoencoder", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let (device, seed) = (run.device(), run.seed());
    let data = pictures(args)?;
    let (train, test) = data.split(TEST_FRACTION, seed).context("too few pictures for a test set")?;
    let sizes = [data.width(), args.hidden.into(), args.code.into()];
    let new_network = |device: &Device| model::autoencoder(device, sizes, &Rng::new(seed));
    let plan = run.plan(args.batch_size, |device, plan, world| {
        let looks = &mut Looks::new(args, &test)?;
        train_on(&new_network(device)?, (&train, &test), (args, run, looks), (device, plan, world)).map(drop)
    })?;
    let (network, mut looks) = (new_network(device)?, Looks::new(args, &test)?);
    let training = (args, run, &mut looks);
    let outcome = train_on(&network, (&train, &test), training, (device, &plan, run.world()))?;
    looks.finish(device)?;
    let validation_loss = outcome.figures.get("validation_loss");
    let summary = match validation_loss {
        Some(loss) => format!(
            "{} pixels to a code of {}: mean squared error {loss:.4} on {} test pictures after {outcome}",
            data.width(),
            args.code,
            test.rows()
        ),
        None => outcome.to_string(),
    };
    let results = json!({
        "validation_loss": validation_loss,
        "final_loss": outcome.loss,
        "steps": outcome.steps,
    });
    Ok(run.finish(&summary, results)?)
}

/// Trains a network with any plan on any device.
fn train_on(
    network: &Sequential,
    (train, test): (&ArrayDataset, &ArrayDataset),
    (args, run, looks): (&Args, &Run, &mut Looks<'_>),
    (device, plan, world): (&Device, &Plan, &World),
) -> highwater::Result<Outcome> {
    let (seed, size) = (run.seed(), plan.micro_batch);
    let mut optimizer =
        run.parallel_in(world, plan.shard, network.parameters(), |own| AdamW::new(own, args.learning_rate))?;
    let steps = args.epochs.saturating_mul(plan.steps_of_epoch(train.rows()));
    let mut first = None;
    let outcome = Trainer::new(network, &mut optimizer)
        .epochs(args.stop_after.unwrap_or(args.epochs).min(args.epochs))
        .schedule(Schedule::Cosine { start: args.learning_rate, end: 0.0, steps })
        .evaluate(|| model::mean_loss(network, test, size, device))
        .saves(args.saves.saves(Every::Epochs))
        .world(world)
        .plan(plan)
        .output(run.output_of(plan))
        .train(
            |epoch| {
                if epoch == *first.get_or_insert(epoch) || epoch.is_power_of_two() {
                    looks.take(network, device)?;
                }
                Ok(train.batches(size, device)?.shuffled(seed, epoch).sharded(world))
            },
            |(x, _)| model::loss(network, x),
        )?;
    looks.take(network, device)?;
    Ok(outcome)
}

/// Square pictures, with pixels from 0 to 1.
fn pictures(args: &Args) -> anyhow::Result<ArrayDataset> {
    let data = match &args.idx {
        Some(folder) => idx::read(folder)?.scaled(1.0 / WHITE[1]),
        None => read_csv(&args.data, &CsvOptions::default())?.scaled(1.0 / WHITE[0]),
    };
    let side = data.width().isqrt();
    if side * side != data.width() || side == 0 {
        bail!("pictures of {} pixels are not square", data.width());
    }
    // The network reads rows of pixels.
    let width = data.width();
    Ok(data.with_shape(width)?)
}

/// Collects reconstructions of test pictures for `--picture`.
struct Looks<'a> {
    path: Option<&'a PathBuf>,
    originals: ArrayDataset,
    drawing: Drawing,
}

impl<'a> Looks<'a> {
    fn new(args: &'a Args, test: &ArrayDataset) -> highwater::Result<Self> {
        let count = test.rows().min(DRAWN);
        let features = test.features()[..count * test.width()].to_vec();
        let drawing = Drawing::new(test.width().isqrt(), &features);
        let originals = ArrayDataset::new(features, Vec::new(), test.width())?;
        Ok(Self { path: args.picture.as_ref(), originals, drawing })
    }

    fn take(&mut self, network: &Sequential, device: &Device) -> highwater::Result<()> {
        if self.path.is_none() {
            return Ok(());
        }
        let _scope = module("picture");
        for batch in self.originals.batches(DRAWN, device)? {
            let (x, _) = batch?;
            let back = no_grad(|| network.forward(&x)?.to_dtype(DType::F32))?;
            if !device.is_dry() {
                self.drawing.add(back.to_vec::<f32>()?);
            }
        }
        Ok(())
    }

    fn finish(&self, device: &Device) -> anyhow::Result<()> {
        match self.path.filter(|_| !device.is_dry()) {
            Some(path) => self.drawing.write(path),
            None => Ok(()),
        }
    }
}
