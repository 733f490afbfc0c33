//! CUDA for the pools of [`bfc_core`] and for kernels, found at run time.
//!
//! Nothing here needs CUDA at build time. [`probe`] lists the devices, or says why there are none. [`CudaDriver`] opens
//! one and implements the [`Driver`](bfc_core::Driver) trait, on which the pools' memory sources are built.
//! [`register()`] does both and registers the pools.
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
//! [`StreamCompute`] runs kernels and matrix products on a stream. A [`Communicator`] exchanges device memory with other
//! processes, each with its own GPU. Layers, bottom to top: `kernels`, `driver`,
//! `compute`, `libraries`, `graph`, `stream`, then registration, the self-check and the emulator for tests.
//!
//! The feature `cudarc` adds `PoolSlice` and `PoolStream` for programs that use cudarc.

mod compute;
mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
mod graph;
pub mod kernels;
mod libraries;
mod register;
mod self_check;
#[cfg(feature = "cudarc")]
mod slices;
mod stream;

pub use bfc_core::default_reserve;
pub use compute::{
    Compute, ComputeError, Factor, GraphCounts, LibraryProblem, Product, StepId, Target, TriedLibrary,
};
/// The version of cudarc whose types [`PoolSlice`] and [`PoolStream`] use.
#[cfg(feature = "cudarc")]
pub use cudarc;
pub use driver::{
    ComputeCapability, CudaDeviceInfo, CudaDriver, CudaUnavailable, DriverVersion, preserve_context, probe,
};
pub use libraries::{
    CollectiveCall, CollectiveKind, Communicator, CompiledCode, Cublas, NcclError, NcclLibrary, Nvrtc,
    UniqueId,
};
pub use register::{RegisterError, register, register_stream};
pub use self_check::{SelfCheckError, self_check};
#[cfg(feature = "cudarc")]
pub use slices::{PoolSlice, PoolSliceError, PoolStream};
pub use stream::StreamCompute;
