//! The exported functions, called as C programs call them.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one reason covers several calls of exported functions"
)]

mod arguments;
mod blocks;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod cuda;
#[cfg(all(target_os = "linux", feature = "cuda"))]
#[path = "../../../bfc-cuda/tests/emulated_driver/mod.rs"]
mod emulated_driver;
mod exit;
mod figures;
#[cfg(all(unix, not(miri)))]
mod forked;
mod scopes;
mod support;
mod threads;

#[cfg(all(target_os = "linux", feature = "cuda"))]
use bfc_cuda::emulator::libraries;
