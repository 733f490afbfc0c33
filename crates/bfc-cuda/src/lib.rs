//! CUDA devices as sources of memory for the pools of [`bfc_core`], found at run time.
//!
//! Nothing here needs CUDA to build. [`probe`] says which devices there are, or in plain words why there are none;
//! [`CudaDriver`] opens one and offers its memory, streams, events and copies behind the narrow
//! [`Driver`](bfc_core::Driver) trait, on top of which [`VirtualMemory`](bfc_core::VirtualMemory),
//! [`DeviceMemory`](bfc_core::DeviceMemory) and [`PinnedMemory`](bfc_core::PinnedMemory) are the pools' sources. [`register()`]
//! does all of it at once.
//!
//! ```
//! use std::sync::Arc;
//! use bfc_core::{BfcAllocator, BfcConfig, Bytes, DeviceMemory};
//! use bfc_cuda::CudaDriver;
//!
//! match CudaDriver::new(0) {
//!     Ok(driver) => {
//!         let memory = Arc::new(DeviceMemory::new(driver));
//!         let _pool = BfcAllocator::new("cuda_0_bfc", memory, BfcConfig::new(Bytes::gib(1)));
//!     }
//!     Err(reason) => println!("{reason}"),
//! }
//! ```
//!
//! The driver library is loaded when first asked for. Its binding, [`cudarc`], panics where the library or one of its
//! functions is missing, and so does the text of its errors; here every function is looked up before the first call,
//! and errors are named without the driver's help.

mod compute;
mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
mod graph;
pub mod kernels;
mod libraries;
mod register;
mod self_check;
mod stream;

pub use bfc_core::default_reserve;
pub use compute::{
    Compute, ComputeError, Factor, LibraryProblem, Product, StepCounts, StepId, Target, TriedLibrary,
};
pub use driver::{ComputeCapability, CudaDeviceInfo, CudaDriver, CudaUnavailable, DriverVersion, probe};
pub use libraries::{Cublas, Image, Nvrtc};
pub use register::{RegisterError, register, register_driver, register_stream};
pub use self_check::{SelfCheckError, self_check};
pub use stream::StreamCompute;
