//! A driver that reports too early that work has ended. The interleavings must find this fault.

use std::sync::Arc;

use bfc_core::sim::SimDevice;
use bfc_core::{
    Driver, EventHandle, FreeFaults, MemoryCopy, MemoryInfo, PhysicalHandle, SourceError, Span, StreamHandle,
};

/// A report that the driver makes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// That an event is complete.
    Query,
    /// That an event was waited for.
    SynchronizeEvent,
    /// That all work has ended.
    Synchronize,
}

/// A simulated device whose driver lies.
#[derive(Debug)]
pub struct Liar {
    pub device: Arc<SimDevice>,
    pub lie: Lie,
}

type Outcome<T> = Result<T, SourceError>;

// SAFETY: the lies break the contract, but no code reads or writes the simulated device's memory.
unsafe impl Driver for Liar {
    fn name(&self) -> &str {
        self.device.name()
    }
    fn memory_info(&self) -> Outcome<MemoryInfo> {
        self.device.memory_info()
    }
    fn poison(&self) -> Option<SourceError> {
        self.device.poison()
    }
    fn free_faults(&self) -> FreeFaults {
        self.device.free_faults()
    }
    fn allocate_device(&self, bytes: u64) -> Outcome<u64> {
        self.device.allocate_device(bytes)
    }
    unsafe fn free_device(&self, address: u64) {
        // SAFETY: as our caller promises.
        unsafe { self.device.free_device(address) }
    }
    fn allocate_pinned(&self, bytes: u64) -> Outcome<u64> {
        self.device.allocate_pinned(bytes)
    }
    unsafe fn free_pinned(&self, address: u64) {
        // SAFETY: as our caller promises.
        unsafe { self.device.free_pinned(address) }
    }
    fn granularity(&self) -> Outcome<u64> {
        self.device.granularity()
    }
    fn reserve(&self, bytes: u64) -> Outcome<u64> {
        self.device.reserve(bytes)
    }
    unsafe fn release_range(&self, range: Span) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.release_range(range) }
    }
    fn create(&self, bytes: u64) -> Outcome<PhysicalHandle> {
        self.device.create(bytes)
    }
    unsafe fn release(&self, handle: PhysicalHandle) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.release(handle) }
    }
    unsafe fn map(&self, range: Span, handle: PhysicalHandle) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.map(range, handle) }
    }
    unsafe fn unmap(&self, range: Span) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.unmap(range) }
    }
    unsafe fn set_access(&self, range: Span) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.set_access(range) }
    }
    fn create_stream(&self) -> Outcome<StreamHandle> {
        self.device.create_stream()
    }
    unsafe fn destroy_stream(&self, stream: StreamHandle) {
        // SAFETY: as our caller promises.
        unsafe { self.device.destroy_stream(stream) }
    }
    fn create_event(&self) -> Outcome<EventHandle> {
        self.device.create_event()
    }
    unsafe fn destroy_event(&self, event: EventHandle) {
        // SAFETY: as our caller promises.
        unsafe { self.device.destroy_event(event) }
    }
    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.record(event, stream) }
    }
    unsafe fn wait(&self, stream: StreamHandle, event: EventHandle) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.wait(stream, event) }
    }
    unsafe fn query(&self, event: EventHandle) -> Outcome<bool> {
        // SAFETY: as our caller promises.
        let truth = unsafe { self.device.query(event) };
        if self.lie == Lie::Query { Ok(true) } else { truth }
    }
    unsafe fn synchronize_event(&self, event: EventHandle) -> Outcome<()> {
        if self.lie == Lie::SynchronizeEvent {
            return Ok(());
        }
        // SAFETY: as our caller promises.
        unsafe { self.device.synchronize_event(event) }
    }
    fn synchronize(&self) -> Outcome<()> {
        if self.lie == Lie::Synchronize { Ok(()) } else { self.device.synchronize() }
    }
    unsafe fn copy(&self, copy: MemoryCopy, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: as our caller promises.
        unsafe { self.device.copy(copy, stream) }
    }
}
