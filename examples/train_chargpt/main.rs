//! Trains a small GPT on characters of any text, and lets it write.
//!
//! cargo run --release --example train_chargpt -- --help

#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod sources;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use harness::Session;
use highwater::data::Text;
use highwater::io::{Checkpoint, SafetensorsLimits};
use highwater::optim::AdamW;
use highwater::prelude::*;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;

use model::CharGpt;

/// The most text that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// The share of the text, at its end, that the model never sees in training.
const TEST_FRACTION: f64 = 0.1;

/// What a token is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Tokens {
    Characters,
    Bytes,
}

/// Train a small GPT on the characters of a text, and let it write.
#[derive(Debug, Parser)]
struct Args {
    /// The text, UTF-8, or any file with --tokens bytes [default: the sources of this workspace]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// What the model reads and writes one by one: the characters of the text, or bytes of anything
    #[arg(long, value_enum, default_value_t = Tokens::Characters)]
    tokens: Tokens,

    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Stop after this step, as if interrupted: the learning rate is that of all steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_at: Option<u64>,

    /// Sequences per step
    #[arg(long, value_name = "N", default_value_t = 16)]
    batch_size: usize,

    /// Characters that the model sees at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    context: usize,

    /// Blocks of attention and multilayer perceptron
    #[arg(long, value_name = "N", default_value_t = 4)]
    layers: usize,

    /// Numbers for each character
    #[arg(long, value_name = "N", default_value_t = 128)]
    width: usize,

    /// Heads of attention, which share the width
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,

    /// The highest learning rate: it rises to this at first and falls to a tenth by the end
    #[arg(long, value_name = "RATE", default_value_t = 0.001)]
    learning_rate: f64,

    /// Characters to write at the end
    #[arg(long, value_name = "N", default_value_t = 200)]
    sample: usize,

    /// Write parameters and the optimiser's state to this file at the end
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Go on from a file written by --save
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
    harness::main("train_chargpt", run)
}

fn run(args: &Args, session: Session) -> anyhow::Result<()> {
    let (device, seed) = (session.device.clone(), args.options.seed);
    let text = match (&args.text, args.tokens) {
        (Some(path), Tokens::Characters) => Text::read(path, LONGEST)?,
        (Some(path), Tokens::Bytes) => Text::read_bytes(path, LONGEST)?,
        (None, Tokens::Characters) => Text::new(&sources::all()?),
        (None, Tokens::Bytes) => Text::of_bytes(sources::all()?.as_bytes()),
    };
    let (train, test) = text.split(TEST_FRACTION)?;
    let model = CharGpt::new(&device, train.classes(), args, &Rng::new(seed))?;
    let mut optimizer = AdamW::new(model.parameters(), args.learning_rate)?;
    let mut first = 0;
    if let Some(path) = &args.resume {
        let checkpoint = Checkpoint::load(path, &SafetensorsLimits::default())?;
        checkpoint.restore_all(&model, &mut optimizer)?;
        first = checkpoint.step().unwrap_or(0);
    }

    let end = args.stop_at.unwrap_or(args.steps).min(args.steps);
    let style = ProgressStyle::with_template("{bar:20.cyan/dim} {percent:>3} %  {per_sec}  {msg}")?;
    let bar = ProgressBar::new(args.steps).with_style(style).with_finish(ProgressFinish::Abandon);
    bar.set_position(first);
    let mut last_loss = None;
    for step in first..end {
        optimizer.set_learning_rate(rate(args, step))?;
        let (x, y) = train.windows(&device, args.batch_size, args.context, seed, step)?;
        let loss = model.loss(&x, &y)?;
        optimizer.step(loss.backward()?)?;
        if !device.is_dry() {
            last_loss = Some(loss.item::<f32>()?);
            bar.set_message(format!("loss {:.3}", last_loss.unwrap_or(f32::NAN)));
        }
        let figures = json!({ "loss": last_loss, "learning_rate": optimizer.learning_rate() });
        session.metrics.step(step, &device, figures)?;
        bar.inc(1);
    }
    drop(bar);
    if let Some(path) = args.save.as_ref().filter(|_| !device.is_dry()) {
        let checkpoint = Checkpoint::of(&model)?.with_optimizer(&optimizer)?.with_step(end);
        checkpoint.save(path).with_context(|| path.display().to_string())?;
    }

    let test_loss = model.mean_loss(&test, args, seed)?;
    let summary = match (test_loss, model.write(&train, args, seed)?) {
        (Some(loss), Some(sample)) => {
            format!("a loss of {loss:.3} on unseen text after {end} steps; it writes:\n\n{sample}")
        }
        _ => format!("{end} steps, nothing computed"),
    };
    let results = json!({
        "test_loss": test_loss,
        "final_loss": last_loss,
        "steps": end,
        "parameters": model.parameter_count(),
    });
    session.finish(&summary, results)
}

/// Up over the first twentieth of the steps, then down by a half cosine to a tenth.
fn rate(args: &Args, step: u64) -> f64 {
    let warm = (args.steps / 20).max(1);
    if step < warm {
        return args.learning_rate * (step + 1) as f64 / warm as f64;
    }
    let done = (step - warm) as f64 / (args.steps - warm).max(1) as f64;
    args.learning_rate * (0.1 + 0.45 * (1.0 + (done * std::f64::consts::PI).cos()))
}
