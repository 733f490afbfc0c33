//! The kernels: their sources, names and the one argument that they take.
//!
//! They are CUDA C++, in the folder `kernels` of this crate, and are compiled where they run: by NVRTC on a device, or by
//! a C++ compiler for the emulator of tests (feature `emulator`). What a kernel computes is said beside its source; this
//! module says how it is named and called.

mod families;
mod job;

pub use families::{ElementType, Family, Kernel};
pub use job::{Job, MAX_RANK, Operand, Output};

/// Bytes that a thread reads or writes in one go at most, and of which their address is a multiple.
pub const PACK: u64 = 16;

/// Threads in each block, in all kernels.
pub const BLOCK: u64 = 256;
