//! Registers CUDA devices with a [`Registry`].

use std::sync::Arc;

use bfc_core::{
    Bytes, DeviceId, DeviceKind, Driver, Packing, PoolOptions, PoolSettings, Registry, RegistryError,
    SourceError, Stream, default_reserve,
};

use crate::driver::{CudaDriver, CudaUnavailable};

/// The reason why a CUDA device was not registered.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The device cannot be used.
    #[error(transparent)]
    Unavailable(#[from] CudaUnavailable),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] SourceError),
    /// The registry refused the device.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

bfc_core::debug_as_message!(RegisterError);

/// Opens a device, as numbered by [`probe`](crate::probe()), and registers it as `cuda:ordinal`: a pool of its memory,
/// a pool of pinned memory, and a compute stream, which is returned.
///
/// Settings that are not given default as in [`register_device`](Registry::register_device), with the reserve of
/// [`default_reserve`]. Each device has its own pools and stream. Only this device is opened: a context takes memory on
/// it.
///
/// # Errors
/// See [`RegisterError`].
pub fn register(
    registry: &Registry,
    ordinal: u32,
    settings: &PoolSettings,
) -> Result<Arc<Stream>, RegisterError> {
    let options = settings.options(DeviceId::new(DeviceKind::Cuda, ordinal));
    let driver = CudaDriver::new(ordinal)?;
    let stream = Stream::new(driver.clone())?;
    register_stream(registry, &driver, &stream, options, None)?;
    Ok(stream)
}

/// Registers an opened device with an existing compute stream, for callers that check first whether the device
/// computes.
///
/// # Errors
/// See [`RegisterError`].
pub fn register_stream(
    registry: &Registry,
    driver: &Arc<CudaDriver>,
    compute: &Arc<Stream>,
    options: PoolOptions,
    packing: Option<Arc<Packing>>,
) -> Result<(), RegisterError> {
    let free = Bytes(driver.memory_info()?.free);
    let reserve = default_reserve(free, driver.compute_capability()?.major);
    let id = DeviceId::new(DeviceKind::Cuda, driver.ordinal());
    Ok(registry.register_stream(id, compute, reserve, options, packing)?)
}
