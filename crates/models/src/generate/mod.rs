//! Text generation: steps of a model with a cache, the choice of the next token from the logits, and the end of a text.
//!
//! [`generate`] is an iterator of tokens. Sampling runs on the host, on one row of logits at a time. Each sequence of a batch has a sampler of its own, so the
//! tokens of a sequence do not depend on the other sequences.

mod error;
mod generation;
mod sampler;
mod stop;

pub use error::SamplingError;
pub use generation::{GeneratedToken, Generation, generate};
pub use sampler::{Sampler, Sampling};
pub use stop::{StopReason, StopTokens, Stopping};
