//! The kernels: sources, names and arguments.
//!
//! The sources are CUDA C++ in this crate's folder `kernels`. NVRTC compiles them on a device, or a C++ compiler for
//! the emulator (feature `emulator`). A comment above each kernel says what it computes; this module names and
//! describes the call.

mod families;
mod job;

pub use families::{ElementType, Family, KernelId};
pub use job::{Job, MAX_RANK, Operand, Output, named};

/// The most bytes that a thread reads or writes at once, and the alignment that this needs.
pub const PACK: u64 = 16;

/// The number of threads per block, in all kernels.
pub const BLOCK: u64 = 256;
