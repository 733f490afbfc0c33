//! Greedy and random choice of the next token.
//!
//! ```text
//! logits → repetition penalty → temperature → top-k → top-p → softmax → draw
//! ```
//!
//! The order is that of `transformers`. Greedy choice and top-k select without sorting the vocabulary; top-p sorts only
//! the most probable tokens that it keeps, in blocks of growing size. Equal logits rank by token id, lowest first, so the
//! result depends on nothing but the logits, the settings and the seed.

use std::cmp::Ordering;

use highwater_tensor::{Error, Result, Rng};

use super::error::SamplingError;

/// The number of tokens that top-p sorts first.
const FIRST_BLOCK: usize = 256;

/// Settings of the choice of the next token. The default is greedy: the token with the largest logit.
///
/// ```
/// use highwater_models::Sampling;
/// let logits = [1.0, 3.0, 2.0];
/// assert_eq!(Sampling::new().sampler().next(&logits, &[])?, 1);
///
/// // Token 1 is in the text already. Its logit 3 becomes 1.5.
/// assert_eq!(Sampling::new().repetition_penalty(2.0)?.sampler().next(&logits, &[1])?, 2);
///
/// let sampling = Sampling::new().temperature(0.7)?.top_k(2)?.top_p(0.9)?.seed(1);
/// let (mut first, mut second) = (sampling.sampler(), sampling.sampler());
/// assert_eq!(first.next(&logits, &[])?, second.next(&logits, &[])?);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: Option<usize>,
    top_p: f32,
    repetition_penalty: f32,
    seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: 1.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Returns greedy settings: temperature 0, without top-k, top-p and repetition penalty.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides the logits by `temperature`: below 1 the most probable tokens become more probable. At 0 the choice is
    /// greedy, and top-k, top-p and the seed have no effect.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the temperature is negative, infinite or NaN.
    pub fn temperature(mut self, temperature: f32) -> Result<Self> {
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(bad("temperature", "0 or a positive finite number", temperature));
        }
        self.temperature = temperature;
        Ok(self)
    }

    /// Chooses among the `count` tokens with the largest logits. Of equal logits, the lowest ids remain. A count above
    /// the vocabulary keeps all tokens.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the count is 0.
    pub fn top_k(mut self, count: usize) -> Result<Self> {
        if count == 0 {
            return Err(bad("top_k", "at least 1", count));
        }
        self.top_k = Some(count);
        Ok(self)
    }

    /// Chooses among the most probable tokens whose probabilities sum to at least `share`: the smallest such set, and at
    /// least one token. The probabilities are those of the tokens that top-k keeps. A share of 1 keeps all of them.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < `share` ≤ 1.
    pub fn top_p(mut self, share: f32) -> Result<Self> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(bad("top_p", "above 0 and at most 1", share));
        }
        self.top_p = share;
        Ok(self)
    }

    /// Makes the previous tokens less probable: divides their positive logits by `penalty` and multiplies the negative
    /// ones, once per token (Keskar et al. 2019). 1 has no effect; below 1, previous tokens become more probable.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the penalty is a positive finite number.
    pub fn repetition_penalty(mut self, penalty: f32) -> Result<Self> {
        if !(penalty > 0.0 && penalty.is_finite()) {
            return Err(bad("repetition_penalty", "a positive finite number", penalty));
        }
        self.repetition_penalty = penalty;
        Ok(self)
    }

    /// Sets the seed, 0 by default. One seed reproduces a text.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether the choice is greedy: it needs no random numbers.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Returns a sampler for one sequence.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        self.sampler_of(0)
    }

    /// Returns the sampler of sequence number `sequence` of several. Each has random numbers of its own, which depend on
    /// the seed and this number only.
    #[must_use]
    pub fn sampler_of(&self, sequence: u64) -> Sampler {
        Sampler {
            rng: Rng::new(self.seed).fork(sequence),
            settings: self.clone(),
            drawn: 0,
            scores: Vec::new(),
            seen: Vec::new(),
            candidates: Vec::new(),
        }
    }
}

fn bad(argument: &'static str, expected: &'static str, got: impl ToString) -> Error {
    Error::BadArgument { op: "sample", argument, expected, got: got.to_string() }
}

/// Chooses the tokens of one sequence, by the settings of [`Sampling`].
///
/// It keeps buffers of the vocabulary's size on the heap, at most 20 bytes per token, so choosing a token allocates
/// nothing after the first call.
#[derive(Debug)]
pub struct Sampler {
    settings: Sampling,
    rng: Rng,
    /// The number of random numbers used.
    drawn: u64,
    /// The logits after the repetition penalty.
    scores: Vec<f32>,
    /// One bit per token: whether the penalty is already applied. All zero between calls.
    seen: Vec<u64>,
    candidates: Vec<Candidate>,
}

/// A token that can be chosen.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    score: f32,
    /// The exponential of the score, relative to that of the best token.
    weight: f64,
}

