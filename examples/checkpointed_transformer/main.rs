//! Trains a transformer with gradient checkpointing: each block keeps only its input, and runs again in the backward
//! pass.
//!
//! cargo run --release --example checkpointed_transformer -- --help

mod model;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use highwater::DryRun;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::nn::recompute::{Recomputation, Recompute};
use highwater::prelude::*;
use highwater::train::{Every, FitOptions, Options, Output, Run, SaveOptions, Saves};
use serde_json::json;

use model::Transformer;

/// Train a transformer whose blocks run again in the backward pass instead of keeping their activations.
#[derive(Debug, Parser)]
struct Args {
    /// Keep all activations, for comparison
    #[arg(long)]
    plain: bool,

    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Sequences per batch
    #[arg(long, value_name = "N", default_value_t = 16)]
    batch_size: usize,

    /// The context length, in tokens
    #[arg(long, value_name = "N", default_value_t = 64)]
    context: usize,

    /// The number of transformer blocks
    #[arg(long, value_name = "N", default_value_t = 8)]
    layers: usize,

    /// The model's width
    #[arg(long, value_name = "N", default_value_t = 64)]
    width: usize,

    /// The number of attention heads
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,

    /// The learning rate
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
    args.options.clone().with_fit(&args.fit).run("checkpointed_transformer", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let mut plan = run.plan(args.batch_size, |device, plan, world| {
        let model = Transformer::new(device, args, run.seed())?;
        model.train(args, (run, world), plan, args.steps, (Saves::default(), Output::default())).map(drop)
    })?;
    // Predicts the memory with and without recomputation before computing anything.
    let mut variant = plan.clone();
    let [with, without] = [0..args.layers, 0..0].map(|blocks| {
        variant.recompute = Recompute::new().with("blocks", Recomputation::of_blocks(args.layers, blocks));
        dry_run(args, run, &variant)
    });
    let (with, without) = (with?, without?);
    if !args.fit.is_given() && !args.plain {
        plan.recompute =
            Recompute::new().with("blocks", Recomputation::of_blocks(args.layers, 0..args.layers));
    }

    let model = Transformer::new(run.device(), args, run.seed())?;
    let started = Instant::now();
    let outcome = model.train(
        args,
        (run, run.world()),
        &plan,
        args.steps,
        (args.saves.saves(Every::Steps), run.output()),
    )?;
    let steps = (outcome.steps - outcome.first_step).max(1) as f64;
    let milliseconds = started.elapsed().as_secs_f64() * 1e3 / steps;

    let peaks = [&with, &without].map(|run| run.peak.in_use);
    let now = if plan.recompute.is_plain() { "all activations kept" } else { "checkpointed" };
    let result = match outcome.loss {
        Some(loss) => format!("{now}, loss {loss:.4} after {outcome} of {milliseconds:.1} ms"),
        None => format!("{now}, {outcome}"),
    };
    let summary = format!(
        "{result}\npeak with checkpoints {}, without {}: {:.1} times as much",
        Bytes(peaks[0]),
        Bytes(peaks[1]),
        peaks[1] as f64 / peaks[0] as f64,
    );
    let results = json!({
        "final_loss": outcome.loss,
        "steps": outcome.steps,
        "parameters": model.parameter_count(),
        "checkpointed": !plan.recompute.is_plain(),
        "predicted_peak_checkpointed": peaks[0],
        "predicted_peak_plain": peaks[1],
    });
    Ok(run.finish(&summary, results)?)
}

/// The memory of training on this machine with a plan, from a dry run. All steps are alike.
fn dry_run(args: &Args, run: &Run, plan: &Plan) -> anyhow::Result<DryRun<()>> {
    let rank = World::rehearsal(run.world().rank(), run.world().size())?;
    Ok(run.dry_run_options().run(|device| {
        Transformer::new(device, args, run.seed())?
            .train(args, (run, &rank), plan, 2, (Saves::default(), Output::default()))
            .map(drop)
    })?)
}
