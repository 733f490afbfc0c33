//! A simulated device: a [`Driver`](crate::Driver) for machines without one.
//!
//! It counts calls, enforces a capacity, fails on request and tracks leaks. Device memory is a range of addresses with the
//! bytes that copies wrote; pinned memory is real host memory. Its streams complete work at a chosen [`Pace`], in an
//! order given by a seed, and it reports every [`Violation`]: a use of a byte before its last use has ended.

mod contents;
mod driver;
mod faults;
mod memory;
mod random;
mod streams;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::memory::{MemoryKind, Span};
use crate::base::sync::{Mutex, lock};
use crate::base::units::Bytes;
use crate::source::driver::{FreeFaults, MemoryCopy, Poison, StreamHandle};
use crate::source::error::SourceError;
use crate::source::host::HostMemory;

use contents::Contents;
use faults::Struck;
use memory::{Live, Virtual};
use streams::{Streams, Work};

pub use faults::{CallCounts, DeviceCall, Fault, FaultTime};
pub use memory::GRANULARITY;
pub use streams::Pace;
pub use watch::{MemoryUse, Violation};

/// The first address of the simulated device, near the addresses of a CUDA driver.
const BASE: u64 = 0x7000_0000_0000;

/// The first address of reserved ranges, separate from allocations.
const VIRTUAL_BASE: u64 = 0x3000_0000_0000;

/// Numbers the devices of a process, so that handles of one are invalid on another.
static NEXT_DEVICE: AtomicU64 = AtomicU64::new(1);

/// A device with a given capacity and no real memory.
///
/// Addresses are never reused, so a use after free is detectable. Allocations are adjacent, so a pool that merges them
/// by mistake is detected.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::{Fault, DeviceCall, SimDevice, FaultTime};
/// use bfc_core::{Bytes, DeviceMemory, MIB, MemoryKind, SubAllocator};
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)));
/// device.inject(Fault::new(DeviceCall::AllocateDevice, FaultTime::Call(2)));
/// let memory = DeviceMemory::new(device.clone());
/// assert!(memory.allocate(256, MIB).is_ok());
/// assert!(memory.allocate(256, MIB).is_err());
/// assert_eq!(device.live(MemoryKind::Device).len(), 1);
/// ```
#[derive(Debug)]
pub struct SimDevice {
    name: String,
    capacity: u64,
    pinned_limit: Option<u64>,
    maps: bool,
    host: HostMemory,
    poison: Poison,
    state: Mutex<LockedDevice>,
}

#[derive(Debug)]
struct LockedDevice {
    /// The next device address.
    next: u64,
    /// The next address of a range.
    next_range: u64,
    device: Live,
    pinned: Live,
    mapped: Virtual,
    contents: Contents,
    streams: Streams,
    calls: CallCounts,
    faults: Vec<Fault>,
    free_faults: FreeFaults,
}

impl SimDevice {
    /// Creates a device with `capacity` bytes of device memory and unlimited pinned memory. Its work ends immediately.
    #[must_use]
    pub fn new(capacity: Bytes) -> Self {
        let state = LockedDevice {
            next: BASE,
            next_range: VIRTUAL_BASE,
            device: Live::default(),
            pinned: Live::default(),
            mapped: Virtual::default(),
            contents: Contents::default(),
            streams: Streams::new(Pace::AtOnce, NEXT_DEVICE.fetch_add(1, Ordering::Relaxed)),
            calls: CallCounts::default(),
            faults: Vec::new(),
            free_faults: FreeFaults::default(),
        };
        Self {
            name: "simulated device".to_owned(),
            capacity: capacity.get(),
            pinned_limit: None,
            maps: true,
            host: HostMemory::new(),
            poison: Poison::default(),
            state: Mutex::new(state),
        }
    }

    /// Sets the name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Limits the pinned memory.
    #[must_use]
    pub const fn with_pinned_limit(mut self, limit: Bytes) -> Self {
        self.pinned_limit = Some(limit.get());
        self
    }

