//! Tests in processes whose CUDA driver and libraries are stand-ins.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../fake_driver/harness.rs"]
mod harness;
mod libraries;
mod lifetimes;
