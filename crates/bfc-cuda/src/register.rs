//! CUDA devices in a registry.

use std::sync::Arc;

use bfc_core::{
    Bytes, DeviceId, DeviceKind, Driver, Plan, PoolOptions, PoolSettings, Registry, RegistryError,
    SourceError, Stream, default_reserve,
};

use crate::driver::CudaDriver;
use crate::driver::CudaUnavailable;

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
    register_driver(registry, &CudaDriver::new(ordinal)?, options, None)
}

/// The same with a device that was opened before, the options of its memory's pool, and the plan that this follows, if any.
///
/// # Errors
/// See [`RegisterError`].
pub fn register_driver(
    registry: &Registry,
    driver: &Arc<CudaDriver>,
    options: PoolOptions,
    plan: Option<Arc<Plan>>,
) -> Result<Arc<Stream>, RegisterError> {
    let stream = Stream::new(driver.clone())?;
    register_stream(registry, driver, &stream, options, plan)?;
    Ok(stream)
}

/// The same with a compute stream of the device's that was made before, as by those who see first whether the device computes.
///
/// # Errors
/// See [`RegisterError`].
pub fn register_stream(
    registry: &Registry,
    driver: &Arc<CudaDriver>,
    compute: &Arc<Stream>,
    options: PoolOptions,
    plan: Option<Arc<Plan>>,
) -> Result<(), RegisterError> {
    let free = Bytes(driver.memory_info()?.free);
    let reserve = default_reserve(free, driver.compute_capability()?.major);
    let id = DeviceId::new(DeviceKind::Cuda, driver.ordinal());
    Ok(registry.register_stream(id, compute, reserve, options, plan)?)
}
