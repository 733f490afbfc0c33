//! The few calls that a device must offer, and its memory as sources of regions for pools.
//!
//! Everything above a device goes through [`Driver`], so that growth, limits and faults are tested against the
//! [simulated device](crate::sim) on machines that have no other.

use std::fmt;
use std::sync::Arc;

use crate::error::SourceError;
use crate::memory::{MemoryKind, Span};
use crate::sub_allocator::SubAllocator;

/// The memory of a device as its driver counts it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What could still be taken, by this or any other process.
    pub free: u64,
    /// What the device has.
    pub total: u64,
}

/// Frees that the driver refused. Nobody waits for the outcome of a free, so it is kept here until somebody looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeFaults {
    /// How many frees failed since the device was opened.
    pub count: u64,
    /// What the driver said to the last one.
    pub last: Option<SourceError>,
}

impl FreeFaults {
    /// Counts one more failed free.
    pub fn record(&mut self, error: SourceError) {
        self.count += 1;
        self.last = Some(error);
    }
}

/// One device, as far as the rest of the workspace needs to know it. Every call may come from any thread.
///
/// # Safety
/// Pools hand out what a driver returns, so an implementation promises: each address returned starts as many bytes of
/// memory as were asked for, overlapping no other allocation alive, until it is freed; device memory is never followed
/// by the host; pinned memory is valid for the host and initialised.
pub unsafe trait Driver: Send + Sync + fmt::Debug {
    /// The device's name for people, such as `NVIDIA H200`.
    fn name(&self) -> &str;

    /// How much memory there is.
    ///
    /// # Errors
    /// [`SourceError::Driver`] if the driver does not answer.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;

    /// The address of `bytes` bytes (not 0) of the device's memory, aligned to at least 256.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if the device has no such amount, [`SourceError::Driver`] for other failures.
    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Gives device memory back. A failure is kept in [`free_faults`](Self::free_faults).
    ///
    /// # Safety
    /// `address` came from [`allocate_device`](Self::allocate_device), was not freed since, and no work uses the memory.
    unsafe fn free_device(&self, address: u64);

    /// The address of `bytes` bytes (not 0) of page-locked host memory, aligned to at least 256, initialised.
    ///
    /// # Errors
    /// As [`allocate_device`](Self::allocate_device).
    fn allocate_pinned(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Gives page-locked host memory back. A failure is kept in [`free_faults`](Self::free_faults).
    ///
    /// # Safety
    /// `address` came from [`allocate_pinned`](Self::allocate_pinned), was not freed since, and no work uses the memory.
    unsafe fn free_pinned(&self, address: u64);

    /// The frees that failed so far.
    fn free_faults(&self) -> FreeFaults;
}

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

    fn total_bytes(&self) -> Option<u64> {
        self.driver.memory_info().ok().map(|memory| memory.total)
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
