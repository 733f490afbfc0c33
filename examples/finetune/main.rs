//! Fine-tunes a pretrained language model on a text, or on prompts with answers, with LoRA.
//!
//! cargo run --release --features text --example finetune -- --model SmolLM2-135M-Instruct.Q4_1.gguf --text data/shakespeare.txt

mod data;
mod model;
mod sample;
#[path = "../generate/terminal.rs"]
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;
use highwater::alloc::printable;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::models::{LanguageModel, Tokenizer};
use highwater::nn::{Adapters, Lora, lora};
use highwater::prelude::*;
use highwater::train::{Every, FitOptions, Mean, Options, Outcome, Run, SaveOptions, Trainer, output_path};
use serde_json::json;

use data::{Batch, Data};
use model::Quantization;
use sample::Samples;
use terminal::peak;

/// The checkpoint key of the options that decide what the adapters mean.
const ADAPTERS: &str = "adapters";

/// Fine-tune a pretrained language model on a text, or on prompts with answers.
#[derive(Debug, Parser)]
struct Args {
    /// The model: a GGUF file, or a folder with config.json, model.safetensors and tokenizer.json
    #[arg(long, value_name = "PATH")]
    model: PathBuf,

    /// A text to learn, UTF-8
    #[arg(long, value_name = "FILE", required_unless_present = "pairs", conflicts_with = "pairs")]
    text: Option<PathBuf>,

    /// Prompts with answers to learn: JSON lines with "prompt" and "answer", or with "messages". The chat template of the
    /// model formats them, if it has one
    #[arg(long, value_name = "FILE.jsonl")]
    pairs: Option<PathBuf>,

    /// Do not apply the chat template of the model to the prompts
    #[arg(long, requires = "pairs")]
    no_template: bool,

    /// The rank of the adapters
    #[arg(long, value_name = "N", default_value_t = 8)]
    rank: usize,

    /// The updates of the adapters are multiplied by ALPHA / rank
    #[arg(long, value_name = "ALPHA", default_value_t = 16.0)]
    alpha: f64,

    /// The probability with which the adapters drop elements of their input
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    dropout: f64,

    /// The layers that get an adapter: ends of their paths, with * for any name, or all-linear
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',', default_value = "q_proj,v_proj")]
    targets: Vec<String>,

    /// The blocks in which the frozen weights stay in memory; keep uses those of the GGUF file
    #[arg(long, value_enum, default_value_t = Quantization::None)]
    quantize: Quantization,

    /// The tokens of a sequence: windows of the text; the rest of a longer answer is ignored
    #[arg(long, value_name = "N", default_value_t = 256)]
    context: usize,

    /// Sequences per step
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch_size: usize,

    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,

    /// Stop after this step, as if interrupted: the learning rate is that of all steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_at: Option<u64>,

    /// The peak learning rate: it rises to this and then falls to a tenth
    #[arg(long, value_name = "RATE", default_value_t = 0.001)]
    learning_rate: f64,

    /// Compute all layers of the model again in the backward pass, in place of keeping their activations
    #[arg(long, conflicts_with = "fit")]
    recompute: bool,

    /// Measure the validation loss every N steps, and at the end
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: u64,

    /// Sequences for the validation loss, held out of the training
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    validation: u64,

    /// Write a text every N steps
    #[arg(long, value_name = "N", requires = "prompt", value_parser = clap::value_parser!(u64).range(1..))]
    sample_every: Option<u64>,

    /// The beginning of the texts of --sample-every, or with --pairs the prompt
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// The most new tokens of the texts of --sample-every
    #[arg(long, value_name = "N", default_value_t = 40)]
    sample_tokens: usize,

    /// Write the adapters to this folder at the end, in the format of PEFT
    #[arg(long, value_name = "FOLDER", value_parser = output_path())]
    adapter: Option<PathBuf>,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    options: Options,
}

impl Args {
    fn lora(&self) -> Lora {
        let (rank, alpha, dropout) = (self.rank, self.alpha, self.dropout);
        Lora { rank, alpha, dropout, ..Lora::default() }.with_targets(&self.targets)
    }

