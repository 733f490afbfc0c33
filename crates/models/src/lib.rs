//! Pretrained models, their tokenizers, and text generation.
//!
//! - [`Llama`], [`Gpt2`] and [`Bert`]: modules whose parameters have the names of Hugging Face, such as
//!   `model.layers.0.self_attn.q_proj.weight`. Their configuration comes from a `config.json`, or from the metadata of a
//!   GGUF file, and their parameters from any [`Weights`](highwater_nn::io::Weights): a safetensors file, a sharded
//!   checkpoint or a GGUF file. Nothing is downloaded.
//! - [`mod@generate`]: text generation ([`generate()`]), the choice of the next token ([`Sampling`], [`Sampler`]) and the end
//!   of a text ([`Stopping`]).
//! - `text` (feature `text`): tokenizers from `tokenizer.json` or from a GGUF vocabulary, pieces of text for streaming
//!   output, and chat templates.
//!
//! Run models within [`no_grad`](highwater_tensor::no_grad) unless you train them.

// The macros of modules name `::highwater`.
extern crate highwater_nn as highwater;

mod bert;
mod config;
mod error;
mod fields;
pub mod generate;
mod gguf;
mod gpt2;
mod language_model;
mod llama;
mod llama_config;
mod load;
mod parameters;
#[cfg(feature = "text")]
pub mod text;

pub use bert::{Bert, BertConfig};
pub use config::ModelConfig;
pub use error::{ModelError, TensorMismatch, TensorShape};
pub use generate::{
    GeneratedToken, Generation, Sampler, Sampling, SamplingError, StopReason, StopTokens, Stopping, generate,
};
pub use gguf::GgufWeights;
pub use gpt2::{Gpt2, Gpt2Config};
pub use language_model::LanguageModel;
pub use llama::Llama;
pub use llama_config::LlamaConfig;
pub use load::{load_bert, load_language_model, load_quantized_language_model};
#[cfg(feature = "text")]
pub use text::{ChatTemplate, Message, Role, SpecialTokens, TextError, TextStream, TokenBatch, Tokenizer};
