//! Kernels: sources, names and arguments.
//!
//! Sources are CUDA C++. NVRTC compiles them on a device, or a C++ compiler for the emulator (feature `emulator`). Each
//! kernel takes one [`Job`], and some a [`JobTable`]. This crate has only the kernels of the [self-check](crate::self_check()).

mod element;
mod job;
mod source;

pub use element::ElementType;
pub use job::{Job, JobInput, JobOutput, JobRow, JobTable, MAX_RANK, TABLE_CHUNK, TABLE_ROWS, named};
pub use source::{KernelId, KernelSource};

/// The most bytes that a thread reads or writes at once, and the alignment that this needs.
pub const PACK: u64 = 16;

/// The number of threads per block, in all kernels.
pub const BLOCK: u64 = 256;

/// The kernels of the self-check, for [`ElementType::F32`]: `kernels/check.cu` says what each computes.
pub static CHECK: KernelSource = KernelSource::new("check", "", include_str!("../../kernels/check.cu"));
