//! Errors of sampling.

use highwater_tensor::Error;

/// A row of logits from which no token can be chosen. The sampler is unchanged.
#[derive(Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A logit is NaN or +∞. The logit −∞ excludes a token and is allowed.
    #[error("sample: the logit of token {token} is {value}; expected a number below infinity")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// There is no logit above −∞.
    #[error("sample: none of the {tokens} logits is above -inf, so there is no token to choose")]
    NoToken {
        /// The number of logits.
        tokens: usize,
    },
    /// A previous token is outside of the vocabulary.
    #[error("sample: the previous token {token} has no logit; there are {tokens} logits")]
    UnknownToken {
        /// The previous token.
        token: u32,
        /// The number of logits.
        tokens: usize,
    },
    /// The ids of tokens have 32 bits.
    #[error("sample: {tokens} logits are more than there are token ids")]
    TooManyLogits {
        /// The number of logits.
        tokens: usize,
    },
}

bfc_core::debug_as_message!(SamplingError);

impl From<SamplingError> for Error {
    fn from(error: SamplingError) -> Self {
        let message = error.to_string();
        let message = message.strip_prefix("sample: ").unwrap_or(&message).to_owned();
        Self::Custom { op: "sample", message }
    }
}
