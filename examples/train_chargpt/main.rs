//! Trains a small GPT on the characters of a text, and generates text.
//!
//! cargo run --release --example train_chargpt -- --help

mod model;
mod sources;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::train::{Every, FitOptions, Options, Outcome, Run, SaveOptions, Trainer};
use serde_json::json;

use model::CharGpt;

/// The most bytes of text to read.
const LONGEST: u64 = 64 << 20;

/// The fraction of the text, at its end, held out for testing.
const TEST_FRACTION: f64 = 0.1;

/// The checkpoint key of the characters.
const ALPHABET: &str = "alphabet";

/// The characters of the tokens; none for bytes.
fn alphabet(text: &Text) -> String {
    text.alphabet().unwrap_or_default()
}

/// The kind of token.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Tokens {
    Characters,
    Bytes,
}

/// Train a small GPT on the characters of a text, and generate text.
#[derive(Debug, Parser)]
struct Args {
    /// The text, UTF-8, or any file with --tokens bytes [default: the sources of this workspace]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// The tokens: characters of the text, or bytes of any file
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

    /// The context length, in characters
    #[arg(long, value_name = "N", default_value_t = 64)]
    context: usize,

    /// The number of transformer blocks
    #[arg(long, value_name = "N", default_value_t = 4)]
    layers: usize,

    /// The model's width
    #[arg(long, value_name = "N", default_value_t = 128)]
    width: usize,

    /// The number of attention heads
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,

    /// The peak learning rate: it rises to this and then falls to a tenth
    #[arg(long, value_name = "RATE", default_value_t = 0.001)]
    learning_rate: f64,

    /// Measure the test loss every N steps, and at the end
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: u64,

    /// Characters to generate at the end
    #[arg(long, value_name = "N", default_value_t = 200)]
    sample: usize,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().with_fit(&args.fit).run("train_chargpt", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let text = match (&args.text, args.tokens) {
        (Some(path), Tokens::Characters) => Text::read(path, LONGEST)?,
        (Some(path), Tokens::Bytes) => Text::read_bytes(path, LONGEST)?,
        (None, Tokens::Characters) => Text::new(&sources::all()?),
        (None, Tokens::Bytes) => Text::of_bytes(sources::all()?.as_bytes()),
    };
    let (train, test) = text.split(TEST_FRACTION)?;
    if let Some(checkpoint) = args.saves.saves(Every::Steps).load()? {
        // The same number of other characters would fit the shapes but map to wrong rows.
        let (learnt, given) = (checkpoint.note(ALPHABET), alphabet(&train));
        ensure!(
            learnt.is_none_or(|learnt| learnt == given),
            "--resume: that model has learnt other characters: give the text and --tokens it was trained with"
        );
    }
    let texts = (&train, &test);
    let plan = run.plan(args.batch_size, |device, plan, world| {
        let model = CharGpt::new(device, train.classes(), args, &Rng::new(run.seed()))?;
        train_on(texts, &model, (args, run), (plan, world)).map(drop)
    })?;
    let model = CharGpt::new(run.device(), train.classes(), args, &Rng::new(run.seed()))?;
    let outcome = train_on(texts, &model, (args, run), (&plan, run.world()))?;

    let test_loss = outcome.figures.get("validation_loss");
    let summary = match (test_loss, model.write(&train, args, run.seed())?) {
        (Some(loss), Some(sample)) => {
            format!("test loss {loss:.3} after {outcome}; generated text:\n\n{sample}")
        }
        _ => outcome.to_string(),
    };
    let results = json!({
        "test_loss": test_loss,
        "final_loss": outcome.loss,
        "steps": outcome.steps,
        "parameters": model.parameter_count(),
    });
    Ok(run.finish(&summary, results)?)
}

/// Trains a model with any plan.
fn train_on(
    (train, test): (&Text, &Text),
    model: &CharGpt,
    (args, run): (&Args, &Run),
    (plan, world): (&Plan, &World),
) -> highwater::Result<Outcome> {
    let (device, seed) = (model.device(), run.seed());
    let mut optimizer =
        run.parallel_in(world, plan.shard, model.parameters(), |own| AdamW::new(own, args.learning_rate))?;
    // Rises over the first twentieth of the steps, then falls to a tenth.
    let (start, warm) = (args.learning_rate, (args.steps / 20).max(1));
    let rate = Schedule::Cosine { start, end: 0.1 * start, steps: args.steps.saturating_sub(warm) }
        .after_warm_up(warm);
    Trainer::new(model, &mut optimizer)
        .schedule(rate)
        .evaluate(|| model.mean_loss(test, args, seed))
        .evaluate_every(Every::Steps(args.validate_every))
        .saves(args.saves.saves(Every::Steps))
        .note(ALPHABET, &alphabet(train))
        .world(world)
        .plan(plan)
        .output(run.output_of(plan))
        .train_steps(
            args.stop_at.unwrap_or(args.steps).min(args.steps),
            |step| train.windows(&device, plan.micro_batch, args.context, seed, step),
            |(x, y)| model.loss(x, y),
        )
}
