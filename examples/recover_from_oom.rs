//! Training that goes on after memory ran out: catch the error, make the batch smaller, continue.
//!
//! cargo run --release --example recover_from_oom

#[path = "harness/mod.rs"]
mod harness;

use std::process::ExitCode;

use clap::Parser;
use harness::Session;
use highwater::Result;
use highwater::prelude::*;
use highwater::tracking::Budget;
use serde_json::json;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz");

/// What the run may take unless --pool says otherwise.
const BUDGET: Bytes = Bytes::mib(2);

/// Train with too large a batch for the memory there is, and go on with a smaller one.
#[derive(Debug, Parser)]
struct Args {
    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Images per step, to begin with
    #[arg(long, value_name = "N", default_value_t = 1024)]
    batch_size: usize,
}

fn main() -> ExitCode {
    harness::main("recover_from_oom", run)
}

fn run(args: &Args, session: &Session) -> anyhow::Result<()> {
    let (device, seed) = (session.device.clone(), session.seed);
    // A budget on the outermost module is a budget on everything.
    let _budget = session.pool().is_none().then(|| Budget::new("", BUDGET));
    let images = read_csv(DIGITS, &CsvOptions::default())?.scaled(1.0 / 16.0);
    let rng = Rng::new(seed);
    let network = Sequential::new()
        .with("fc1", Linear::new(&device, 64, 256, &rng)?)
        .with("relu", Relu)
        .with("fc2", Linear::new(&device, 256, 10, &rng)?);
    let mut optimizer = AdamW::new(network.parameters(), 0.01)?;

    let (mut batch_size, mut steps, mut failures, mut loss) = (args.batch_size, 0, 0, None);
    while steps < args.steps {
        let error = match step(&device, &network, &mut optimizer, &images, batch_size, (seed, steps)) {
            Ok(value) => {
                loss = value;
                steps += 1;
                continue;
            }
            Err(error) => error,
        };
        // Whatever the step took was given back on its way out, and the parameters are as they were.
        let Some(report) = error.out_of_memory() else { return Err(error.into()) };
        // The estimate is by sums, and knows neither how blocks lie nor what comes later in the step.
        let estimate = report.largest_batch(batch_size as u64).map_or(0, |fits| fits as usize);
        let smaller = estimate.min(batch_size * 3 / 4);
        eprintln!("at step {steps}, batch size {batch_size}: {report}; going on with {smaller}");
        if smaller == 0 {
            return Err(error.into());
        }
        (batch_size, failures) = (smaller, failures + 1);
    }

    let loss_text = loss.map_or_else(|| "nothing computed".to_owned(), |loss| format!("loss {loss:.3}"));
    let summary =
        format!("{steps} steps, {loss_text}; {failures} times out of memory, batch size {batch_size}");
    session.finish(&summary, json!({ "steps": steps, "failures": failures, "batch_size": batch_size }))
}

/// One step on a random batch; the loss, where there are values.
fn step(
    device: &Device,
    network: &Sequential,
    optimizer: &mut AdamW,
    images: &Dataset,
    batch_size: usize,
    (seed, step): (u64, u64),
) -> Result<Option<f32>> {
    let Some(batch) = images.batches(batch_size, device)?.shuffled(seed, step).next() else {
        return Ok(None);
    };
    let (x, y) = batch?;
    let loss = network.forward(&x)?.cross_entropy(&y)?;
    optimizer.step(loss.backward()?)?;
    if device.is_dry() { Ok(None) } else { loss.item().map(Some) }
}
