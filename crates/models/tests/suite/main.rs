//! Tests of the public interface.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod chat;
mod sampling;
mod streams;
mod tokenizers;
mod vocabularies;
