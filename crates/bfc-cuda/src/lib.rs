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
//! Features, all off by default:
//!
//! - `compute`: `StreamCompute` runs kernels and matrix products on a stream. NVRTC compiles the kernels.
//! - `nccl`: a `Communicator` exchanges device memory with other processes, each with its own GPU.
//! - `cudarc`: `PoolSlice` and `PoolStream` for programs that use cudarc.
//! - `emulator`: an emulated device for tests.
//!
//! Layers, bottom to top: `kernels`, `driver`, `compute`, `libraries`, `graph`, `stream`, then registration, the self-check
//! and the emulator.

#[cfg(feature = "compute")]
mod compute;
mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
#[cfg(feature = "compute")]
mod graph;
#[cfg(feature = "compute")]
pub mod kernels;
#[cfg(feature = "compute")]
mod libraries;
mod register;
#[cfg(feature = "compute")]
mod self_check;
mod settings;
#[cfg(feature = "cudarc")]
mod slices;
#[cfg(feature = "compute")]
mod stream;

pub use bfc_core::default_reserve;
#[cfg(feature = "compute")]
pub use compute::{
    Compute, ComputeError, Factor, GraphCounts, LibraryProblem, Product, StepId, Target, TriedLibrary,
};
/// The version of cudarc whose types [`PoolSlice`] and [`PoolStream`] use.
#[cfg(feature = "cudarc")]
pub use cudarc;
pub use driver::{
    ComputeCapability, CudaDeviceInfo, CudaDriver, CudaUnavailable, DriverVersion, preserve_context, probe,
};
#[cfg(feature = "nccl")]
pub use libraries::{CollectiveCall, CollectiveKind, Communicator, NcclError, NcclLibrary, UniqueId};
#[cfg(feature = "compute")]
pub use libraries::{CompiledCode, Cublas, Nvrtc};
pub use register::{RegisterError, register, register_stream};
#[cfg(feature = "compute")]
pub use self_check::{SelfCheckError, self_check};
pub use settings::{CUBLAS, NCCL, NVRTC, SETTINGS};
#[cfg(feature = "cudarc")]
pub use slices::{PoolSlice, PoolSliceError, PoolStream};
#[cfg(feature = "compute")]
pub use stream::StreamCompute;
