//! Device memory as sources of regions: one call of the driver for each region.

use std::sync::Arc;

use super::Driver;
use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// Device memory as a source of regions.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    driver: Arc<dyn Driver>,
}

impl DeviceMemory {
    /// Creates a source of the memory of the device behind `driver`.
    #[must_use]
    pub const fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }
}

// SAFETY: every region is one allocation of the driver, which makes the same guarantees.
unsafe impl SubAllocator for DeviceMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.driver.address_space()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.driver.memory_info().ok().map(|memory| memory.total)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.driver.memory_info().ok().map(|memory| memory.free)
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        refuse_impossible(alignment, bytes)?;
        let region = Span { address: self.driver.allocate_device(bytes)?, bytes };
        keeps_contract(region, alignment).inspect_err(|_| {
            // SAFETY: the region is new, and no other code uses it.
            unsafe { self.free(region) };
        })
    }

    unsafe fn free(&self, region: Span) {
        // SAFETY: the caller frees an unused region of this source once; it is one allocation of the driver.
        unsafe { self.driver.free_device(region.address) };
    }
}

/// Page-locked host memory as a source of regions, which the device accesses without staging.
#[derive(Clone, Debug)]
pub struct PinnedMemory {
    driver: Arc<dyn Driver>,
}

impl PinnedMemory {
    /// Creates a source of host memory that is page-locked for the device behind `driver`.
    #[must_use]
    pub const fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }
}

// SAFETY: every region is one allocation of the driver, which makes the same guarantees and initializes it.
unsafe impl SubAllocator for PinnedMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::PinnedHost
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        refuse_impossible(alignment, bytes)?;
        let region = Span { address: self.driver.allocate_pinned(bytes)?, bytes };
        keeps_contract(region, alignment).inspect_err(|_| {
            // SAFETY: the region is new, and no other code uses it.
            unsafe { self.free(region) };
        })
    }

    unsafe fn free(&self, region: Span) {
        // SAFETY: the caller frees an unused region of this source once; it is one allocation of the driver.
        unsafe { self.driver.free_pinned(region.address) };
    }
}

/// Rejects invalid requests, for which drivers differ.
fn refuse_impossible(alignment: u64, bytes: u64) -> Result<(), SourceError> {
    if bytes == 0 || !alignment.is_power_of_two() { Err(SourceError::Exhausted { bytes }) } else { Ok(()) }
}

/// Returns the region if it satisfies the request. Aligning it by hand is impossible: the driver frees only the address
/// that it returned.
fn keeps_contract(region: Span, alignment: u64) -> Result<Span, SourceError> {
    if region.address == 0 || region.address % alignment != 0 || region.end().is_none() {
        return Err(SourceError::BadRegion { address: region.address, bytes: region.bytes });
    }
    Ok(region)
}
