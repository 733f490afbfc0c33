//! Prompts with answers: samples of different lengths, of which only the answers are targets.

mod json;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use highwater_tensor::error::DataError;
use highwater_tensor::{Error, Result};

use super::dataset::Dataset;
use super::sample::Sample;
use super::shuffle;
use super::token_windows::IGNORED_TARGET;
pub use json::{ChatTurn, PairText};

const OP: &str = "Pairs";

/// Tokens of a sample, and which of them the model learns to write.
///
/// ```
/// use highwater::data::MaskedTokens;
/// let sample = MaskedTokens::default().with_context(&[5, 6]).with_answer(&[7, 2]);
/// assert_eq!(sample.tokens(), [5, 6, 7, 2]);
/// assert_eq!(sample.is_target(), [false, false, true, true]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskedTokens {
    tokens: Vec<u32>,
    is_target: Vec<bool>,
}

impl MaskedTokens {
    /// Appends tokens that the model only reads, such as a prompt.
    #[must_use]
    pub fn with_context(self, tokens: &[u32]) -> Self {
        self.with(tokens, false)
    }

    /// Appends tokens that the model learns to write, such as an answer and the token that ends it.
    #[must_use]
    pub fn with_answer(self, tokens: &[u32]) -> Self {
        self.with(tokens, true)
    }

    fn with(mut self, tokens: &[u32], is_target: bool) -> Self {
        self.tokens.extend_from_slice(tokens);
        self.is_target.resize(self.tokens.len(), is_target);
        self
    }

    /// Returns the tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns for each token whether it is part of an answer.
    #[must_use]
    pub fn is_target(&self) -> &[bool] {
        &self.is_target
    }

    /// Returns the number of targets. The first token is none: no position before it predicts it.
    fn targets(&self) -> usize {
        self.is_target.iter().skip(1).filter(|is_target| **is_target).count()
    }

    fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.is_target.truncate(len);
    }
}

/// Limits and settings of [`Pairs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairOptions {
    /// The most tokens of a sample, 1,024 by default. The end of a longer sample is cut off.
    pub max_tokens: usize,
    /// The token in the padding, 0 by default. It has no effect on results.
    pub padding: u32,
    /// The most bytes of the file, 1 GiB by default.
    pub max_bytes: u64,
    /// The most bytes of a line, 4 MiB by default.
    pub max_line_bytes: usize,
    /// The most samples, 2²⁴ by default.
    pub max_samples: usize,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            max_tokens: 1024,
            padding: 0,
            max_bytes: 1 << 30,
            max_line_bytes: 4 << 20,
            max_samples: 1 << 24,
        }
    }
}

impl PairOptions {
    /// Sets the most tokens of a sample.
    #[must_use]
    pub const fn with_max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// Sets the token in the padding.
    #[must_use]
    pub const fn with_padding(mut self, token: u32) -> Self {
        self.padding = token;
        self
    }
}

/// Prompts with answers as a data set for language models. [`read`](Self::read) reads JSON lines.
///
/// The input of a sample is its tokens, `[len]` (`i64`). The target of a position is the next token if it belongs to an answer,
/// otherwise [`IGNORED_TARGET`]. A batch `[n, longest]` is padded on the right, with ignored targets. Causal attention
/// needs no mask for such padding: no token sees a later position, and the padding itself has no loss.
///
/// ```
/// use std::sync::Arc;
/// use highwater::data::{MaskedTokens, PairOptions, Pairs};
/// use highwater::prelude::*;
/// let sample = |prompt: &[u32], answer: &[u32]| MaskedTokens::default().with_context(prompt).with_answer(answer);
/// let samples = vec![sample(&[5, 6], &[7, 2]), sample(&[5], &[2])];
/// let pairs = Arc::new(Pairs::new(samples, &PairOptions::default())?);
/// let (x, y) = pairs.batches(2, &Device::cpu()?)?.next().unwrap()?;
/// assert_eq!(x.to_vec::<i64>()?, [5, 6, 7, 2, /* sample 1 */ 5, 2, 0, 0]);
/// assert_eq!(y.to_vec::<i64>()?, [-100, 7, 2, -100, 2, -100, -100, -100]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// [`Batches::by_length`](super::Batches::by_length) groups samples of similar length, and has the shape of the largest batch.
#[derive(Clone, PartialEq, Eq)]
pub struct Pairs {
    samples: Vec<Arc<MaskedTokens>>,
    padding: u32,
    truncated: usize,
    skipped: usize,
}

