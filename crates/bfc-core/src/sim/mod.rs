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

pub use faults::{CallCounts, Fault, FaultTime, Operation};
pub use streams::Pace;
pub use watch::{MemoryUse, Violation};

/// Where the simulated device's addresses start: where a CUDA driver places them, roughly.
const BASE: u64 = 0x7000_0000_0000;

/// Where its ranges of addresses start, which are kept apart from its allocations.
const VIRTUAL_BASE: u64 = 0x3000_0000_0000;

/// Numbers the devices of a process, so that the handle of one is none of another.
static NEXT_DEVICE: AtomicU64 = AtomicU64::new(1);

/// A device of a given capacity with nothing behind it.
///
/// Addresses are never used twice, so that a use after the free is told from a use; allocations lie side by side, so
/// that a pool which wrongly joins them is found out.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::{Fault, Operation, SimDevice, FaultTime};
/// use bfc_core::{Bytes, DeviceMemory, MIB, MemoryKind, SubAllocator};
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)));
/// device.inject(Fault::new(Operation::AllocateDevice, FaultTime::Call(2)));
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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The first device address never handed out.
    next: u64,
    /// The first address of a range never reserved.
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
    /// A device with `capacity` bytes of its own memory, and pinned memory without a limit. Work on it ends at once.
    #[must_use]
    pub fn new(capacity: Bytes) -> Self {
        let state = State {
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

    /// The same device under another name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same device with at most `limit` bytes of pinned memory.
    #[must_use]
    pub const fn with_pinned_limit(mut self, limit: Bytes) -> Self {
        self.pinned_limit = Some(limit.get());
        self
    }

    /// The same device, on which work ends at another pace. For a device that was given none yet.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        lock(&self.state).streams.set_pace(pace);
        self
    }

    /// The same device, which cannot keep addresses and memory apart.
    #[must_use]
    pub const fn without_mapping(mut self) -> Self {
        self.maps = false;
        self
    }

    /// Makes calls fail from now on as `fault` says. Several faults add up.
    pub fn inject(&self, fault: Fault) {
        lock(&self.state).faults.push(fault);
    }

    /// Lets all calls through again.
    pub fn clear_faults(&self) {
        lock(&self.state).faults.clear();
    }

    /// How often the device was called so far.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        lock(&self.state).calls
    }

    /// What was taken and not given back, by address. A test for leaks asserts that it is empty.
    #[must_use]
    pub fn live(&self, kind: MemoryKind) -> Vec<Span> {
        let state = lock(&self.state);
        match kind {
            MemoryKind::Device => state.device.iter().collect(),
            MemoryKind::PinnedHost => state.pinned.iter().collect(),
            MemoryKind::Host | MemoryKind::LentHost | MemoryKind::AddressOnly => Vec::new(),
        }
    }

    /// Where memory is mapped, in the order of addresses.
    #[must_use]
    pub fn mappings(&self) -> Vec<Span> {
        lock(&self.state).mapped.mappings()
    }

    /// What else was made and not given back: ranges of addresses and handles of memory.
    #[must_use]
    pub fn ranges_and_handles(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.mapped.ranges.iter().count(), state.mapped.handles())
    }

    /// Streams and events that were made and not destroyed.
    #[must_use]
    pub fn open_streams_and_events(&self) -> usize {
        lock(&self.state).streams.open()
    }

    /// Gives a stream work that uses memory, and checks that it may: see [`violations`](Self::violations).
    ///
    /// # Errors
    /// [`SourceError::Driver`] if there is no such stream.
    pub fn launch(&self, stream: StreamHandle, uses: &[MemoryUse]) -> Result<(), SourceError> {
        self.work(Operation::Launch, |state| state.give(stream, Work::Launch, uses.to_vec()))
    }

    /// Ends up to `pieces` pieces of work, of streams taken by chance; how many there were.
    pub fn advance(&self, pieces: usize) -> usize {
        let state = &mut *lock(&self.state);
        let mut ended = 0;
        while ended < pieces
            && let Some(work) = state.streams.next()
        {
            state.end(work);
            ended += 1;
        }
        ended
    }

    /// Ends all work of a stream, and what that waits for.
    pub fn finish(&self, stream: StreamHandle) {
        let state = &mut *lock(&self.state);
        while let Some(work) = state.streams.next_of(stream.0) {
            state.end(work);
        }
    }

    /// The uses of memory so far that were against the rules. A test of anything that orders work asserts that there are
    /// none.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.state).streams.violations.clone()
    }

    /// What copies put into the device's memory; elsewhere a pattern.
    #[must_use]
    pub fn read(&self, span: Span) -> Vec<u8> {
        lock(&self.state).contents.read(span)
    }

    /// Counts a call, and refuses it if a fault strikes or has struck for good.
    fn enter(&self, state: &mut State, operation: Operation, bytes: u64) -> Result<(), SourceError> {
        self.poison.check()?;
        state.calls.count(operation);
        let mut outcome = Ok(());
        for fault in &mut state.faults {
            // Every fault counts the call, also when another one has struck already.
            let error = match fault.strike(operation, bytes) {
                None => continue,
                Some(Struck::Fails(error)) => error,
                Some(Struck::Poisons(reason)) => self.poison.strike(&self.name, operation.name(), reason),
            };
            outcome = outcome.and(Err(error));
        }
        outcome
    }

    /// Makes a call that is refused as broken if `call` says why.
    fn call<T>(
        &self,
        operation: Operation,
        call: impl FnOnce(&mut State) -> Result<T, String>,
    ) -> Result<T, SourceError> {
        let state = &mut *lock(&self.state);
        self.enter(state, operation, 0)?;
        call(state).map_err(|reason| SourceError::Driver { call: operation.name(), reason })
    }

    /// Makes a call about streams and events, at which work may go on.
    fn work<T>(
        &self,
        operation: Operation,
        call: impl FnOnce(&mut State) -> Result<T, String>,
    ) -> Result<T, SourceError> {
        self.call(operation, |state| {
            let outcome = call(state);
            while let Some(work) = state.streams.next_by_pace() {
                state.end(work);
            }
            outcome
        })
    }

    /// Makes a call that gives something back, and keeps its failure.
    fn give_back<T>(
        &self,
        operation: Operation,
        call: impl FnOnce(&mut State) -> Result<T, String>,
    ) -> Result<T, SourceError> {
        let outcome = self.call(operation, call);
        if let Err(error) = &outcome {
            lock(&self.state).free_faults.record(error.clone());
        }
        outcome
    }
}

