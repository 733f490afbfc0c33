//! The CUDA driver: its library, the devices that it shows, and one opened device.
//!
//! The library is loaded at the first call. Every function that this crate uses is looked up before any is called, because
//! the binding ([`cudarc`]) panics where one is missing. [`CudaDriver`] implements the [`Driver`](bfc_core::Driver) trait of
//! the pools.

mod calls;
#[cfg_attr(not(feature = "compute"), allow(dead_code, reason = "only graphs capture"))]
mod capture;
mod contexts;
#[cfg_attr(not(feature = "compute"), allow(dead_code, reason = "only graphs hold commands back"))]
mod deferred;
mod device;
mod error;
mod library;
mod probe;
mod version;

#[cfg(feature = "compute")]
pub(crate) use capture::capture_exclusively;
#[cfg(feature = "cudarc")]
pub(crate) use contexts::context_of;
pub use contexts::preserve_context;
#[cfg(feature = "compute")]
pub(crate) use deferred::{DeferredWork, without_flush};
pub use device::CudaDriver;
pub use error::CudaUnavailable;
#[cfg(feature = "compute")]
pub(crate) use library::driver_version;
#[cfg(any(feature = "compute", feature = "cudarc"))]
pub(crate) use library::require;
pub use probe::{CudaDeviceInfo, probe};
pub use version::{ComputeCapability, DriverVersion};
