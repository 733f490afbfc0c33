//! Tests of the command `highwater`.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod devices;
mod devices_cuda;
#[cfg(all(target_os = "linux", feature = "cuda"))]
#[path = "../../../bfc-cuda/tests/emulated_driver/mod.rs"]
mod emulated_driver;
mod errors;
mod export;
mod help;
mod lists;
mod pack;
mod ranks;
mod replay;
mod report;
mod settings;
mod snapshot;
mod standard;
mod top;
mod unwritable;
mod what_if;

#[cfg(all(target_os = "linux", feature = "cuda"))]
use bfc_cuda::emulator::libraries;
