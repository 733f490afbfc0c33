//! Tests of pretrained models, with tiny models and tokenizers that they make themselves.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod bert;
#[cfg(feature = "text")]
mod chat;
mod configs;
mod generation;
#[cfg(feature = "text")]
mod gguf;
mod gpt2;
mod llama;
mod quantized;
mod sampling;
#[cfg(feature = "text")]
mod streams;
mod support;
#[cfg(feature = "text")]
mod tokenizers;
mod training;
#[cfg(feature = "text")]
mod vocabularies;
mod weights;
