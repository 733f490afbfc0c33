//! The few calls that a device must offer, and its memory as sources of regions for pools.
//!
//! Everything above a device goes through [`Driver`], so that growth, limits, order and faults are tested against the
//! [simulated device](crate::sim) on machines that have no other.

mod handles;
mod poison;
mod sources;

use std::fmt;

use crate::base::memory::{AddressSpace, Span};
use crate::source::error::SourceError;

pub use handles::{EventHandle, MemoryCopy, PhysicalHandle, StreamHandle};
pub use poison::Poison;
pub use sources::{DeviceMemory, PinnedMemory};

/// The memory of a device as its driver counts it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What could still be taken, by this or any other process.
    pub free: u64,
    /// What the device has.
    pub total: u64,
}

/// What the driver refused to take back. Nobody waits for the outcome of a free, so it is kept here until somebody looks.
/// Of a device that is [lost](SourceError::Poisoned) only the first refusal is noted: the others say nothing new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeFaults {
    /// How many calls that give something back failed since the device was opened.
    pub count: u64,
    /// What the driver said to the last one.
    pub last: Option<SourceError>,
}

impl FreeFaults {
    /// Counts one more failed free.
    pub fn record(&mut self, error: SourceError) {
        if error.is_poisoned() && self.last.as_ref().is_some_and(SourceError::is_poisoned) {
            return;
        }
        self.count += 1;
        self.last = Some(error);
    }
}

/// One device, as far as the rest of the workspace needs to know it. Every call may come from any thread.
///
/// A failure that the device does not recover from poisons it: the call that met it and every later one return
/// [`SourceError::Poisoned`], the later ones without reaching the driver. Running out of memory is no such failure.
///
/// Calls that take handles or addresses are the raw side; [`Stream`](crate::Stream), [`Event`](crate::Event),
/// [`VirtualMemory`](crate::VirtualMemory) and the sources here are the safe one.
///
/// # Safety
/// Pools hand out what a driver returns, so an implementation promises: each address returned starts as many bytes of
/// memory as were asked for, overlapping no other allocation alive, until it is freed; device memory is never followed
/// by the host; pinned memory is valid for the host and initialised. An event is complete only when all work that its
/// stream was given before the record has ended, and a stream that waits for it starts nothing before.
pub unsafe trait Driver: Send + Sync + fmt::Debug {
    /// The device's name for people, such as `NVIDIA H200`.
    fn name(&self) -> &str;

    /// The address space of the device's memory. `None`, the default, where there is no memory to compute on.
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// How much memory there is.
    ///
    /// # Errors
    /// [`SourceError::Driver`] if the driver does not answer.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;

    /// What made the device unusable, if that has happened.
    fn poison(&self) -> Option<SourceError>;

    /// What the driver refused to take back so far.
    fn free_faults(&self) -> FreeFaults;

    // --- Memory in one piece.

    /// The address of `bytes` bytes (not 0) of the device's memory, aligned to at least 256.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if the device has no such amount, [`SourceError::Driver`] for other failures.
    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Gives device memory back, once all work on the device has ended. A failure is kept in
    /// [`free_faults`](Self::free_faults).
    ///
    /// # Safety
    /// `address` came from [`allocate_device`](Self::allocate_device), was not freed since, and no work to come uses the
    /// memory.
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

    // --- Addresses and memory apart. Failures of calls that give back are kept in `free_faults` too.

    /// What sizes and addresses of the calls below are multiples of, in bytes.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] if the device cannot keep addresses and memory apart.
    fn granularity(&self) -> Result<u64, SourceError>;

    /// The address of a range of `bytes` addresses with nothing behind them, aligned to the granularity.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`], [`SourceError::Driver`].
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Gives a range of addresses back.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the range stays reserved.
    ///
    /// # Safety
    /// The range came from [`reserve`](Self::reserve), was not given back since, and nothing is mapped in it.
    unsafe fn release_range(&self, range: Span) -> Result<(), SourceError>;

    /// `bytes` bytes of the device's memory without an address.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`], [`SourceError::Driver`].
    fn create(&self, bytes: u64) -> Result<PhysicalHandle, SourceError>;

    /// Gives a handle up. Its memory goes back when it is mapped nowhere any more.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the handle stays valid.
    ///
    /// # Safety
    /// The handle came from [`create`](Self::create) and was not released since.
    unsafe fn release(&self, handle: PhysicalHandle) -> Result<(), SourceError>;

    /// Puts the whole memory of a handle behind a range of addresses. Nobody may access it there yet.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: nothing is mapped.
    ///
    /// # Safety
    /// The handle is valid and as large as the range, which lies in a reserved one and in which nothing is mapped.
    unsafe fn map(&self, range: Span, handle: PhysicalHandle) -> Result<(), SourceError>;

    /// Takes the memory behind a range away.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the memory stays where it is.
    ///
    /// # Safety
    /// The range is exactly one that was [mapped](Self::map), and no work uses it.
    unsafe fn unmap(&self, range: Span) -> Result<(), SourceError>;

    /// Lets the device read and write a range.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    ///
    /// # Safety
    /// Memory is mapped throughout the range, which ends where mappings end.
    unsafe fn set_access(&self, range: Span) -> Result<(), SourceError>;

    // --- The order of work.

    /// A new stream: work given to it is done in the order given, and in no order with the work of other streams.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    fn create_stream(&self) -> Result<StreamHandle, SourceError>;

    /// Gives a stream up. Work that it was given is done all the same. A failure is kept in `free_faults`.
    ///
    /// # Safety
    /// The stream is this driver's and not destroyed, and is used no more.
    unsafe fn destroy_stream(&self, stream: StreamHandle);

    /// A new event, complete as long as it is not recorded.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    fn create_event(&self) -> Result<EventHandle, SourceError>;

    /// Gives an event up. Streams that wait for it go on waiting. A failure is kept in `free_faults`.
    ///
    /// # Safety
    /// The event is this driver's and not destroyed, and is used no more.
    unsafe fn destroy_event(&self, event: EventHandle);

    /// Makes the event stand for all the work that the stream was given so far.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the event stands for what it did before.
    ///
    /// # Safety
    /// Both are this driver's and not destroyed.
    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), SourceError>;

    /// Makes what the stream is given from now on wait for what the event stands for now. The host does not wait.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: the stream does not wait.
    ///
    /// # Safety
    /// Both are not destroyed; the stream is this driver's, and the event of a driver of the same kind.
    unsafe fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), SourceError>;

    /// Whether the event is complete. Does not wait.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    ///
    /// # Safety
    /// The event is this driver's and not destroyed.
    unsafe fn query(&self, event: EventHandle) -> Result<bool, SourceError>;

    /// Returns when the event is complete.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    ///
    /// # Safety
    /// The event is this driver's and not destroyed.
    unsafe fn synchronise_event(&self, event: EventHandle) -> Result<(), SourceError>;

    /// Returns when all work that the device was given has ended.
    ///
    /// # Errors
    /// [`SourceError::Driver`].
    fn synchronise(&self) -> Result<(), SourceError>;

    /// Gives the stream a copy to do.
    ///
    /// # Errors
    /// [`SourceError::Driver`]: nothing is copied.
    ///
    /// # Safety
    /// The stream is this driver's and not destroyed. Until the copy has ended both places are valid for its bytes and
    /// in memory of the kind said, nobody writes to the place copied from, and nobody else reads or writes the other.
    unsafe fn copy(&self, copy: MemoryCopy, stream: StreamHandle) -> Result<(), SourceError>;
}
