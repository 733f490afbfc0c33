//! Kernels of tensor programs: as data, on the CPU, on NVIDIA GPUs, and dry.
//!
//! A kernel is a struct with its operands, such as [`MatMul`](families::MatMul). The [check](backend::check) compares its
//! operands, and then a [`Backend`](backend::Backend) runs it on memory that the caller has allocated:
//!
//! ```text
//! kernel with views -> check -> backend: cpu, cuda, or dry (computes nothing)
//! ```
//!
//! `highwater-tensor` has tensors, ops and gradients above it. Programs usually depend on `highwater`.

pub mod backend;
pub mod cost;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "emulator")]
pub mod emulator;
pub mod error;
pub mod families;
pub mod layout;
pub mod operands;
pub mod rules;
pub mod shape;
pub mod step_graphs;
pub mod step_time;
pub mod storage;
#[cfg(test)]
mod testing;
pub mod window;
pub mod workspace;

pub use cpu::simd::CPU_INSTRUCTIONS;

/// The settings of this crate.
pub const SETTINGS: &[bfc_core::setting::Setting] = &[CPU_INSTRUCTIONS];