    /// The options that decide what the adapters mean, apart from their shapes.
    fn meaning(&self) -> String {
        let name = self.model.file_name().unwrap_or(self.model.as_os_str()).display();
        format!("--model {name} --alpha {} --quantize {}", self.alpha, self.quantize)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().with_fit(&args.fit).run("finetune", |run| fine_tune(&args, run))
}

fn fine_tune(args: &Args, run: &Run) -> anyhow::Result<()> {
    if let Some(checkpoint) = args.saves.saves(Every::Steps).load()? {
        let (saved, given) = (checkpoint.note(ADAPTERS).unwrap_or_default(), args.meaning());
        ensure!(saved == given, "--resume: the file has adapters of {saved:?}, not of {given:?}");
    }
    let tokenizer = Tokenizer::load(&args.model)?;
    let data = Data::load(args, &tokenizer, run.seed(), run.whole_batch(args.batch_size).batch())?;
    let tuning = Tuning { args, run, data: &data, tokenizer: &tokenizer };
    // Each trial loads the model on a device that computes nothing, which reads no weights.
    let mut plan = run.plan(args.batch_size, |device, plan, world| {
        let model = model::load(args, device)?;
        tuning.train(&*model, &tuning.adapters(&*model)?, plan, world).map(drop)
    })?;
    let model = model::load(args, run.device())?;
    tokenizer.check_vocabulary(model.vocabulary())?;
    if args.recompute {
        plan.recompute = model::recompute_all(&*model);
    }
    let adapters = tuning.adapters(&*model)?;
    let outcome = tuning.train(&*model, &adapters, &plan, run.world())?;
    let mut saved = String::new();
    if let Some(folder) = args.adapter.as_ref().filter(|_| run.world().is_main() && !outcome.is_dry) {
        adapters.save(folder)?;
        saved = format!("; adapters in {}", printable(folder.display()));
    }

    let loss = outcome.figures.get("validation_loss");
    let [trained, all] = [adapters.parameter_count(), model.parameter_count()];
    let result = match loss {
        Some(loss) => format!("validation loss {loss:.3} after {outcome}"),
        None => outcome.to_string(),
    };
    let summary = format!("{result}{saved}\n{trained} parameters trained; {}", peak(run.device())?);
    let results = json!({
        "validation_loss": loss,
        "final_loss": outcome.loss,
        "steps": outcome.steps,
        "trained_parameters": trained,
        "parameters": all,
    });
    Ok(run.finish(&summary, results)?)
}

/// The data and the options of a run.
struct Tuning<'a> {
    args: &'a Args,
    run: &'a Run,
    data: &'a Data,
    tokenizer: &'a Tokenizer,
}

impl Tuning<'_> {
    /// Freezes a model and attaches adapters to it.
    fn adapters<'m>(&self, model: &'m dyn LanguageModel) -> Result<Adapters<'m, dyn LanguageModel + 'm>> {
        Ok(lora(model, &self.args.lora(), &Rng::new(self.run.seed()))?)
    }

    /// Trains the adapters of a model with any plan.
    fn train(
        &self,
        model: &dyn LanguageModel,
        adapters: &Adapters<'_, dyn LanguageModel + '_>,
        plan: &Plan,
        world: &World,
    ) -> Result<Outcome> {
        let Self { args, run, data, tokenizer } = *self;
        let (device, seed) = (model.device(), run.seed());
        let mut optimizer = run.parallel_in(world, plan.shard, adapters.parameters(), |own| {
            AdamW::new(own, args.learning_rate)
        })?;
        // Rises over the first twentieth of the steps, then falls to a tenth.
        let (start, warm) = (args.learning_rate, (args.steps / 20).max(1));
        let rate = Schedule::Cosine { start, end: 0.1 * start, steps: args.steps.saturating_sub(warm) }
            .after_warm_up(warm);
        let mut output = run.output_of(plan);
        if let Some(samples) = Samples::new(args, tokenizer, model, seed)?.filter(|_| !plan.is_trial()) {
            output = output.with(samples);
        }
        let loss = |(tokens, targets): &Batch| {
            let _scope = module("loss");
            model.loss(tokens, targets)
        };
        Trainer::new(adapters, &mut optimizer)
            .schedule(rate)
            .evaluate(|| {
                let mut mean = Mean::default();
                for batch in data.validation(&device, plan.micro_batch, args.validation)? {
                    let batch = batch?;
                    mean.add(&loss(&batch)?, data::targets(&batch)?)?;
                }
                Ok([("validation_loss", mean.value())].into())
            })
            .evaluate_every(Every::Steps(args.validate_every))
            .saves(args.saves.saves(Every::Steps))
            .note(ADAPTERS, &args.meaning())
            .world(world)
            .plan(plan)
            .output(output)
            .train_steps(
                args.stop_at.unwrap_or(args.steps).min(args.steps),
                |number| data.batch(&device, plan, seed, number),
                loss,
            )
    }
}
