//! Device errors as data.

use bfc_core::{RegistryError, SourceError, printable};

/// The reason why a device is unusable or did not run its work. [`KernelError::NoDevice`](super::KernelError::NoDevice)
/// and [`KernelError::Device`](super::KernelError::Device) contain it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// No device has this kind and number.
    #[error("there is no such device")]
    NoSuchDevice,
    /// This build does not support CUDA: the feature `cuda` is off.
    #[error("built without CUDA support")]
    WithoutCuda,
    /// The system cannot start the threads.
    #[error("cannot start a pool of {threads} threads: {reason}", reason = printable(reason))]
    NoThreads {
        /// The requested number of threads.
        threads: usize,
        /// The system's error message.
        reason: String,
    },
    /// CUDA is unusable: no driver, an old driver, no device, or a device that does not open.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] bfc_cuda::CudaUnavailable),
    /// A CUDA device cannot compute: no compiler, no memory outside the pools, a lost device, or a failed
    /// call.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Compute(#[from] bfc_cuda::ComputeError),
    /// A CUDA device failed the self-check that precedes an automatic choice.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Check(#[from] bfc_cuda::SelfCheckError),
    /// The device's driver reports an error.
    #[error(transparent)]
    Driver(#[from] SourceError),
    /// The device's memory is unavailable.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The error message of a third-party backend.
    #[error("{}", printable(.0))]
    Other(String),
}
