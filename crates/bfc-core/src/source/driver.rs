//! The driver of a device, and its memory as sources of regions for pools.
//!
//! All code above a device calls [`Driver`]. The [simulated device](crate::sim) implements it too, so that tests of
//! growth, limits, order and faults run on machines without a device.

mod handles;
mod poison;
mod sources;

use std::fmt;

use crate::base::memory::{AddressSpace, Span};
use crate::source::error::SourceError;

pub use handles::{EventHandle, MemoryCopy, PhysicalHandle, StreamHandle};
pub use poison::Poison;
pub use sources::{DeviceMemory, PinnedMemory};

/// The free and total memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that this or another process can still allocate.
    pub free: u64,
    /// Bytes of the device.
    pub total: u64,
}

/// Failed frees of a driver. Callers do not wait for the outcome of a free, so failures are recorded here. Of a
/// [lost](SourceError::Poisoned) device, only the first failure is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeFaults {
    /// Failed calls that free something, since the device was opened.
    pub count: u64,
    /// The error of the last one.
    pub last: Option<SourceError>,
}

impl FreeFaults {
    /// Records one more failed free.
    pub fn record(&mut self, error: SourceError) {
        if error.is_poisoned() && self.last.as_ref().is_some_and(SourceError::is_poisoned) {
            return;
        }
        self.count += 1;
        self.last = Some(error);
    }
}

/// The driver of one device. Every method may be called from any thread.
///
/// A failure that the device does not recover from poisons it. The failing call and all later ones return
/// [`SourceError::Poisoned`]; later ones do not reach the driver. Running out of memory does not poison a device.
///
/// Methods on handles or addresses are the unsafe interface. [`Stream`](crate::Stream), [`StreamEvent`](crate::StreamEvent),
/// [`VirtualMemory`](crate::VirtualMemory) and the sources of this folder are the safe one.
///
/// # Safety
/// Pools hand out the memory of a driver, so an implementation guarantees:
///
/// - Each returned address starts at least the requested bytes, which overlap no other live allocation until the free.
/// - Pinned memory is valid for the host and initialized. The host never dereferences device memory.
/// - An event is complete only when all work submitted to its stream before the record has ended. A stream that waits
///   for an event starts no later work before that.
pub unsafe trait Driver: Send + Sync + fmt::Debug {
    /// The device's display name, such as `NVIDIA H200`.
    fn name(&self) -> &str;

    /// The address space of the device's memory. `None`, the default, if there is no memory to compute on.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// Returns the free and total memory.
    ///
    /// # Errors
    /// Fails with [`SourceError::Driver`] if the driver does not answer.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;

    /// Returns the failure that made the device unusable, if any.
    fn poison(&self) -> Option<SourceError>;

    /// Returns the failed frees so far.
    fn free_faults(&self) -> FreeFaults;

    // --- Contiguous memory.

    /// Allocates `bytes` bytes (not 0) of device memory. Returns the address, aligned to at least 256.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if the device has too little memory, [`SourceError::Driver`] for other failures.
    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Frees device memory, after all work on the device has ended. [`free_faults`](Self::free_faults) records
    /// failures.
    ///
    /// # Safety
    /// `address` came from [`allocate_device`](Self::allocate_device), was not freed since, and no future work uses the
    /// memory.
    unsafe fn free_device(&self, address: u64);