    /// Sets the pace of work. For a device without submitted work.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        lock(&self.state).streams.set_pace(pace);
        self
    }

    /// Disables virtual memory.
    #[must_use]
    pub const fn without_mapping(mut self) -> Self {
        self.maps = false;
        self
    }

    /// Injects a fault into later calls. Several faults add up.
    pub fn inject(&self, fault: Fault) {
        lock(&self.state).faults.push(fault);
    }

    /// Removes all injected faults.
    pub fn clear_faults(&self) {
        lock(&self.state).faults.clear();
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        lock(&self.state).calls
    }

    /// Returns the live allocations by address. A test for leaks asserts that this is empty.
    #[must_use]
    pub fn live(&self, kind: MemoryKind) -> Vec<Span> {
        let state = lock(&self.state);
        match kind {
            MemoryKind::Device => state.device.iter().collect(),
            MemoryKind::PinnedHost => state.pinned.iter().collect(),
            MemoryKind::Host | MemoryKind::LentHost | MemoryKind::AddressOnly => Vec::new(),
        }
    }

    /// Returns the mapped spans in order of address.
    #[must_use]
    pub fn mappings(&self) -> Vec<Span> {
        lock(&self.state).mapped.mappings()
    }

    /// Returns the live address ranges and memory handles.
    #[must_use]
    pub fn ranges_and_handles(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.mapped.ranges.iter().count(), state.mapped.handles())
    }

    /// Returns the live streams and events.
    #[must_use]
    pub fn open_streams_and_events(&self) -> usize {
        lock(&self.state).streams.open()
    }

    /// Submits work that uses memory to a stream, and checks it: see [`violations`](Self::violations).
    ///
    /// # Errors
    /// Fails with [`SourceError::Driver`] if there is no such stream.
    pub fn launch(&self, stream: StreamHandle, uses: &[MemoryUse]) -> Result<(), SourceError> {
        self.work(DeviceCall::Launch, |state| state.give(stream, Work::Launch, uses.to_vec()))
    }

    /// Ends up to `pieces` pieces of work, from randomly chosen streams. Returns how many there were.
    pub fn advance(&self, pieces: usize) -> usize {
        let state = &mut *lock(&self.state);
        let mut ended = 0;
        while ended < pieces {
            let Some(work) = state.streams.next() else { break };
            state.end(work);
            ended += 1;
        }
        ended
    }

    /// Ends all work of a stream, and all work that it waits for.
    pub fn finish(&self, stream: StreamHandle) {
        let state = &mut *lock(&self.state);
        while let Some(work) = state.streams.next_of(stream.0) {
            state.end(work);
        }
    }

    /// Returns the invalid uses of memory so far. A test of code that orders work asserts that there are none.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.state).streams.violations.clone()
    }

    /// Returns the contents of device memory written by copies; a pattern elsewhere.
    #[must_use]
    pub fn read(&self, span: Span) -> Vec<u8> {
        lock(&self.state).contents.read(span)
    }

    /// Counts a call, and fails if a fault applies or the device is lost.
    fn enter(&self, state: &mut LockedDevice, operation: DeviceCall, bytes: u64) -> Result<(), SourceError> {
        self.poison.check()?;
        state.calls.count(operation);
        let mut outcome = Ok(());
        for fault in &mut state.faults {
            // Every fault counts the call, even if another one already applies.
            let error = match fault.strike(operation, bytes) {
                None => continue,
                Some(Struck::Fails(error)) => error,
                Some(Struck::Poisons(reason)) => self.poison.strike(&self.name, operation.name(), reason),
            };
            outcome = outcome.and(Err(error));
        }
        outcome
    }

    /// Makes a call that fails if `call` returns a reason.
    fn call<T>(
        &self,
        operation: DeviceCall,
        call: impl FnOnce(&mut LockedDevice) -> Result<T, String>,
    ) -> Result<T, SourceError> {
        let state = &mut *lock(&self.state);
        self.enter(state, operation, 0)?;
        call(state).map_err(|reason| SourceError::Driver { call: operation.name(), reason })
    }

    /// Makes a call about streams and events, during which work may progress.
    fn work<T>(
        &self,
        operation: DeviceCall,
        call: impl FnOnce(&mut LockedDevice) -> Result<T, String>,
    ) -> Result<T, SourceError> {
        self.call(operation, |state| {
            let outcome = call(state);
            while let Some(work) = state.streams.next_by_pace() {
                state.end(work);
            }
            outcome
        })
    }

    /// Makes a call that frees something, and records its failure.
    fn give_back<T>(
        &self,
        operation: DeviceCall,
        call: impl FnOnce(&mut LockedDevice) -> Result<T, String>,
    ) -> Result<T, SourceError> {
        let outcome = self.call(operation, call);
        if let Err(error) = &outcome {
            lock(&self.state).free_faults.record(error.clone());
        }
        outcome
    }
}

impl LockedDevice {
    /// Returns the bytes of allocated device memory.
    const fn used(&self) -> u64 {
        self.device.bytes + self.mapped.bytes
    }

    /// Submits work to a stream, and checks that its memory exists.
    fn give(&mut self, stream: StreamHandle, work: Work, uses: Vec<MemoryUse>) -> Result<(), String> {
        let is_there =
            |span| self.device.holds(span) || self.mapped.is_accessible(span) || self.pinned.holds(span);
        if let Some(missing) = uses.iter().find(|used| !is_there(used.span)) {
            self.streams.violations.push(Violation::NoMemory { span: missing.span, stream });
        }
        self.streams.give(stream.0, work, uses)
    }

    /// Executes the effect of ended work.
    fn end(&mut self, work: Work) {
        let Work::Copy(copy) = work else { return };
        let host = match copy {
            MemoryCopy::ToDevice { from: address, bytes, .. }
            | MemoryCopy::ToHost { to: address, bytes, .. } => Some(Span { address, bytes }),
            MemoryCopy::OnDevice { .. } => None,
        };
        if host.is_none_or(|host| self.pinned.holds(host)) {
            // SAFETY: the host range is live pinned memory. The caller of the copy guaranteed that no other code uses
            // it meanwhile.
            unsafe { self.contents.copy(copy) };
        }
    }

    fn end_all(&mut self) {
        while let Some(work) = self.streams.next() {
            self.end(work);
        }
    }

    /// Records a violation if freed memory is still in use.
    fn check_unused(&mut self, span: Span) {
        if let Some(stream) = self.streams.user_of(span) {
            self.streams.violations.push(Violation::InUse { span, stream });
        }
    }
}
