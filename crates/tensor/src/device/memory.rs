//! What a device's memory is asked, under the names that people know.

use std::sync::Arc;

use bfc_core::{Allocator, Bytes, Stats};

use super::Device;
use crate::error::Result;

/// The memory that ops on the device take their outputs from. Each fails only if that memory cannot be had.
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
    /// Bytes in use: granted to tensors that live, rounding included.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn memory_allocated(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.bytes_in_use))
    }

    /// The most bytes that were in use since the start, or since the peaks were reset.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn max_memory_allocated(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.peak_bytes_in_use))
    }

    /// Bytes that the pool holds, used or not.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn memory_reserved(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.bytes_reserved))
    }

    /// The most bytes that the pool held since the start, or since the peaks were reset.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn max_memory_reserved(&self) -> Result<Bytes> {
        Ok(Bytes(self.memory_stats()?.peak_bytes_reserved))
    }

    /// All figures of the pool.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn memory_stats(&self) -> Result<Stats> {
        Ok(self.default_allocator()?.stats())
    }

    /// The figures of memory that tensors look into and others own ([`Tensor::from_owner`](crate::Tensor::from_owner),
    /// [`dlpack`](crate::dlpack)): no pool counts it.
    #[must_use]
    pub fn outside_memory(&self) -> Stats {
        self.outside().stats()
    }

    /// The same as an allocator that has nothing to give, for reports on allocators.
    #[must_use]
    pub fn outside_allocator(&self) -> Arc<dyn Allocator> {
        self.outside().as_allocator()
    }

    /// Lets all peaks begin at what is in use now, and counts of allocations at zero; `false` if the device's allocator
    /// keeps none.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn reset_peak_memory_stats(&self) -> Result<bool> {
        Ok(self.default_allocator()?.clear_stats())
    }

    /// Gives memory that nobody uses back to the system or the driver, as far as it can; how much that was.
    ///
    /// # Errors
    /// If the device's memory cannot be had.
    pub fn empty_cache(&self) -> Result<Bytes> {
        Ok(Bytes(self.default_allocator()?.trim(Bytes(0))))
    }
}
