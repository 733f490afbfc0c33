//! The end of a generated text.

/// The tokens that end a text, such as `<|im_end|>`. A set of token ids; without tokens, no token ends the text.
///
/// ```
/// use highwater_models::StopTokens;
/// let stop = StopTokens::new([2, 0]);
/// assert!(stop.contains(2) && !stop.contains(1));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopTokens(Vec<u32>);

impl StopTokens {
    /// Returns the set of these token ids.
    #[must_use]
    pub fn new(tokens: impl IntoIterator<Item = u32>) -> Self {
        let mut tokens: Vec<u32> = tokens.into_iter().collect();
        tokens.sort_unstable();
        tokens.dedup();
        Self(tokens)
    }

    /// Whether this token ends a text.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        self.0.binary_search(&token).is_ok()
    }

    /// Returns the token ids in increasing order.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

impl FromIterator<u32> for StopTokens {
    fn from_iter<I: IntoIterator<Item = u32>>(tokens: I) -> Self {
        Self::new(tokens)
    }
}

/// The reason why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The model chose this stop token. It is the last token of the text.
    StopToken(u32),
    /// The text has the maximum number of new tokens.
    MaxTokens,
}

/// The rule that ends a text: a maximum number of new tokens, and [`StopTokens`].
///
/// ```
/// use highwater_models::{StopReason, StopTokens, Stopping};
/// let stopping = Stopping::new(3).at(StopTokens::new([2]));
/// assert_eq!(stopping.after(7, 1), None);
/// assert_eq!(stopping.after(2, 2), Some(StopReason::StopToken(2)));
/// assert_eq!(stopping.after(7, 3), Some(StopReason::MaxTokens));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopping {
    max_tokens: usize,
    tokens: StopTokens,
}

impl Stopping {
    /// Returns the rule that ends a text after `max_tokens` new tokens. Tokens of the prompt do not count.
    #[must_use]
    pub fn new(max_tokens: usize) -> Self {
        Self { max_tokens, tokens: StopTokens::default() }
    }

    /// Returns the rule with these stop tokens, in place of earlier ones.
    #[must_use]
    pub fn at(mut self, tokens: StopTokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Returns the maximum number of new tokens. A model needs a cache for the prompt and for these tokens.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Returns the stop tokens.
    #[must_use]
    pub fn tokens(&self) -> &StopTokens {
        &self.tokens
    }

    /// Returns the reason to end the text after its new token number `count`, counted from 1. A stop token takes
    /// precedence over the maximum.
    #[must_use]
    pub fn after(&self, token: u32, count: usize) -> Option<StopReason> {
        if self.tokens.contains(token) {
            return Some(StopReason::StopToken(token));
        }
        (count >= self.max_tokens).then_some(StopReason::MaxTokens)
    }
}
