//! Text generation: the choice of the next token from a model's logits, and the end of a text.
//!
//! Sampling runs on the host, on one row of logits at a time. Each sequence of a batch has a sampler of its own, so the
//! tokens of a sequence do not depend on the other sequences.

mod error;
mod sampler;
mod stop;

pub use error::SamplingError;
pub use sampler::{Sampler, Sampling};
pub use stop::{StopReason, StopTokens, Stopping};
