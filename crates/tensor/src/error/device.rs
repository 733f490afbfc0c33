//! What is wrong with a device, as data.

use bfc_core::{RegistryError, SourceError};

/// Why a device cannot be used, or did not do what it was given: in [`Error::NoDevice`](crate::Error::NoDevice) and
/// [`Error::Device`](crate::Error::Device).
///
/// ```
/// use highwater::alloc::DeviceId;
/// use highwater::{DeviceFault, Error, Runtime};
/// let error = Runtime::builder().build()?.device("sim:0".parse().expect("a device's name")).unwrap_err();
/// assert!(matches!(error, Error::NoDevice { reason: DeviceFault::NoSuchDevice, .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// There is none of this kind or number.
    #[error("there is no such device")]
    NoSuchDevice,
    /// This build has no code for devices of this kind: the feature `cuda` is off.
    #[error("built without CUDA support")]
    WithoutCuda,
    /// The system gives it no threads.
    #[error("no pool of {threads} threads: {reason}")]
    NoThreads {
        /// How many were asked for.
        threads: usize,
        /// What the system says.
        reason: String,
    },
    /// CUDA cannot be used: no driver, or too old a one, or no device, or one that cannot be opened.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] bfc_cuda::CudaUnavailable),
    /// A CUDA device does not compute: no compiler, no memory beside the pools, lost to this process, or a call that failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Compute(#[from] bfc_cuda::ComputeError),
    /// A CUDA device did not pass the check before an automatic choice.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Check(#[from] bfc_cuda::SelfCheckError),
    /// Its driver refuses.
    #[error(transparent)]
    Driver(#[from] SourceError),
    /// Its memories cannot be had.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// What a backend from outside this crate says.
    #[error("{0}")]
    Other(String),
}
