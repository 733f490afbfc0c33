//! Tests in processes that load the emulated CUDA driver.

#![cfg(all(target_os = "linux", feature = "cuda"))]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod choice;
#[path = "../../../bfc-cuda/tests/emulated_driver/controls.rs"]
mod controls;
mod dry_runs;
#[path = "../../../bfc-cuda/tests/emulated_driver/mod.rs"]
mod emulated_driver;
mod several_devices;

use highwater_kernels::emulator::libraries;
