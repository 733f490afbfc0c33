//! A classifier of sentence pairs.
//!
//! A linear layer scores u, v and |u - v| of the sentences' embeddings u and v (Reimers and Gurevych 2019). The encoder was
//! trained for such embeddings of single sentences. So its features are useful without further training, and each sentence of
//! a collection needs one pass only. Encoding both sentences as one text is often more accurate, but needs a pass per pair.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{bail, ensure};
use clap::Args;
use highwater::distributed::World;
use highwater::fit::Plan;
use highwater::models::{Bert, Tokenizer, load_bert};
use highwater::optim::Groups;
use highwater::prelude::*;
use highwater::train::{Accuracy, Ended, Every, Loss, Outcome, Run, Trainer, evaluate};
use serde_json::json;

use super::data::{EncodedPairs, class_names, read_pairs, split};

/// The checkpoint key of the labels.
const LABELS: &str = "labels";

/// The path of the classifier's layer in the model.
const HEAD: &str = "head.";

#[derive(Args, Debug)]
#[command(next_help_heading = "Options of --train")]
pub(super) struct TrainArgs {
    /// Validate with this file [default: every fifth pair of --train is held out]
    #[arg(long, value_name = "FILE", requires = "train")]
    validate: Option<PathBuf>,

    /// Passes over the pairs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    /// Stop after this epoch, as if interrupted: the learning rate is that of all epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_after: Option<u64>,

    /// Train the classifier only, and keep the encoder
    #[arg(long, requires = "train")]
    freeze: bool,

    /// The peak learning rate of the encoder: all rates rise to their peak and fall to a tenth
    #[arg(long, value_name = "RATE", default_value_t = 5e-5)]
    learning_rate: f64,

    /// The peak learning rate of the classifier
    #[arg(long, value_name = "RATE", default_value_t = 2e-3)]
    head_learning_rate: f64,
}

/// Scores the classes of sentence pairs.
#[derive(Debug, Module)]
struct PairClassifier {
    encoder: Bert,
    head: Linear,
}

impl PairClassifier {
    fn new(
        folder: &Path,
        classes: usize,
        freeze: bool,
        device: &Device,
        rng: &Rng,
    ) -> highwater::Result<Self> {
        let encoder = load_bert(folder, device)?;
        if freeze {
            encoder.freeze();
        } else {
            // Training changes the weights, so they move from the mapped file to the pool.
            encoder.parameters().iter().try_for_each(|(_, parameter)| parameter.set(&parameter.value()))?;
        }
        let head = Linear::new(device, 3 * encoder.config().width, classes, rng)?;
        Ok(Self { encoder, head })
    }

    /// The part to train and to save: without a frozen encoder.
    fn trained(&self, freeze: bool) -> &dyn Module {
        if freeze { &self.head } else { self }
    }

    /// The optimizer of a rank's parameters.
    fn optimizer(own: &[(String, Parameter)], args: &TrainArgs) -> highwater::Result<Groups> {
        let is_head = |(path, _): &(String, Parameter)| args.freeze || path.starts_with(HEAD);
        let (head, encoder) = own.iter().cloned().partition(is_head);
        Groups::new()
            .with(head, |own| AdamW::new(own, args.head_learning_rate))?
            .with(encoder, |own| AdamW::new(own, args.learning_rate))
    }
}

#[module]
impl Module for PairClassifier {
    /// Maps tokens and mask (`[2, 2 n, len]`) to scores (`[n, classes]`).
    fn forward(&self, x: &Tensor) -> highwater::Result<Tensor> {
        let (tokens, mask) = (x.select(0, 0)?, x.select(0, 1)?);
        let embeddings = self.encoder.sentence_embeddings(&tokens, &mask)?;
        // Embeddings of length 1 have small elements: with this factor their mean square is 1.
        let &[rows, width] = embeddings.dims() else { return self.head.forward(&embeddings) };
        let embeddings = embeddings.mul_scalar((width as f64).sqrt())?;
        let (u, v) = (embeddings.narrow(0, 0, rows / 2)?, embeddings.narrow(0, rows / 2, rows / 2)?);
        let difference = (&u - &v)?.abs()?;
        self.head.forward(&Tensor::concat(&[&u, &v, &difference], 1)?)
    }
}

