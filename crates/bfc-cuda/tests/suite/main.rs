//! Tests in processes that load the emulated driver.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../emulated_driver/controls.rs"]
mod controls;
#[path = "../emulated_driver/mod.rs"]
mod emulated_driver;
mod libraries;
mod lifetimes;
mod nccl;
#[path = "../ranks/mod.rs"]
mod ranks;
mod slices;

use std::sync::Arc;

use bfc_core::Stream;
use bfc_cuda::emulator::libraries;
use bfc_cuda::{CudaDriver, StreamCompute};

/// Opens cuda:0 with one stream.
fn open() -> (Arc<CudaDriver>, StreamCompute) {
    let driver = CudaDriver::new(0).unwrap();
    let stream = Stream::new(driver.clone()).unwrap();
    (driver.clone(), StreamCompute::new(driver, stream).unwrap())
}
