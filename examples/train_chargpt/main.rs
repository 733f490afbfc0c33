//! Trains a small GPT on characters of any text, and lets it write.
//!
//! cargo run --release --example train_chargpt -- --help

#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod sources;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;
use harness::{Session, number};
use highwater::prelude::*;
use serde_json::json;

use model::CharGpt;

/// The most text that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// The share of the text, at its end, that the model never sees in training.
const TEST_FRACTION: f64 = 0.1;

/// Under which name it is kept what the tokens stand for.
const ALPHABET: &str = "alphabet";

/// What the tokens stand for; bytes have no characters.
fn alphabet(text: &Text) -> String {
    text.alphabet().unwrap_or_default()
}

/// Keeps what was learnt in so many steps, and of which characters, where that was asked for.
fn save(
    args: &Args,
    device: &Device,
    model: &CharGpt,
    optimizer: &AdamW,
    text: &Text,
    steps: u64,
) -> anyhow::Result<()> {
    let Some(path) = args.saves.end(device) else { return Ok(()) };
    let checkpoint = Checkpoint::of(model)?.with_optimizer(optimizer)?.with_step(steps);
    Ok(checkpoint.with_note(ALPHABET, &alphabet(text)).save(path)?)
}

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

    /// Measure the loss on unseen text every so many steps, and at the end
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: u64,

    /// Characters to write at the end
    #[arg(long, value_name = "N", default_value_t = 200)]
    sample: usize,

    #[command(flatten)]
    saves: harness::Saves,
}

fn main() -> ExitCode {
    harness::main("train_chargpt", run)
}

fn run(args: &Args, session: &Session) -> anyhow::Result<()> {
    let (device, seed) = (&session.device, session.seed);
    let text = match (&args.text, args.tokens) {
        (Some(path), Tokens::Characters) => Text::read(path, LONGEST)?,
        (Some(path), Tokens::Bytes) => Text::read_bytes(path, LONGEST)?,
        (None, Tokens::Characters) => Text::new(&sources::all()?),
        (None, Tokens::Bytes) => Text::of_bytes(sources::all()?.as_bytes()),
    };
    let (train, test) = text.split(TEST_FRACTION)?;
    let model = CharGpt::new(device, train.classes(), args, &Rng::new(seed))?;
    let mut optimizer = AdamW::new(model.parameters(), args.learning_rate)?;
    // Up over the first twentieth of the steps, then down to a tenth.
    let (start, warm) = (args.learning_rate, (args.steps / 20).max(1));
    let rate = Schedule::Cosine { start, end: 0.1 * start, steps: args.steps.saturating_sub(warm) }
        .after_warm_up(warm);
    let mut progress = session.progress(args.steps);
    if let Some(checkpoint) = args.saves.load()? {
        // As many other characters would do for the model, and stand for the wrong rows.
        let (learnt, given) = (checkpoint.note(ALPHABET), alphabet(&train));
        ensure!(
            learnt.is_none_or(|learnt| learnt == given),
            "--resume: that model has learnt other characters: give the text and --tokens it was trained with"
        );
        checkpoint.restore_all(&model, &mut optimizer)?;
        progress.resume(checkpoint.step().unwrap_or(0));
    }
    let (first, end) = (progress.steps(), args.stop_at.unwrap_or(args.steps).min(args.steps));
    // Of a model that has learnt all already.
    let mut test_loss = if first >= end { model.mean_loss(&test, args, seed)? } else { None };
    for step in first..end {
        optimizer.set_learning_rate(rate.learning_rate(step))?;
        let (x, y) = train.windows(device, args.batch_size, args.context, seed, step)?;
        let loss = progress.run(|| {
            let loss = model.loss(&x, &y)?;
            optimizer.step(loss.backward()?)?;
            Ok(loss)
        })?;
        let validates = (step + 1).is_multiple_of(args.validate_every) || step + 1 == end;
        let validation = if validates { model.mean_loss(&test, args, seed)? } else { None };
        if let Some(loss) = validation {
            test_loss = validation;
            progress.note(format!("on unseen text {loss:.4}"));
        }
        let rate = optimizer.learning_rate();
        progress.step(&loss, json!({ "validation_loss": validation.map(number), "learning_rate": rate }))?;
        if args.saves.is_due(step + 1) {
            save(args, device, &model, &optimizer, &train, step + 1)?;
        }
    }
    let (steps, last_loss) = (progress.steps(), progress.loss());
    drop(progress);
    save(args, device, &model, &optimizer, &train, steps)?;

    let summary = match (test_loss, model.write(&train, args, seed)?) {
        (Some(loss), Some(sample)) => {
            format!("a loss of {loss:.3} on unseen text after {steps} steps; it writes:\n\n{sample}")
        }
        _ => format!("{steps} steps, nothing computed"),
    };
    let results = json!({
        "test_loss": test_loss,
        "final_loss": last_loss,
        "steps": steps,
        "parameters": model.parameter_count(),
    });
    session.finish(&summary, results)
}
