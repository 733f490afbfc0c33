//! Tests of the public interface.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod chat;
mod gguf;
mod sampling;
mod streams;
mod tokenizers;
mod vocabularies;
