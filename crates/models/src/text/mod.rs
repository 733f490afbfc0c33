//! Text and tokens: tokenizers, pieces of text for streaming output, and chat templates.
//!
//! ```text
//! messages ── ChatTemplate ──▶ text ── Tokenizer::encode ──▶ tokens ── model, Sampler ──▶ tokens ── TextStream ──▶ text
//! ```
//!
//! A [`PairEncoder`] makes samples for fine-tuning of prompts with answers.
//!
//! A [`Tokenizer`] wraps the crate `tokenizers`. It comes from a `tokenizer.json`, or from the [`Vocabulary`] of a GGUF
//! file. Padding and truncation are arguments of each call: settings of the file for them have no effect.
//!
//! Files are untrusted: their size is limited, chat templates run with a limit on work and memory, and a panic of
//! `tokenizers` on a malformed file becomes a [`TextError`].

mod batch;
mod chat;
mod error;
mod file;
mod gguf;
mod load;
mod pairs;
mod stream;
mod tokenizer;
mod vocabulary;

pub use batch::TokenBatch;
pub use chat::{ChatTemplate, Message, Role};
pub use error::TextError;
pub use pairs::PairEncoder;
pub use stream::TextStream;
pub use tokenizer::{SpecialTokens, Tokenizer};
pub use vocabulary::{TokenType, Vocabulary};