    /// Allocates `bytes` bytes (not 0) of initialized page-locked host memory. Returns the address, aligned to at least
    /// 256.
    ///
    /// # Errors
    /// As [`allocate_device`](Self::allocate_device).
    fn allocate_pinned(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Frees page-locked host memory. [`free_faults`](Self::free_faults) records failures.
    ///
    /// # Safety
    /// `address` came from [`allocate_pinned`](Self::allocate_pinned), was not freed since, and no work uses the memory.
    unsafe fn free_pinned(&self, address: u64);

    // --- Virtual memory. `free_faults` records failures of calls that free, too.

    /// Returns the granularity of sizes and addresses in the calls below, in bytes.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] if the device has no virtual memory management.
    fn granularity(&self) -> Result<u64, SourceError>;

    /// Reserves a range of `bytes` unmapped addresses. Returns its start, aligned to the granularity.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`], [`SourceError::Driver`].
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Frees a reserved range of addresses.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the range stays reserved.
    ///
    /// # Safety
    /// The range came from [`reserve`](Self::reserve), was not released since, and nothing is mapped in it.
    unsafe fn release_range(&self, range: Span) -> Result<(), SourceError>;

    /// Allocates `bytes` bytes of device memory without an address.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`], [`SourceError::Driver`].
    fn create(&self, bytes: u64) -> Result<PhysicalHandle, SourceError>;

    /// Releases a handle. The driver frees its memory once it is mapped nowhere.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the handle stays valid.
    ///
    /// # Safety
    /// The handle came from [`create`](Self::create) and was not released since.
    unsafe fn release(&self, handle: PhysicalHandle) -> Result<(), SourceError>;

    /// Maps the whole memory of a handle into a range of addresses, without access rights.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: nothing is mapped.
    ///
    /// # Safety
    /// The handle is valid and as large as the range. The range is reserved, and nothing is mapped in it.
    unsafe fn map(&self, range: Span, handle: PhysicalHandle) -> Result<(), SourceError>;

    /// Unmaps the memory of a range.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the memory stays mapped.
    ///
    /// # Safety
    /// The range is exactly one that was [mapped](Self::map), and no work uses it.
    unsafe fn unmap(&self, range: Span) -> Result<(), SourceError>;

    /// Grants the device read and write access to a range.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    ///
    /// # Safety
    /// Memory is mapped throughout the range, which ends at the end of a mapping.
    unsafe fn set_access(&self, range: Span) -> Result<(), SourceError>;

    // --- Streams and events.

    /// Creates a stream. It runs its work in order, independent of other streams.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    fn create_stream(&self) -> Result<StreamHandle, SourceError>;

    /// Destroys a stream. Its submitted work still runs. `free_faults` records failures.
    ///
    /// # Safety
    /// The stream belongs to this driver, is not destroyed, and is not used afterwards.
    unsafe fn destroy_stream(&self, stream: StreamHandle);

    /// Creates an event, which is complete until it is recorded.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    fn create_event(&self) -> Result<EventHandle, SourceError>;

    /// Destroys an event. Streams that wait for it continue to wait. `free_faults` records failures.
    ///
    /// # Safety
    /// The event belongs to this driver, is not destroyed, and is not used afterwards.
    unsafe fn destroy_event(&self, event: EventHandle);

    /// Records all work submitted to the stream so far in the event.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the event keeps its previous record.
    ///
    /// # Safety
    /// Both belong to this driver and are not destroyed.
    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), SourceError>;

    /// Makes work submitted to the stream from now on wait for the event's current record. The host does not wait.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the stream does not wait.
    ///
    /// # Safety
    /// Both are not destroyed. The stream belongs to this driver, the event to a driver of the same kind.
    unsafe fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), SourceError>;

    /// Whether the event is complete. Does not wait.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    ///
    /// # Safety
    /// The event belongs to this driver and is not destroyed.
    unsafe fn query(&self, event: EventHandle) -> Result<bool, SourceError>;

    /// Waits until the event is complete.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    ///
    /// # Safety
    /// The event belongs to this driver and is not destroyed.
    unsafe fn synchronize_event(&self, event: EventHandle) -> Result<(), SourceError>;

    /// Waits until all work submitted to the device has ended.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    fn synchronize(&self) -> Result<(), SourceError>;

    /// Submits a copy to the stream.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: nothing is copied.
    ///
    /// # Safety
    /// The stream belongs to this driver and is not destroyed. Until the copy has ended, both ranges are valid memory
    /// of the stated kind, no other work writes to the source, and no other work accesses the destination.
    unsafe fn copy(&self, copy: MemoryCopy, stream: StreamHandle) -> Result<(), SourceError>;
}
