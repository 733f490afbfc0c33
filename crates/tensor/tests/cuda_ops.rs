//! The tests of ops on the emulated CUDA device: the same files, and what the kernels have in particular.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "gradients.rs"]
mod gradients;
#[path = "ops_values.rs"]
mod ops_values;
