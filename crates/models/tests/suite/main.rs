//! Tests of pretrained models, with tiny models that they make themselves.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod bert;
mod configs;
mod gpt2;
mod llama;
mod support;
mod weights;
