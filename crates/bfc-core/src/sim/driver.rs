//! The `Driver` implementation of a simulated device.

use super::faults::DeviceCall;
use super::memory::GRANULARITY;
use super::streams::Work;
use super::watch::MemoryUse;
use super::{BASE, SimDevice};
use crate::base::memory::Span;
use crate::base::sync::lock;
use crate::base::units::round_up;
use crate::source::driver::{
    Driver, EventHandle, FreeFaults, MemoryCopy, MemoryInfo, PhysicalHandle, StreamHandle,
};
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// The alignment of all addresses, the minimum that drivers guarantee.
const ALIGNMENT: u64 = 256;

// SAFETY: device addresses are unique and never dereferenced by the host. Pinned memory is zeroed system memory. Events
// are reached when all earlier work of their stream has ended, and waiting streams check that.
unsafe impl Driver for SimDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.poison.check()?;
        let used = lock(&self.state).used();
        Ok(MemoryInfo { free: self.capacity - used, total: self.capacity })
    }

    fn poison(&self) -> Option<SourceError> {
        self.poison.get()
    }

    fn free_faults(&self) -> FreeFaults {
        lock(&self.state).free_faults.clone()
    }

    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError> {
        let exhausted = SourceError::Exhausted { bytes };
        let state = &mut *lock(&self.state);
        self.enter(state, DeviceCall::AllocateDevice, bytes)?;
        if bytes == 0 || bytes > self.capacity - state.used() {
            return Err(exhausted);
        }
        let address = state.next;
        let end = address.checked_add(bytes).and_then(|end| round_up(end, ALIGNMENT));
        state.next = end.ok_or(exhausted)?;
        state.device.insert(Span { address, bytes });
        Ok(address)
    }

    unsafe fn free_device(&self, address: u64) {
        // Waits for all work first, as CUDA does. On failure the memory stays allocated, and the failure is recorded.
        let _ = self.give_back(DeviceCall::FreeDevice, |state| {
            let region = state.device.at(address).ok_or_else(|| nothing_at(address))?;
            state.end_all();
            state.device.remove(address);
            state.contents.forget(region);
            Ok(())
        });
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<u64, SourceError> {
        let state = &mut *lock(&self.state);
        self.enter(state, DeviceCall::AllocatePinned, bytes)?;
        let room = self.pinned_limit.unwrap_or(u64::MAX).saturating_sub(state.pinned.bytes);
        if bytes > room {
            return Err(SourceError::Exhausted { bytes });
        }
        let region = self.host.allocate(ALIGNMENT, bytes)?;
        state.pinned.insert(region);
        Ok(region.address)
    }

    unsafe fn free_pinned(&self, address: u64) {
        let region = self.give_back(DeviceCall::FreePinned, |state| {
            let region = state.pinned.at(address).ok_or_else(|| nothing_at(address))?;
            state.check_unused(region);
            state.pinned.remove(address);
            Ok(region)
        });
        if let Ok(region) = region {
            // SAFETY: the region was live until just now, and the caller guarantees that nothing uses it.
            unsafe { self.host.free(region) };
        }
    }

    fn granularity(&self) -> Result<u64, SourceError> {
        let (device, feature) = (self.name.clone(), "virtual memory management");
        if self.maps { Ok(GRANULARITY) } else { Err(SourceError::Unsupported { device, feature }) }
    }

    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        let state = &mut *lock(&self.state);
        self.enter(state, DeviceCall::Reserve, bytes)?;
        let end = state.next_range.checked_add(bytes).filter(|&end| end <= BASE);
        if bytes == 0 || bytes % GRANULARITY != 0 {
            return Err(invalid(DeviceCall::Reserve, bytes));
        }
        let next = end.ok_or(SourceError::Exhausted { bytes })?;
        let address = std::mem::replace(&mut state.next_range, next);
        state.mapped.ranges.insert(Span { address, bytes });
        Ok(address)
    }

    unsafe fn release_range(&self, range: Span) -> Result<(), SourceError> {
        self.give_back(DeviceCall::ReleaseRange, |state| state.mapped.release_range(range))
    }

    fn create(&self, bytes: u64) -> Result<PhysicalHandle, SourceError> {
        let state = &mut *lock(&self.state);
        self.enter(state, DeviceCall::Create, bytes)?;
        if bytes == 0 || bytes % GRANULARITY != 0 {
            return Err(invalid(DeviceCall::Create, bytes));
        }
        if bytes > self.capacity - state.used() {
            return Err(SourceError::Exhausted { bytes });
        }
        Ok(PhysicalHandle(state.mapped.create(bytes)))
    }

    unsafe fn release(&self, handle: PhysicalHandle) -> Result<(), SourceError> {
        self.give_back(DeviceCall::Release, |state| state.mapped.release(handle.0))
    }

    unsafe fn map(&self, range: Span, handle: PhysicalHandle) -> Result<(), SourceError> {
        self.call(DeviceCall::Map, |state| state.mapped.map(range, handle.0))
    }

    unsafe fn unmap(&self, range: Span) -> Result<(), SourceError> {
        self.give_back(DeviceCall::Unmap, |state| {
            state.check_unused(range);
            state.mapped.unmap(range)?;
            state.contents.forget(range);
            Ok(())
        })
    }

    unsafe fn set_access(&self, range: Span) -> Result<(), SourceError> {
        self.call(DeviceCall::SetAccess, |state| state.mapped.set_access(range))
    }

    fn create_stream(&self) -> Result<StreamHandle, SourceError> {
        self.call(DeviceCall::CreateStream, |state| Ok(StreamHandle(state.streams.create_stream())))
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) {
        // Records the failure.
        let _ = self.give_back(DeviceCall::DestroyStream, |state| state.streams.destroy_stream(stream.0));
    }

    fn create_event(&self) -> Result<EventHandle, SourceError> {
        self.call(DeviceCall::CreateEvent, |state| Ok(EventHandle(state.streams.create_event())))
    }

    unsafe fn destroy_event(&self, event: EventHandle) {
        // Records the failure.
        let _ = self.give_back(DeviceCall::DestroyEvent, |state| state.streams.destroy_event(event.0));
    }

    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), SourceError> {
        self.work(DeviceCall::Record, |state| state.streams.record(event.0, stream.0))
    }

    unsafe fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), SourceError> {
        self.work(DeviceCall::Wait, |state| state.streams.wait(stream.0, event.0))
    }

    unsafe fn query(&self, event: EventHandle) -> Result<bool, SourceError> {
        self.work(DeviceCall::Query, |state| state.streams.is_complete(event.0))
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> Result<(), SourceError> {
        self.call(DeviceCall::Synchronize, |state| {
            while let Some(work) = state.streams.next_towards(event.0) {
                state.end(work);
            }
            state.streams.is_complete(event.0).map(|_| ())
        })
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        self.call(DeviceCall::Synchronize, |state| {
            state.end_all();
            Ok(())
        })
    }

    unsafe fn copy(&self, copy: MemoryCopy, stream: StreamHandle) -> Result<(), SourceError> {
        let (MemoryCopy::ToDevice { from, to, bytes }
        | MemoryCopy::ToHost { from, to, bytes }
        | MemoryCopy::OnDevice { from, to, bytes }) = copy;
        let part = |address, writes| MemoryUse { span: Span { address, bytes }, owner: None, writes };
        let uses = if bytes == 0 { Vec::new() } else { vec![part(from, false), part(to, true)] };
        self.work(DeviceCall::Copy, |state| state.give(stream, Work::Copy(copy), uses))
    }
}

fn nothing_at(address: u64) -> String {
    format!("nothing that is alive was allocated at {address:#x}")
}

fn invalid(operation: DeviceCall, bytes: u64) -> SourceError {
    let reason = format!("{bytes} bytes are not a multiple of the granularity");
    SourceError::Driver { call: operation.name(), reason }
}
