//! The texts to learn.

use std::sync::Arc;

use anyhow::ensure;
use highwater::data::{Batches, IGNORED_TARGET, PairOptions, Pairs, TokenWindows};
use highwater::fit::Plan;
use highwater::models::{ChatTemplate, PairEncoder, SpecialTokens, Tokenizer};
use highwater::prelude::*;

use super::Args;

/// The most bytes of text to read.
const LONGEST: u64 = 64 << 20;

/// The most that is held out for validation, as a share of all sequences.
const MOST_VALIDATION: f64 = 0.5;

/// Tokens and the next tokens.
pub(crate) type Batch = (Tensor, Tensor);

/// The sequences for training and for validation.
pub(crate) enum Data {
    Text([Arc<TokenWindows>; 2]),
    Pairs([Arc<Pairs>; 2]),
}

impl Data {
    /// Reads the files of the options, for steps with this number of sequences.
    pub(crate) fn load(args: &Args, tokenizer: &Tokenizer, seed: u64, step: usize) -> anyhow::Result<Self> {
        let share = |all: usize| (args.validation as f64 / all.max(1) as f64).min(MOST_VALIDATION);
        let data = match (&args.text, &args.pairs) {
            (Some(path), _) => {
                let tokens = tokenizer.encode_file(path, SpecialTokens::Omit, LONGEST)?;
                let windows = TokenWindows::new(tokens, args.context)?;
                let share = share(windows.len());
                let (train, validation) = windows.split(share)?;
                Self::Text([train, validation].map(Arc::new))
            }
            (None, Some(path)) => {
                let template = if args.no_template { None } else { ChatTemplate::load(&args.model)? };
                let encoder = PairEncoder::new(tokenizer).with_template(template.as_ref());
                let options = PairOptions::default().with_max_tokens(args.context);
                let pairs = Pairs::read(path, &options, |pair| encoder.encode(pair))?;
                report_cut(&pairs, args.context);
                let (train, validation) = pairs.split(share(pairs.len()), seed)?;
                Self::Pairs([train, validation].map(Arc::new))
            }
            (None, None) => return Err(anyhow::Error::msg("give --text or --pairs")),
        };
        let train = data.len();
        ensure!(train >= step, "a step of {step} sequences needs more than the {train} for training");
        Ok(data)
    }

    /// The number of sequences for training.
    fn len(&self) -> usize {
        match self {
            Self::Text([train, _]) => train.len(),
            Self::Pairs([train, _]) => train.len(),
        }
    }

    /// Returns a batch of a run by its number. All plans have the same sequences in a step.
    pub(crate) fn batch(&self, device: &Device, plan: &Plan, seed: u64, number: u64) -> Result<Batch> {
        let step = plan.batch().max(1);
        // Steps have all their sequences: the rest of a pass is left out.
        let batches = (self.len() / step).max(1) * (step / plan.micro_batch.max(1));
        let (epoch, batch) = (number / batches as u64, (number % batches as u64) as usize);
        match self {
            Self::Text([train, _]) => {
                next(train.batches(plan.micro_batch, device)?.shuffled(seed, epoch).start_at(batch))
            }
            Self::Pairs([train, _]) => {
                let pass = train.batches(plan.micro_batch, device)?.shuffled(seed, epoch).by_length(step)?;
                next(pass.largest_only(plan.is_trial()).start_at(batch))
            }
        }
    }

    /// Returns the batches for the validation loss.
    pub(crate) fn validation<'a>(
        &self,
        device: &'a Device,
        batch_size: usize,
        sequences: u64,
    ) -> Result<impl Iterator<Item = Result<Batch>> + 'a> {
        let batches = match self {
            Self::Text([_, validation]) => validation.batches(batch_size, device)?,
            Self::Pairs([_, validation]) => validation.batches(batch_size, device)?,
        };
        Ok(batches.take((sequences as usize).div_ceil(batch_size.max(1))))
    }
}

fn next(mut batches: Batches<'_, Device>) -> Result<Batch> {
    let missing = || Error::Custom { op: "finetune", message: "a pass has too few batches".to_owned() };
    batches.next().ok_or_else(missing)?
}

/// Returns the number of targets of a batch that count. A dry device has no values, so there all count.
pub(crate) fn targets((_, targets): &Batch) -> Result<usize> {
    if targets.device().is_dry() {
        return Ok(targets.elements());
    }
    Ok(targets.to_vec::<i64>()?.into_iter().filter(|target| *target != IGNORED_TARGET).count())
}

fn report_cut(pairs: &Pairs, context: usize) {
    let (cut, skipped) = (pairs.truncated(), pairs.skipped());
    if cut + skipped > 0 {
        eprintln!(
            "{cut} samples are cut off at {context} tokens, and {skipped} without an answer are left out"
        );
    }
}