impl State {
    /// Bytes of device memory taken.
    const fn used(&self) -> u64 {
        self.device.bytes + self.mapped.bytes
    }

    /// Gives a stream work, with a look at whether the memory is there.
    fn give(&mut self, stream: StreamHandle, work: Work, uses: Vec<MemoryUse>) -> Result<(), String> {
        let is_there =
            |span| self.device.holds(span) || self.mapped.is_accessible(span) || self.pinned.holds(span);
        if let Some(missing) = uses.iter().find(|used| !is_there(used.span)) {
            self.streams.violations.push(Violation::NoMemory { span: missing.span, stream });
        }
        self.streams.give(stream.0, work, uses)
    }

    /// What a piece of work does when it ends.
    fn end(&mut self, work: Work) {
        let Work::Copy(copy) = work else { return };
        let host = match copy {
            MemoryCopy::ToDevice { from: address, bytes, .. }
            | MemoryCopy::ToHost { to: address, bytes, .. } => Some(Span { address, bytes }),
            MemoryCopy::OnDevice { .. } => None,
        };
        if host.is_none_or(|host| self.pinned.holds(host)) {
            // SAFETY: the host's part is pinned memory that is alive, and whoever gave the copy promised that nobody
            // else uses it meanwhile.
            unsafe { self.contents.copy(copy) };
        }
    }

    fn end_all(&mut self) {
        while let Some(work) = self.streams.next() {
            self.end(work);
        }
    }

    /// Notes if memory that goes is still used.
    fn check_unused(&mut self, span: Span) {
        if let Some(stream) = self.streams.user_of(span) {
            self.streams.violations.push(Violation::InUse { span, stream });
        }
    }
}
