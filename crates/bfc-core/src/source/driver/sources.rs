//! A device's memory as sources of regions for pools: one call of the driver for each region.

use std::sync::Arc;

use super::Driver;
use crate::base::memory::{AddressSpace, MemoryKind, Span};
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// A device's own memory as a source of regions.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    driver: Arc<dyn Driver>,
}

impl DeviceMemory {
    /// The memory of the device behind `driver`.
    #[must_use]
    pub const fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }
}

// SAFETY: every region is one allocation of the driver, which promises as much.
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
            // SAFETY: the region was taken just now, and nobody has heard of it.
            unsafe { self.free(region) };
        })
    }

    unsafe fn free(&self, region: Span) {
        // SAFETY: the caller gives back a region of ours, once, that nothing uses; it is one allocation of the driver.
        unsafe { self.driver.free_device(region.address) };
    }
}

/// Page-locked host memory as a source of regions: the device copies from and to it without staging.
#[derive(Clone, Debug)]
pub struct PinnedMemory {
    driver: Arc<dyn Driver>,
}

impl PinnedMemory {
    /// Host memory that is page-locked for the device behind `driver`.
    #[must_use]
    pub const fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }
}

// SAFETY: every region is one allocation of the driver, which promises as much, and that it is initialised.
unsafe impl SubAllocator for PinnedMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::PinnedHost
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        refuse_impossible(alignment, bytes)?;
        let region = Span { address: self.driver.allocate_pinned(bytes)?, bytes };
        keeps_contract(region, alignment).inspect_err(|_| {
            // SAFETY: the region was taken just now, and nobody has heard of it.
            unsafe { self.free(region) };
        })
    }

    unsafe fn free(&self, region: Span) {
        // SAFETY: the caller gives back a region of ours, once, that nothing uses; it is one allocation of the driver.
        unsafe { self.driver.free_pinned(region.address) };
    }
}

/// Drivers answer requests for nothing in ways of their own, so such requests never reach them.
fn refuse_impossible(alignment: u64, bytes: u64) -> Result<(), SourceError> {
    if bytes == 0 || !alignment.is_power_of_two() { Err(SourceError::Exhausted { bytes }) } else { Ok(()) }
}

/// The region, if it can be what was asked for. Taking more and aligning by hand is not possible: the driver wants
/// back the address that it gave.
fn keeps_contract(region: Span, alignment: u64) -> Result<Span, SourceError> {
    if region.address == 0 || !region.address.is_multiple_of(alignment) || region.end().is_none() {
        return Err(SourceError::BadRegion { address: region.address, bytes: region.bytes });
    }
    Ok(region)
}
