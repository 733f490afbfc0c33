//! Pretrained models: tokenizers, chat templates and text generation.
//!
//! - [`generate`]: the choice of the next token ([`Sampling`], [`Sampler`]) and the end of a text ([`Stopping`]).
//! - `text` (feature `text`): tokenizers from `tokenizer.json` or from a GGUF vocabulary, pieces of text for streaming
//!   output, and chat templates.
//!
//! ```
//! use highwater_models::{Sampling, StopReason, StopTokens, Stopping};
//!
//! let mut sampler = Sampling::new().temperature(0.8)?.top_k(40)?.top_p(0.95)?.seed(7).sampler();
//! let stopping = Stopping::new(100).at(StopTokens::new([2]));
//! let mut tokens = vec![5_u32];
//! let reason = loop {
//!     let logits = [0.5_f32, -1.0, 2.0, 0.1, 0.0, 0.3]; // of a model
//!     let token = sampler.next(&logits, &tokens)?;
//!     tokens.push(token);
//!     if let Some(reason) = stopping.after(token, tokens.len() - 1) {
//!         break reason;
//!     }
//! };
//! assert!(matches!(reason, StopReason::StopToken(2)));
//! # Ok::<(), highwater_tensor::Error>(())
//! ```

pub mod generate;
#[cfg(feature = "text")]
pub mod text;

pub use generate::{Sampler, Sampling, SamplingError, StopReason, StopTokens, Stopping};
#[cfg(feature = "text")]
pub use text::{ChatTemplate, Message, Role, SpecialTokens, TextError, TextStream, TokenBatch, Tokenizer};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
