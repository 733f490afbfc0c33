//! CUDA devices in a registry.

use std::sync::Arc;

use bfc_core::{
    Bytes, DeviceId, DeviceKind, Driver, PoolOptions, PoolSettings, Registry, RegistryError, SourceError,
    Stream,
};

use crate::driver::CudaDriver;
use crate::error::CudaUnavailable;

/// A CUDA device that was not registered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It cannot be used.
    #[error(transparent)]
    Unavailable(#[from] CudaUnavailable),
    /// Its driver does not answer.
    #[error(transparent)]
    Driver(#[from] SourceError),
    /// The registry refuses it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Opens the device of this number, as [`probe`](crate::probe()) counts, and registers it as `cuda:ordinal`: a pool of its
/// memory, a pool of pinned memory, and a compute stream, which is returned.
///
/// `settings` choose as for every device; what they leave open is as in
/// [`register_device`](Registry::register_device), with the reserve of [`default_reserve`]. Each device has its own pools
/// and stream. Only the device asked for is opened: a context costs memory on it.
///
/// # Errors
/// See [`RegisterError`].
pub fn register(
    registry: &Registry,
    ordinal: u32,
    settings: &PoolSettings,
) -> Result<Arc<Stream>, RegisterError> {
    let options = settings.options(DeviceId::new(DeviceKind::Cuda, ordinal));
    register_driver(registry, &CudaDriver::new(ordinal)?, options)
}

/// The same with a device that was opened before, and the options of its memory's pool.
///
/// # Errors
/// See [`RegisterError`].
pub fn register_driver(
    registry: &Registry,
    driver: &Arc<CudaDriver>,
    options: PoolOptions,
) -> Result<Arc<Stream>, RegisterError> {
    let free = Bytes(driver.memory_info()?.free);
    let reserve = default_reserve(free, driver.compute_capability()?.major);
    let id = DeviceId::new(DeviceKind::Cuda, driver.ordinal());
    let driver: Arc<CudaDriver> = Arc::clone(driver);
    Ok(registry.register_device(id, driver, reserve, options)?)
}

/// What a pool leaves free for the driver and libraries on a device with so much free memory, of this generation (the
/// first number of its compute capability): upstream's numbers, from TensorFlow's `MinSystemMemory`.
///
/// ```
/// use bfc_core::Bytes;
/// assert_eq!(bfc_cuda::default_reserve(Bytes::gib(80), 9), Bytes::mib(1800));
/// ```
#[must_use]
pub const fn default_reserve(free: Bytes, generation: u32) -> Bytes {
    if free.get() < Bytes::gib(2).get() {
        return Bytes::mib(225);
    }
    match generation {
        0..=6 => Bytes::mib(500),
        7 => Bytes::mib(1050),
        8 => Bytes::mib(1536),
        _ => Bytes::mib(1800),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_reserves_by_free_memory_and_generation() {
        let reserve = |free, generation| default_reserve(free, generation).get() >> 20;
        assert_eq!([6, 7, 8, 9, 10].map(|of| reserve(Bytes::gib(16), of)), [500, 1050, 1536, 1800, 1800]);
        assert_eq!(reserve(Bytes(Bytes::gib(2).get() - 1), 9), 225);
        assert_eq!(reserve(Bytes::gib(2), 9), 1800);
    }
}
