//! The registration of devices with streams.

use std::sync::Arc;

use super::pool::Pool;
use super::setting::PoolOptions;
use super::{DeviceId, Registry};
use crate::base::amount::Amount;
use crate::base::units::Bytes;
use crate::packing::Packing;
use crate::policy::bfc::JoinRule;
use crate::pool::BfcConfig;
use crate::registry::error::RegistryError;
use crate::source::driver::{DeviceMemory, Driver, PinnedMemory};
use crate::source::error::SourceError;
use crate::source::stream::Stream;
use crate::source::sub_allocator::SubAllocator;
use crate::source::virtual_memory::VirtualMemory;

/// The most pinned memory of a device's pool by default, as upstream.
const PINNED_LIMIT: Bytes = Bytes::gib(128);

/// Creates the source of a pool over the memory of the device behind `driver`: [`VirtualMemory`], which grows in place, if
/// the device supports it, else [`DeviceMemory`] with one call of the driver for each region.
///
/// # Errors
/// Fails with the driver's error.
pub fn device_source(driver: &Arc<dyn Driver>) -> Result<Arc<dyn SubAllocator>, SourceError> {
    match VirtualMemory::new(Arc::clone(driver)) {
        Ok(memory) => Ok(Arc::new(memory)),
        Err(SourceError::Unsupported { .. }) => Ok(Arc::new(DeviceMemory::new(Arc::clone(driver)))),
        Err(error) => Err(error),
    }
}

impl Registry {
    /// Registers a device with its device memory and pinned memory, and returns its compute stream. Work that uses the
    /// device's memory runs on that stream, unless another one is [recorded](crate::PoolView::record_stream).
    /// Allocates no memory yet.
    ///
    /// By default the device's pool grows up to all memory that is free when the pool is created, except `reserve`
    /// bytes, and follows the packing if there is one. With a limit in the options, the first request takes all of it
    /// ([`PoolOptions::limit`]). Pinned memory has a separate limit.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use bfc_core::sim::SimDevice;
    /// use bfc_core::{AllocatorAttributes, Bytes, DeviceId, DeviceKind, PoolOptions, Registry};
    ///
    /// let registry = Registry::new();
    /// let id = DeviceId::new(DeviceKind::Sim, 0);
    /// let device = Arc::new(SimDevice::new(Bytes::gib(8)));
    /// registry.register_device(id, device, Bytes::gib(1), PoolOptions::default(), None)?;
    /// let memory = registry.allocator(id, AllocatorAttributes::default(), None)?.allocator;
    /// assert_eq!(memory.stats().bytes_limit, Some(7 << 30));
    /// # Ok::<(), bfc_core::RegistryError>(())
    /// ```
    ///
    /// # Errors
    /// [`RegistryError::DeviceExists`] if the device is registered, [`RegistryError::Source`] if its driver creates no
    /// stream.
    pub fn register_device(
        &self,
        id: DeviceId,
        driver: Arc<dyn Driver>,
        reserve: Bytes,
        options: PoolOptions,
        packing: Option<Arc<Packing>>,
    ) -> Result<Arc<Stream>, RegistryError> {
        let compute =
            Stream::new(driver).map_err(|error| RegistryError::Source { device: id.to_string(), error })?;
        self.register_stream(id, &compute, reserve, options, packing)?;
        Ok(compute)
    }

    /// As [`register_device`](Self::register_device), with an existing compute stream.
    ///
    /// # Errors
    /// [`RegistryError::DeviceExists`] if the device is registered.
    pub fn register_stream(
        &self,
        id: DeviceId,
        compute: &Arc<Stream>,
        reserve: Bytes,
        options: PoolOptions,
        packing: Option<Arc<Packing>>,
    ) -> Result<(), RegistryError> {
        let index = id.ordinal as usize;
        // GPU steps that run as graphs must reuse the same addresses each time.
        let config = |limit| BfcConfig::new(limit).with_join_rule(JoinRule::AtOnce);
        let limit = PoolOptions::default().with_limit(Amount::AllBut(reserve));
        // The options always contain the limit.
        let any = config(Bytes(u64::MAX));
        let memory = Pool::streamed(id.to_string(), Arc::clone(compute), index, any, packing)
            .with_options(options)
            .with_defaults(limit);
        let source = Arc::new(PinnedMemory::new(Arc::clone(compute.driver())));
        let pinned = Pool::new(format!("{id} pinned"), source, index, config(PINNED_LIMIT));
        self.register(id, [memory, pinned])
    }
}

/// Returns the bytes that a pool leaves free for the driver and libraries on a CUDA device with this much free memory
/// and this major compute capability. The numbers are those of TensorFlow's `MinSystemMemory`.
///
/// ```
/// use bfc_core::Bytes;
/// assert_eq!(bfc_core::default_reserve(Bytes::gib(80), 9), Bytes::mib(1800));
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
