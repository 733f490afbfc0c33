//! Long tests. The longest are ignored by default and run in release builds:
//! `cargo test --release -p bfc-core --test soak -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../common/mod.rs"]
mod common;
mod pack_minimalloc;
mod random_steps;
mod stream_interleavings;