impl Candidate {
    /// Orders by score, largest first, and equal scores by token.
    fn rank(&self, other: &Self) -> Ordering {
        other.score.partial_cmp(&self.score).unwrap_or(Ordering::Equal).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Sampling {
        &self.settings
    }

    /// Returns the next token, given the model's logits for it, one per token of the vocabulary. `previous` has the
    /// tokens that the repetition penalty applies to: prompt and text so far, in any order. The logit −∞ excludes a token.
    ///
    /// # Errors
    /// [`SamplingError`] if a logit is NaN or +∞, if all tokens are excluded, or if a previous token has no logit. The
    /// sampler is unchanged then.
    pub fn next(&mut self, logits: &[f32], previous: &[u32]) -> Result<u32, SamplingError> {
        check(logits, previous)?;
        let penalized = self.settings.repetition_penalty != 1.0 && !previous.is_empty();
        if penalized {
            self.penalize(logits, previous);
        }
        let scores = if penalized { &self.scores[..] } else { logits };
        let (best, largest) = largest(scores);
        if largest == f32::NEG_INFINITY {
            return Err(SamplingError::NoToken { tokens: logits.len() });
        }
        if self.settings.is_greedy() {
            return Ok(best);
        }
        let candidates = &mut self.candidates;
        candidates.clear();
        let temperature = f64::from(self.settings.temperature);
        candidates.extend(
            (0_u32..)
                .zip(scores)
                .filter(|(_, score)| **score > f32::NEG_INFINITY)
                .map(|(token, &score)| Candidate { token, score, weight: 0.0 }),
        );
        if let Some(count) = self.settings.top_k.filter(|count| *count < candidates.len()) {
            candidates.select_nth_unstable_by(count - 1, Candidate::rank);
            candidates.truncate(count);
            // The order of the rest depends on the algorithm of the selection.
            candidates.sort_unstable_by_key(|candidate| candidate.token);
        }
        // Subtracting the largest score first keeps quotients by small temperatures finite.
        for candidate in candidates.iter_mut() {
            candidate.weight = ((f64::from(candidate.score) - f64::from(largest)) / temperature).exp();
        }
        if self.settings.top_p < 1.0 {
            keep_share(candidates, f64::from(self.settings.top_p));
        }
        // SplitMix64 with the sampler's seed: `fork(n)` is its output number n.
        let bits = self.rng.fork(self.drawn).state().seed;
        self.drawn += 1;
        Ok(draw(candidates, unit(bits)))
    }

    /// Fills `scores` with the logits after the repetition penalty.
    fn penalize(&mut self, logits: &[f32], previous: &[u32]) {
        let penalty = self.settings.repetition_penalty;
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        self.seen.resize(logits.len().div_ceil(64), 0);
        for &token in previous {
            let (word, bit) = (&mut self.seen[token as usize / 64], 1 << (token % 64));
            let score = &mut self.scores[token as usize];
            if *word & bit == 0 && *score > f32::NEG_INFINITY {
                let changed = if *score < 0.0 { *score * penalty } else { *score / penalty };
                *score = changed.clamp(f32::MIN, f32::MAX);
            }
            *word |= bit;
        }
        previous.iter().for_each(|&token| self.seen[token as usize / 64] = 0);
    }
}

/// Checks that each logit is a number or −∞, and that each previous token has one.
fn check(logits: &[f32], previous: &[u32]) -> Result<(), SamplingError> {
    let tokens = logits.len();
    if u32::try_from(tokens).is_err() {
        return Err(SamplingError::TooManyLogits { tokens });
    }
    let is_number = |value: &f32| *value < f32::INFINITY;
    // Without an exit, the loop compares several logits at a time.
    if !logits.iter().fold(true, |all, value| all & is_number(value)) {
        let found = logits.iter().enumerate().find(|(_, value)| !is_number(value));
        return Err(found.map_or(SamplingError::NoToken { tokens }, |(token, &value)| {
            SamplingError::NotFinite { token, value }
        }));
    }
    match previous.iter().find(|token| **token as usize >= tokens) {
        Some(&token) => Err(SamplingError::UnknownToken { token, tokens }),
        None => Ok(()),
    }
}

/// Returns the first token with the largest score, and this score; −∞ without scores.
fn largest(scores: &[f32]) -> (u32, f32) {
    let better =
        |best: (u32, f32), (token, &score): (u32, &f32)| if score > best.1 { (token, score) } else { best };
    (0_u32..).zip(scores).fold((0, f32::NEG_INFINITY), better)
}

/// Keeps the smallest set of the most probable candidates with at least this share of all weights, sorted by rank.
fn keep_share(candidates: &mut Vec<Candidate>, share: f64) {
    let total: f64 = candidates.iter().map(|candidate| candidate.weight).sum();
    let (mut sum, mut sorted, mut block) = (0.0, 0, FIRST_BLOCK);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let size = block.min(rest.len());
        if size < rest.len() {
            rest.select_nth_unstable_by(size - 1, Candidate::rank);
        }
        rest[..size].sort_unstable_by(Candidate::rank);
        for (at, candidate) in rest[..size].iter().enumerate() {
            sum += candidate.weight;
            if sum >= share * total {
                candidates.truncate(sorted + at + 1);
                return;
            }
        }
        (sorted, block) = (sorted + size, block * 4);
    }
}

/// Returns a number of the interval [0, 1) with 53 random bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns the token at the share `position` of all weights, 0 ≤ `position` < 1.
fn draw(candidates: &[Candidate], position: f64) -> u32 {
    let target = position * candidates.iter().map(|candidate| candidate.weight).sum::<f64>();
    let mut sum = 0.0;
    let mut last = 0;
    for candidate in candidates.iter().filter(|candidate| candidate.weight > 0.0) {
        sum += candidate.weight;
        last = candidate.token;
        if target < sum {
            break;
        }
    }
    last
}
