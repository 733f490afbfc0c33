//! Continues training after running out of memory: catches the error, finds the largest batch that fits, and continues
//! with it. With several processes, all of them discard the step and continue with the batch that fits everywhere.
//!
//! cargo run --release --example recover_from_oom

use std::process::ExitCode;

use clap::Parser;
use highwater::distributed::{DataParallel, ParallelError, World};
use highwater::prelude::*;
use highwater::tracking::Budget;
use highwater::train::{Options, Run};
use highwater::{Result, largest_fit};
use serde_json::json;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz");

/// The pool limit without --pool.
const BUDGET: Bytes = Bytes::mib(2);

/// Train with a batch that is too large for the memory, and continue with a smaller one.
#[derive(Debug, Parser)]
struct Args {
    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Images per step at the start
    #[arg(long, value_name = "N", default_value_t = 1024)]
    batch_size: usize,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.run("recover_from_oom", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let (device, seed) = (run.device().clone(), run.seed());
    // A budget on the outermost module covers everything.
    let _budget = run.pool().is_none().then(|| Budget::new("", BUDGET));
    let images = read_csv(DIGITS, &CsvOptions::default())?.scaled(1.0 / 16.0);
    let network = network(&device, seed)?;
    let mut optimizer = optimizer(run.world(), run, &network)?;

    let (mut batch_size, mut steps, mut failures, mut loss) = (args.batch_size, 0, 0, None);
    while steps < args.steps {
        // All ranks complete the step, or all discard it.
        let result = optimizer
            .attempt(|optimizer| step(&device, &network, optimizer, &images, batch_size, (seed, steps)));
        let error = match result {
            Ok(value) => {
                loss = value;
                steps += 1;
                continue;
            }
            Err(error) => error,
        };
        // The failed step has freed all its memory, and the parameters are unchanged.
        if !ParallelError::is_out_of_memory(&error) {
            return Err(error.into());
        }
        let smaller = largest_batch(run, &images, batch_size.saturating_sub(1), seed)?;
        // One string, so that the lines of several ranks stay apart.
        let message =
            format!("at step {steps}, batch size {batch_size}: {error}; continuing with {smaller}\n");
        eprint!("{message}");
        if smaller == 0 {
            return Err(error.into());
        }
        // Regions sized for the larger batch may not suit the smaller one.
        device.empty_cache()?;
        (batch_size, failures) = (smaller, failures + 1);
    }

    let loss_text = loss.map_or_else(|| "dry run".to_owned(), |loss| format!("loss {loss:.3}"));
    let summary =
        format!("{steps} steps, {loss_text}; {failures} times out of memory, batch size {batch_size}");
    Ok(run.finish(&summary, json!({ "steps": steps, "failures": failures, "batch_size": batch_size }))?)
}

fn network(device: &Device, seed: u64) -> Result<Sequential> {
    let rng = Rng::new(seed);
    Ok(Sequential::new()
        .with("fc1", Linear::new(device, 64, 256, &rng)?)
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 256, 10, &rng)?))
}

/// The largest batch of at most `most` images that fits, found by dry runs; 0 if none does.
fn largest_batch(run: &Run, images: &ArrayDataset, most: usize, seed: u64) -> anyhow::Result<usize> {
    let mut options = run.dry_run_options();
    if let Some(limit) = run.pool() {
        options = options.limit(limit);
    }
    let rank = World::rehearsal(run.world().rank(), run.world().size())?;
    let found = largest_fit(options, 1..=most as u64, |device, batch_size| {
        let network = network(device, seed)?;
        let mut optimizer = optimizer(&rank, run, &network)?;
        // The second step includes the optimizer's state.
        for number in 0..2 {
            step(device, &network, &mut optimizer, images, batch_size as usize, (seed, number))?;
        }
        Ok(())
    })?;
    // Other ranks may have less memory.
    let all = run.world().all_gather_f64([found.largest.unwrap_or(0) as f64]).map_err(ParallelError::from)?;
    Ok(all.iter().fold(f64::INFINITY, |least, [batch]| least.min(*batch)) as usize)
}

fn optimizer(world: &World, run: &Run, network: &Sequential) -> Result<DataParallel<AdamW>> {
    run.parallel_in(world, run.shard(), network.parameters(), |own| AdamW::new(own, 0.01))
}

/// One step on a random batch; returns the loss if the device computes values.
fn step(
    device: &Device,
    network: &Sequential,
    optimizer: &mut DataParallel<AdamW>,
    images: &ArrayDataset,
    batch_size: usize,
    (seed, step): (u64, u64),
) -> Result<Option<f32>> {
    let mut batches = images.batches(batch_size, device)?.shuffled(seed, step).sharded(optimizer.world());
    let Some(batch) = batches.next() else {
        return Ok(None);
    };
    let (x, y) = batch?;
    let loss = network.forward(&x)?.cross_entropy(&y)?;
    optimizer.step(loss.backward()?)?;
    if device.is_dry() { Ok(None) } else { loss.item().map(Some) }
}
