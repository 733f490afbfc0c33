//! The CUDA driver: its library, the devices that it shows, and one opened device.
//!
//! The library is loaded at the first call. Every function that this crate uses is looked up before any is called, because
//! the binding ([`cudarc`]) panics where one is missing. [`CudaDriver`] implements the [`Driver`](bfc_core::Driver) trait of
//! the pools.

mod calls;
mod capture;
mod contexts;
mod deferred;
mod device;
mod error;
mod library;
mod probe;
mod version;

pub(crate) use capture::capture_exclusively;
#[cfg(feature = "cudarc")]
pub(crate) use contexts::context_of;
pub use contexts::preserve_context;
pub(crate) use deferred::{DeferredWork, without_flush};
pub use device::CudaDriver;
pub use error::CudaUnavailable;
pub(crate) use library::{driver_version, require};
pub use probe::{CudaDeviceInfo, probe};
pub use version::{ComputeCapability, DriverVersion};
