//! Tests in processes whose CUDA driver is a library on the host.

#![cfg(all(target_os = "linux", feature = "cuda"))]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod choice;
mod dry_runs;
#[path = "../../../bfc-cuda/tests/fake_driver/harness.rs"]
mod harness;
mod several_devices;
