//! Memory figures of a device, with PyTorch's names.

use std::sync::Arc;

use bfc_core::{Allocator, Bytes, Stats};

use super::Device;
use crate::error::Result;

/// Memory figures of the device's default allocator. Each method fails only if that allocator is unavailable.
///
/// | here | PyTorch, in `torch.cuda` |
/// |---|---|
/// | [`memory_allocated`](Device::memory_allocated) | `memory_allocated` |
/// | [`max_memory_allocated`](Device::max_memory_allocated) | `max_memory_allocated` |
/// | [`memory_reserved`](Device::memory_reserved) | `memory_reserved` |
/// | [`max_memory_reserved`](Device::max_memory_reserved) | `max_memory_reserved` |
/// | [`reset_peak_memory_stats`](Device::reset_peak_memory_stats) | `reset_peak_memory_stats` |
/// | [`empty_cache`](Device::empty_cache) | `empty_cache` |
/// | [`memory_stats`](Device::memory_stats) | `memory_stats` |
///
/// ```
/// use highwater::{Runtime, Tensor};
/// let device = Runtime::builder().threads(1).build()?.cpu()?;
/// let x = Tensor::zeros(&device, [1000])?;
/// assert_eq!(device.memory_allocated()?.get(), 4096);
/// drop(x);
/// assert_eq!((device.memory_allocated()?.get(), device.max_memory_allocated()?.get()), (0, 4096));
/// device.reset_peak_memory_stats()?;
/// assert_eq!(device.max_memory_allocated()?.get(), 0);
/// assert!(device.memory_reserved()?.get() > 0);
/// device.empty_cache()?;
/// assert_eq!(device.memory_reserved()?.get(), 0);
/// # Ok::<(), highwater::Error>(())
/// ```
impl Device {
    /// Returns the bytes in use by live tensors, including rounding.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn memory_allocated(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.bytes_in_use))
    }

    /// Returns the most bytes in use since the start or the last reset.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn max_memory_allocated(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.peak_bytes_in_use))
    }

    /// Returns the bytes that the pool holds, used or free.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn memory_reserved(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.bytes_reserved))
    }

    /// Returns the most bytes that the pool held since the start or the last reset.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn max_memory_reserved(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.peak_bytes_reserved))
    }

    /// Returns all statistics of the pool.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn memory_stats(&self) -> Result<Stats> {
        Ok(self.default_allocator()?.stats())
    }

    /// Returns the statistics of external memory ([`Tensor::from_owner`](crate::Tensor::from_owner),
    /// [`Tensor::from_mapped`](crate::Tensor::from_mapped), [`dlpack`](crate::dlpack)), which no pool counts.
    #[must_use]
    pub fn external_memory(&self) -> Stats {
        self.external().stats()
    }

    /// Returns external memory as an allocator that cannot allocate, for reports on allocators.
    #[must_use]
    pub fn external_allocator(&self) -> Arc<dyn Allocator> {
        self.external().as_allocator()
    }

    /// Resets all peaks to the bytes in use, and counts of allocations to zero. Returns `false` if the
    /// device's allocator keeps no statistics.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn reset_peak_memory_stats(&self) -> Result<bool> {
        Ok(self.default_allocator()?.clear_stats())
    }

    /// Returns unused memory to the system or the driver. Returns the number of released bytes.
    ///
    /// # Errors
    /// If the device's memory is unavailable.
    pub fn empty_cache(&self) -> Result<Bytes> {
        Ok(Bytes(self.default_allocator()?.trim(Bytes(0))))
    }
}
