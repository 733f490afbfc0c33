//! NCCL, NVIDIA's library for collective operations between GPUs, found at run time.
//!
//! ```text
//! rank 0   NcclLibrary::unique_id ── 128 bytes, which the caller brings to all ranks ──▶  rank 1, 2, …
//! each     Communicator::connect ─▶ submit (all-reduce, …) ─▶ wait ─▶ drop
//! ```
//!
//! One process holds one rank and one GPU. Communicators are non-blocking: NCCL returns "in progress", and this module
//! polls until NCCL is ready or the time limit has passed. NCCL does not notice every peer that dies, so a rank that
//! waits too long aborts its communicator, which also ends its kernels on the device.

mod abi;
mod call;
mod communicator;
mod error;
mod library;

pub use call::{CollectiveCall, CollectiveKind};
pub use communicator::Communicator;
pub use error::NcclError;
pub use library::{NcclLibrary, UniqueId};
