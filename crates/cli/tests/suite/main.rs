//! Tests of the command `highwater`.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod devices;
mod devices_cuda;
mod errors;
mod export;
#[cfg(all(target_os = "linux", feature = "cuda"))]
#[path = "../../../bfc-cuda/tests/fake_driver/harness.rs"]
mod harness;
mod help;
mod plan;
mod replay;
mod report;
mod standard;
mod top;
mod unwritable;
mod what_if;