impl Pairs {
    /// Creates a data set from samples. Skips samples that have no target within
    /// [`max_tokens`](PairOptions::max_tokens).
    ///
    /// # Errors
    /// [`Error::BadArgument`] if no sample remains.
    pub fn new(samples: impl IntoIterator<Item = MaskedTokens>, options: &PairOptions) -> Result<Self> {
        let mut pairs = Self::empty(options);
        samples.into_iter().for_each(|sample| pairs.push(sample, options));
        if !pairs.samples.is_empty() {
            return Ok(pairs);
        }
        let expected = "at least one with a target within the most tokens";
        let got = format!("{} samples without, for at most {} tokens", pairs.skipped, options.max_tokens);
        Err(Error::BadArgument { op: OP, argument: "samples", expected, got })
    }

    /// Reads JSON lines, one sample per line, and encodes each with a function, such as that of a `PairEncoder` (feature
    /// `text`). The forms of a line are those of Hugging Face:
    ///
    /// ```text
    /// {"prompt": "2 + 2 =", "completion": " 4"}
    /// {"prompt": "2 + 2 =", "answer": " 4"}
    /// {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
    /// ```
    ///
    /// Other fields and blank lines are ignored. Reading stops at the first invalid line.
    ///
    /// ```
    /// use highwater::data::{MaskedTokens, PairOptions, PairText, Pairs};
    /// use highwater::prelude::*;
    /// let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    /// let encode = |pair: &PairText| match pair {
    ///     PairText::Completion { prompt, answer } => {
    ///         Ok(MaskedTokens::default().with_context(&bytes(prompt)).with_answer(&bytes(answer)).with_answer(&[0]))
    ///     }
    ///     PairText::Chat(_) => Err("chats need a template"),
    /// };
    /// let lines = "{\"prompt\": \"2 + 2 =\", \"answer\": \" 4\"}\n{\"prompt\": \"Hi\", \"completion\": \" there\"}\n";
    /// let pairs = Pairs::read_from(lines.as_bytes(), "pairs.jsonl", &PairOptions::default(), encode)?;
    /// assert_eq!((pairs.len(), pairs.targets(), pairs.longest()), (2, 3 + 7, 10));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::BadLine`] with line and byte for another form, invalid JSON or UTF-8, and errors of `encode`;
    /// [`DataError::TooLong`] and [`DataError::TooLarge`] beyond the limits; [`DataError::NoTargets`] if no sample remains;
    /// [`DataError::Empty`], [`DataError::WrongFile`], [`DataError::Io`].
    pub fn read<E: fmt::Display>(
        path: impl AsRef<Path>,
        options: &PairOptions,
        encode: impl FnMut(&PairText) -> std::result::Result<MaskedTokens, E>,
    ) -> std::result::Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| json::io_error(path, &error))?;
        Self::read_from(BufReader::new(file), path, options, encode)
    }

    /// Reads JSON lines from any reader. Errors show `name` as the file.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_from<E: fmt::Display>(
        mut source: impl BufRead,
        name: impl AsRef<Path>,
        options: &PairOptions,
        mut encode: impl FnMut(&PairText) -> std::result::Result<MaskedTokens, E>,
    ) -> std::result::Result<Self, DataError> {
        let (path, mut pairs) = (name.as_ref(), Self::empty(options));
        json::each(&mut source, path, options, &mut |text| {
            pairs.push(encode(text).map_err(|error| error.to_string())?, options);
            Ok(())
        })?;
        if pairs.samples.is_empty() {
            let (samples, max_tokens) = (pairs.skipped, options.max_tokens);
            return Err(DataError::NoTargets { path: path.to_owned(), samples, max_tokens });
        }
        Ok(pairs)
    }

    fn empty(options: &PairOptions) -> Self {
        Self { samples: Vec::new(), padding: options.padding, truncated: 0, skipped: 0 }
    }

    fn push(&mut self, mut sample: MaskedTokens, options: &PairOptions) {
        let is_longer = sample.tokens.len() > options.max_tokens;
        sample.truncate(options.max_tokens);
        if sample.targets() == 0 {
            self.skipped += 1;
            return;
        }
        self.truncated += usize::from(is_longer);
        self.samples.push(Arc::new(sample));
    }

    /// Splits at random into a training and a test part, which has the share `test_fraction` of the samples. Both keep the
    /// counts of truncated and skipped samples of the whole.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < `test_fraction` < 1, and if the rounded share leaves a part empty.
    pub fn split(&self, test_fraction: f64, seed: u64) -> Result<(Self, Self)> {
        let (train, test) = shuffle::split(self.samples.len(), test_fraction, seed)?;
        let select = |rows: &[usize]| {
            let samples = rows.iter().filter_map(|&row| self.samples.get(row).cloned()).collect();
            Self { samples, ..*self }
        };
        Ok((select(&train), select(&test)))
    }

    /// Returns the tokens of a sample; `None` if there is no such sample.
    #[must_use]
    pub fn sample(&self, index: usize) -> Option<&MaskedTokens> {
        self.samples.get(index).map(Arc::as_ref)
    }

    /// Returns the number of samples whose ends were cut off at [`max_tokens`](PairOptions::max_tokens).
    #[must_use]
    pub const fn truncated(&self) -> usize {
        self.truncated
    }

    /// Returns the number of samples that were left out, because they had no target within
    /// [`max_tokens`](PairOptions::max_tokens).
    #[must_use]
    pub const fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the number of tokens of all samples, without padding.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.samples.iter().map(|sample| sample.tokens.len()).sum()
    }

    /// Returns the number of targets that are not ignored.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.samples.iter().map(|sample| sample.targets()).sum()
    }

    /// Returns the number of tokens of the longest sample.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.samples.iter().map(|sample| sample.tokens.len()).max().unwrap_or(0)
    }

    fn at(&self, index: usize) -> Result<&MaskedTokens> {
        self.sample(index).ok_or_else(|| {
            let (expected, got) =
                ("below the number of samples", format!("{index} of {}", self.samples.len()));
            Error::BadArgument { op: OP, argument: "index", expected, got }
        })
    }

    /// Appends a sample that is padded to `len` tokens, at least its own.
    fn append(&self, sample: &MaskedTokens, len: usize, inputs: &mut Vec<i64>, targets: &mut Vec<i64>) {
        let end = inputs.len() + len;
        inputs.extend(sample.tokens.iter().map(|&token| i64::from(token)));
        inputs.resize(end, self.padding.into());
        let next = sample.tokens.iter().zip(&sample.is_target).skip(1);
        targets
            .extend(next.map(|(&token, is_target)| if *is_target { token.into() } else { IGNORED_TARGET }));
        targets.resize(end, IGNORED_TARGET);
    }
}

