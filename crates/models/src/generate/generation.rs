//! Text generation step by step.
//!
//! ```text
//! prompts ──▶ prompt pass: all positions ──▶ last hidden state ──▶ logits ──▶ Sampler ──▶ token of each sequence
//!                                                 ▲                                            │
//!                   step: one position, keys and values of the earlier ones in the cache ◀─────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use highwater_nn::modules::KeyValueCache;
use highwater_tensor::{DType, Error, Result, Tensor, no_grad};

use super::sampler::{Sampler, Sampling};
use super::stop::{StopReason, Stopping};
use crate::language_model::LanguageModel;

const OP: &str = "generate";

/// Generates tokens after prompts of tokens, and returns them one by one.
///
/// The first step computes all positions of a prompt. Each further step computes one position, with the keys and values of
/// the earlier ones in a [`KeyValueCache`]. Each step computes the logits of the last position only.
///
/// Prompts of one length share a cache and compute their steps as one batch. Prompts of different lengths have separate
/// caches, whose steps alternate. A sequence has the same tokens in a batch as alone, up to rounding: each has a sampler and
/// random numbers of its own. A sequence that has ended stays in its batch, without output, until all of the batch have
/// ended; then the cache is freed.
///
/// ```
/// use highwater::models::{Llama, LlamaConfig, Sampling, StopTokens, Stopping, generate};
/// use highwater::{Device, Rng};
/// let device = Device::cpu()?;
/// let config = LlamaConfig::from_json(
///     r#"{"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
///         "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}"#,
/// )?;
/// let model = Llama::new(&config, &device, &Rng::new(0))?;
/// let sampling = Sampling::new().temperature(0.8)?.top_k(10)?.seed(1);
/// let stopping = Stopping::new(8).at(StopTokens::new([2]));
/// for token in generate(&model, &[[7, 3, 20], [7, 3, 21]], &sampling, &stopping)? {
///     let token = token?;
///     println!("sequence {}: {}", token.sequence, token.token);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Memory
/// `generate` allocates all caches. Each has the prompt's length plus [`max_tokens`](Stopping::max_tokens) minus one
/// positions. No request depends on the tokens, so a dry run predicts the peak exactly. On a dry device, the model chooses
/// token 0 and no sequence ends before its maximum:
///
/// ```
/// use highwater::models::{Llama, LlamaConfig, Sampling, Stopping, generate};
/// use highwater::{DeviceProfile, Rng, dry_run};
/// # let config = LlamaConfig::from_json(
/// #     r#"{"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
/// #         "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}"#,
/// # )?;
/// let run = dry_run(DeviceProfile::this_machine(), |device| {
///     // Or `Llama::from_gguf(&file, device)?`: a dry device reads no weights.
///     let model = Llama::new(&config, device, &Rng::new(0))?;
///     let prompt = vec![0; 20];
///     generate(&model, &[prompt], &Sampling::new(), &Stopping::new(30))?.into_tokens().map(drop)
/// })?;
/// println!("{}", run.peak);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::BadArgument`] if a prompt is empty, or exceeds the context of the model together with the new tokens;
/// [`Error::IndexOutOfRange`] for a token outside of the vocabulary; [`Error::Allocation`] if there is no memory for the
/// caches.
pub fn generate<'m>(
    model: &'m dyn LanguageModel,
    prompts: &[impl AsRef<[u32]>],
    sampling: &Sampling,
    stopping: &Stopping,
) -> Result<Generation<'m>> {
    let mut by_length: BTreeMap<usize, Vec<Sequence>> = BTreeMap::new();
    for (number, prompt) in prompts.iter().enumerate() {
        let tokens = prompt.as_ref().to_vec();
        check_prompt(model, &tokens, stopping.max_tokens())?;
        let sampler = sampling.sampler_of(number as u64);
        let sequence = Sequence { number, tokens, sampler, generated: 0, end: None };
        by_length.entry(sequence.tokens.len()).or_default().push(sequence);
    }
    if stopping.max_tokens() == 0 {
        by_length.clear();
    }
    let batch = |(len, sequences): (usize, Vec<Sequence>)| -> Result<Batch> {
        // The model never reads the last new token.
        let cache = model.new_cache(sequences.len(), len + stopping.max_tokens() - 1)?;
        Ok(Batch { cache, sequences })
    };
    let batches = by_length.into_iter().map(batch).collect::<Result<_>>()?;
    let sequences = prompts.len();
    Ok(Generation { model, stopping: stopping.clone(), sequences, batches, ready: VecDeque::new() })
}

fn check_prompt(model: &dyn LanguageModel, prompt: &[u32], new: usize) -> Result<()> {
    let bad = |expected, got| Err(Error::BadArgument { op: OP, argument: "prompts", expected, got });
    if prompt.is_empty() {
        return bad("of at least one token each", "a prompt without tokens".to_owned());
    }
    if prompt.len().saturating_add(new.saturating_sub(1)) > model.context() {
        let (len, context) = (prompt.len(), model.context());
        let got = format!("a prompt of {len} tokens and {new} new ones for a context of {context}");
        return bad("within the context of the model together with the new tokens", got);
    }
    let len = model.vocabulary();
    match prompt.iter().find(|&&token| token as usize >= len) {
        Some(&token) => Err(Error::IndexOutOfRange { op: OP, index: i64::from(token), len }),
        None => Ok(()),
    }
}

