//! Trains a transformer that keeps nothing of a block for the backward pass but its input, and says what that saves.
//!
//! cargo run --release --example checkpointed_transformer -- --help

#[path = "../harness/mod.rs"]
mod harness;
mod model;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use harness::Session;
use highwater::io::{Checkpoint, SafetensorsLimits};
use highwater::prelude::*;
use highwater::{DryRun, Result};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;

use model::Transformer;

/// Train a transformer whose blocks run again in the backward pass instead of keeping their activations.
#[derive(Debug, Parser)]
struct Args {
    /// Keep all activations instead, as to compare
    #[arg(long)]
    plain: bool,

    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Sequences at a time
    #[arg(long, value_name = "N", default_value_t = 16)]
    batch_size: usize,

    /// Batches whose gradients are summed for each step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    parts: u64,

    /// Tokens that the model sees at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    context: usize,

    /// Blocks of attention and multilayer perceptron
    #[arg(long, value_name = "N", default_value_t = 8)]
    layers: usize,

    /// Numbers for each token
    #[arg(long, value_name = "N", default_value_t = 64)]
    width: usize,

    /// Heads of attention, which share the width
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,

    /// The learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.003)]
    learning_rate: f64,

    /// Write parameters and the optimiser's state to this file at the end
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Go on from a file written by --save, with checkpoints or without
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,

    #[command(flatten)]
    options: harness::Options,
}

impl AsRef<harness::Options> for Args {
    fn as_ref(&self) -> &harness::Options {
        &self.options
    }
}

fn main() -> ExitCode {
    harness::main("checkpointed_transformer", run)
}

fn run(args: &Args, session: Session) -> anyhow::Result<()> {
    // What both ways take, to the byte, before anything is computed.
    let [with, without] = [true, false].map(|checkpointed| dry_run(args, checkpointed));
    let (with, without) = (with?, without?);

    let device = session.device.clone();
    let model = Transformer::new(&device, args, !args.plain)?;
    let style = ProgressStyle::with_template("{bar:20.cyan/dim} {percent:>3} %  {per_sec}  {msg}")?;
    let bar = ProgressBar::new(args.steps).with_style(style).with_finish(ProgressFinish::Abandon);
    let mut optimizer = AdamW::new(model.parameters(), args.learning_rate)?;
    let mut first = 0;
    if let Some(path) = &args.resume {
        let checkpoint = Checkpoint::load(path, &SafetensorsLimits::default())?;
        checkpoint.restore_all(&model, &mut optimizer)?;
        first = checkpoint.step().unwrap_or(0);
    }
    bar.set_position(first);
    let started = Instant::now();
    let loss = model.train(&mut optimizer, args, first..args.steps, |step, loss| {
        let figures = json!({ "loss": loss, "learning_rate": args.learning_rate });
        session.metrics.step(step, &device, figures)?;
        bar.inc(1);
        if let Some(loss) = loss {
            bar.set_message(format!("loss {loss:.3}"));
        }
        Ok(())
    })?;
    drop(bar);
    let milliseconds = started.elapsed().as_secs_f64() * 1e3 / args.steps.saturating_sub(first).max(1) as f64;
    if let Some(path) = args.save.as_ref().filter(|_| !device.is_dry()) {
        let checkpoint = Checkpoint::of(&model)?.with_optimizer(&optimizer)?.with_step(args.steps.max(first));
        checkpoint.save(path).with_context(|| path.display().to_string())?;
    }

    let peaks = [&with, &without].map(|run| run.peak.in_use);
    let now = if args.plain { "all activations kept" } else { "checkpointed" };
    let outcome = match loss {
        Some(loss) => {
            format!("{now}, a loss of {loss:.4} after {} steps of {milliseconds:.1} ms", args.steps)
        }
        None => format!("{now}, {} steps, nothing computed", args.steps),
    };
    let summary = format!(
        "{outcome}\npeak with checkpoints {}, without {}: {:.1} times as much",
        Bytes(peaks[0]),
        Bytes(peaks[1]),
        peaks[1] as f64 / peaks[0] as f64,
    );
    let results = json!({
        "final_loss": loss,
        "steps": args.steps,
        "parameters": model.parameter_count(),
        "checkpointed": !args.plain,
        "predicted_peak_checkpointed": peaks[0],
        "predicted_peak_plain": peaks[1],
    });
    session.finish(&summary, results)
}

/// What training takes on this machine, with checkpoints or without, computing nothing. All steps are alike.
fn dry_run(args: &Args, checkpointed: bool) -> Result<DryRun<()>> {
    args.options.dry_run_options().run(|device| {
        let model = Transformer::new(device, args, checkpointed)?;
        let mut optimizer = AdamW::new(model.parameters(), args.learning_rate)?;
        model.train(&mut optimizer, args, 0..2, |_, _| Ok(())).map(drop)
    })
}