/// Trains a classifier on the pairs of a file.
pub(super) fn train(args: &super::Args, (folder, path): (&Path, &Path), run: &Run) -> anyhow::Result<()> {
    let pairs = read_pairs(path)?;
    let (train, validation) = match &args.training.validate {
        Some(path) => (pairs, read_pairs(path)?),
        None => split(pairs).into(),
    };
    let labels = class_names(&train);
    ensure!(labels.len() > 1, "--train: all pairs have the label {labels:?}");
    if let Some(checkpoint) = args.saves.saves(Every::Epochs).load()? {
        let (learned, given) = (checkpoint.note(LABELS).unwrap_or_default(), json!(labels).to_string());
        ensure!(learned == given, "--resume: that classifier has the labels {learned}");
    }
    let tokenizer = Tokenizer::load(folder)?;
    let encode = |pairs| {
        Ok::<_, anyhow::Error>(Arc::new(EncodedPairs::new(pairs, &labels, &tokenizer, args.max_tokens)?))
    };
    let training = Training {
        folder,
        args,
        run,
        train: encode(&train)?,
        validation: encode(&validation)?,
        labels: labels.clone(),
    };

    let batch_size = usize::from(args.batch_size);
    let plan = run.plan(batch_size, |device, plan, world| training.run(device, plan, world).map(drop))?;
    let outcome = training.run(run.device(), &plan, run.world())?;
    if let Ended::Diverged { .. } = outcome.ended {
        bail!("{}", outcome.ended);
    }
    let (accuracy, held_out) = (outcome.figures.get("validation_accuracy"), training.validation.len());
    let summary = match accuracy {
        Some(share) => {
            format!(
                "{:.1} % of {held_out} held-out pairs classified correctly after {outcome}",
                share * 100.0
            )
        }
        None => outcome.to_string(),
    };
    let results = json!({
        "validation_accuracy": accuracy,
        "final_loss": outcome.loss,
        "steps": outcome.steps,
        "pairs": training.train.len(),
        "validation_pairs": held_out,
        "labels": labels,
    });
    Ok(run.finish(&summary, results)?)
}

/// The data and the options of a training run.
struct Training<'a> {
    folder: &'a Path,
    args: &'a super::Args,
    run: &'a Run,
    train: Arc<EncodedPairs>,
    validation: Arc<EncodedPairs>,
    labels: Vec<String>,
}

impl Training<'_> {
    /// Trains a new classifier with any plan on any device.
    fn run(&self, device: &Device, plan: &Plan, world: &World) -> highwater::Result<Outcome> {
        let (args, run, seed) = (self.args, self.run, self.run.seed());
        let options = &args.training;
        let model =
            PairClassifier::new(self.folder, self.labels.len(), options.freeze, device, &Rng::new(seed))?;
        let trained = model.trained(options.freeze);
        let mut optimizer = run.parallel_in(world, plan.shard, trained.parameters(), |own| {
            PairClassifier::optimizer(own.parameters(), options)
        })?;
        let steps = options.epochs.saturating_mul(plan.steps_of_epoch(self.train.len()));
        let (start, warm) = (options.head_learning_rate, (steps / 10).max(1));
        let rate = Schedule::Cosine { start, end: 0.1 * start, steps: steps.saturating_sub(warm) };
        let size = plan.micro_batch;
        let validate = || {
            let mut loss = Loss::new(|scores, labels| scores.cross_entropy(labels)).named("validation_loss");
            let mut accuracy = Accuracy::default();
            let batches = self.validation.batches(size, device)?.by_length(size)?;
            let found = evaluate(batches, |x| model.forward(x), &mut [&mut loss, &mut accuracy])?;
            let accuracy = found.get("accuracy");
            Ok([("validation_loss", found.get("validation_loss")), ("validation_accuracy", accuracy)].into())
        };
        Trainer::new(trained, &mut optimizer)
            .epochs(options.stop_after.unwrap_or(options.epochs).min(options.epochs))
            .schedule(rate.after_warm_up(warm))
            .evaluate(validate)
            .saves(args.saves.saves(Every::Epochs))
            .note(LABELS, &json!(self.labels).to_string())
            .world(world)
            .plan(plan)
            .output(run.output_of(plan))
            .train(
                |epoch| {
                    let batches = self.train.batches(size, device)?.shuffled(seed, epoch);
                    let batches = batches.by_length(plan.batch())?.largest_only(plan.is_trial());
                    Ok(batches.sharded(world))
                },
                |(x, labels)| {
                    let scores = model.forward(x)?;
                    let _scope = module("loss");
                    scores.cross_entropy(labels)
                },
            )
    }
}