impl Dataset for Pairs {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (sample, mut inputs, mut targets) = (self.at(index)?, Vec::new(), Vec::new());
        self.append(sample, sample.tokens.len(), &mut inputs, &mut targets);
        Sample::new(&inputs, [inputs.len()])?.with_target(&targets, [targets.len()])
    }

    fn sample_length(&self, index: usize) -> Option<usize> {
        self.sample(index).map(|sample| sample.tokens.len())
    }

    fn get_batch(&self, indices: &[usize]) -> Result<Sample> {
        self.get_padded(indices, 0)
    }

    fn get_padded(&self, indices: &[usize], length: usize) -> Result<Sample> {
        let samples = indices.iter().map(|&index| self.at(index)).collect::<Result<Vec<_>>>()?;
        let longest = samples.iter().map(|sample| sample.tokens.len()).fold(length, usize::max);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        samples.iter().for_each(|sample| self.append(sample, longest, &mut inputs, &mut targets));
        let shape = [samples.len(), longest];
        Sample::new(&inputs, shape)?.with_target(&targets, shape)
    }
}

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pairs")
            .field("samples", &self.samples.len())
            .field("longest", &self.longest())
            .field("truncated", &self.truncated)
            .field("skipped", &self.skipped)
            .finish_non_exhaustive()
    }
}
