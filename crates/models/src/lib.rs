//! Pretrained models: [`Llama`], [`Gpt2`] and [`Bert`].
//!
//! A model is a [`Module`](highwater_nn::modules::Module) whose parameters have the names of Hugging Face, such as
//! `model.layers.0.self_attn.q_proj.weight`. Its configuration comes from a `config.json`, or from the metadata of a GGUF
//! file. Its parameters come from any [`Weights`](highwater_nn::io::Weights): a safetensors file, a sharded checkpoint or a
//! GGUF file. Nothing is downloaded.
//!
//! Run models within [`no_grad`](highwater_tensor::no_grad) unless you train them.

// The macros of modules name `::highwater`.
extern crate highwater_nn as highwater;

mod bert;
mod config;
mod error;
mod fields;
mod gguf;
mod gpt2;
mod language_model;
mod llama;
mod llama_config;
mod parameters;

pub use bert::{Bert, BertConfig};
pub use config::ModelConfig;
pub use error::{ModelError, TensorMismatch, TensorShape};
pub use gguf::GgufWeights;
pub use gpt2::{Gpt2, Gpt2Config};
pub use language_model::LanguageModel;
pub use llama::Llama;
pub use llama_config::LlamaConfig;