/// A token that a model has generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GeneratedToken {
    /// The number of the prompt that it continues, counted from 0.
    pub sequence: usize,
    /// The token.
    pub token: u32,
    /// The reason why the sequence ends with this token; `None` if it continues.
    pub end: Option<StopReason>,
}

/// An iterator of the tokens that a model generates, made by [`generate`]. It ends after the last token of all sequences.
///
/// An item is an error if a step fails, for example because memory runs out. The caches then have their earlier positions,
/// and the next call repeats the step.
pub struct Generation<'m> {
    model: &'m dyn LanguageModel,
    stopping: Stopping,
    /// The number of prompts.
    sequences: usize,
    /// The batches that have not ended, in the order of their next steps.
    batches: VecDeque<Batch>,
    /// The tokens of the last step that the iterator has not returned yet.
    ready: VecDeque<GeneratedToken>,
}

/// Sequences whose prompts have one length.
struct Batch {
    cache: KeyValueCache,
    sequences: Vec<Sequence>,
}

struct Sequence {
    /// The number of the prompt.
    number: usize,
    /// The prompt and the new tokens.
    tokens: Vec<u32>,
    sampler: Sampler,
    /// The number of new tokens.
    generated: usize,
    end: Option<StopReason>,
}

impl Generation<'_> {
    /// Generates all remaining tokens, and returns those of each sequence in the order of the prompts. A stop token is the
    /// last token of its sequence.
    ///
    /// # Errors
    /// The first error of a step.
    pub fn into_tokens(self) -> Result<Vec<Vec<u32>>> {
        let mut all = vec![Vec::new(); self.sequences];
        for token in self {
            let GeneratedToken { sequence, token, .. } = token?;
            all[sequence].push(token);
        }
        Ok(all)
    }

    /// Computes one step of the first batch.
    fn step(&mut self) -> Result<()> {
        let Some(batch) = self.batches.front_mut() else { return Ok(()) };
        let len = batch.cache.len();
        let tokens = batch.next_tokens(self.model).inspect_err(|_| batch.cache.truncate(len))?;
        // Without logits, no token of a dry device ends a text.
        let stopping = if self.model.device().is_dry() {
            &Stopping::new(self.stopping.max_tokens())
        } else {
            &self.stopping
        };
        for (sequence, token) in batch.sequences.iter_mut().zip(tokens) {
            let Some(token) = token else { continue };
            sequence.tokens.push(token);
            sequence.generated += 1;
            sequence.end = stopping.after(token, sequence.generated);
            self.ready.push_back(GeneratedToken { sequence: sequence.number, token, end: sequence.end });
        }
        if let Some(batch) = self.batches.pop_front()
            && batch.sequences.iter().any(|sequence| sequence.end.is_none())
        {
            self.batches.push_back(batch);
        }
        Ok(())
    }
}

impl Batch {
    /// Computes the next token of each sequence; `None` for those that have ended.
    fn next_tokens(&mut self, model: &dyn LanguageModel) -> Result<Vec<Option<u32>>> {
        let Self { cache, sequences } = self;
        let rows = sequences.len();
        let logits = {
            // The whole prompt, or the last token. A sequence that has ended repeats its last token.
            let len = if cache.is_empty() { sequences[0].tokens.len() } else { 1 };
            let last = sequences.iter().flat_map(|sequence| &sequence.tokens[sequence.tokens.len() - len..]);
            let last: Vec<u32> = last.copied().collect();
            let tokens = Tensor::from_slice(&model.device(), &last, [rows, len])?;
            no_grad(|| {
                let hidden = model.hidden(&tokens, Some(cache))?.select(1, -1)?;
                model.logits(&hidden)?.to_dtype(DType::F32)
            })?
        };
        let values = match logits.to_vec::<f32>() {
            Ok(values) => values,
            Err(Error::NoData { .. }) => {
                return Ok(sequences.iter().map(|sequence| sequence.end.is_none().then_some(0)).collect());
            }
            Err(error) => return Err(error),
        };
        let rows = values.chunks_exact((values.len() / rows).max(1));
        let choose = |(sequence, logits): (&mut Sequence, &[f32])| -> Result<Option<u32>> {
            match sequence.end {
                None => Ok(Some(sequence.sampler.next(logits, &sequence.tokens)?)),
                Some(_) => Ok(None),
            }
        };
        sequences.iter_mut().zip(rows).map(choose).collect()
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<GeneratedToken>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(token) = self.ready.pop_front() {
                return Some(Ok(token));
            }
            if self.batches.is_empty() {
                return None;
            }
            if let Err(error) = self.step() {
                return Some(Err(error));
            }
        }
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caches: Vec<_> = self.batches.iter().map(|batch| &batch.cache).collect();
        f.debug_struct("Generation")
            .field("sequences", &self.sequences)
            .field("stopping", &self.stopping)
            .field("caches", &caches)
            .finish_non_exhaustive()
    }
}
