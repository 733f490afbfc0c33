//! A simulated device: the driver's side of a device on a machine that has none.
//!
//! It counts calls, keeps to a capacity, fails on demand, and remembers what is out, so that growth, limits, faults and
//! leaks can be tested anywhere. Its device memory is addresses with nothing behind them; its pinned memory is real
//! host memory, since the host may follow such addresses.

mod faults;

use std::collections::BTreeMap;

use crate::driver::{Driver, FreeFaults, MemoryInfo};
use crate::error::SourceError;
use crate::host::HostMemory;
use crate::memory::{MemoryKind, Span};
use crate::sub_allocator::SubAllocator;
use crate::sync::{Mutex, lock};
use crate::units::{Bytes, round_up};

pub use faults::{Fault, Operation, When};

/// Where the simulated device's addresses start: where a CUDA driver places them, roughly.
const BASE: u64 = 0x7000_0000_0000;

/// Alignment of all addresses, the least that drivers promise.
const ALIGNMENT: u64 = 256;

/// How often a device was asked for each [`Operation`], refused calls included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls for device memory.
    pub allocate_device: u64,
    /// Device memory given back.
    pub free_device: u64,
    /// Calls for pinned memory.
    pub allocate_pinned: u64,
    /// Pinned memory given back.
    pub free_pinned: u64,
}

/// A device of a given capacity with nothing behind it.
///
/// Addresses are never used twice, so that a use after the free is told from a use; allocations lie side by side, so
/// that a pool which wrongly joins them is found out.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::{Fault, Operation, SimDevice, When};
/// use bfc_core::{Bytes, DeviceMemory, MIB, MemoryKind, SubAllocator};
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)));
/// device.inject(Fault::new(Operation::AllocateDevice, When::Call(2)));
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
    host: HostMemory,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The first device address never handed out.
    next: u64,
    device: Live,
    pinned: Live,
    calls: Calls,
    faults: Vec<Fault>,
    free_faults: FreeFaults,
}

/// Allocations of one memory that are out.
#[derive(Debug, Default)]
struct Live {
    spans: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Live {
    fn insert(&mut self, span: Span) {
        self.spans.insert(span.address, span.bytes);
        self.bytes += span.bytes;
    }

    fn remove(&mut self, address: u64) -> Option<Span> {
        let bytes = self.spans.remove(&address)?;
        self.bytes -= bytes;
        Some(Span { address, bytes })
    }
}

impl SimDevice {
    /// A device with `capacity` bytes of its own memory, and pinned memory without a limit.
    #[must_use]
    pub fn new(capacity: Bytes) -> Self {
        let state = State {
            next: BASE,
            device: Live::default(),
            pinned: Live::default(),
            calls: Calls::default(),
            faults: Vec::new(),
            free_faults: FreeFaults::default(),
        };
        Self {
            name: "simulated device".to_owned(),
            capacity: capacity.get(),
            pinned_limit: None,
            host: HostMemory::new(),
            state: Mutex::new(state),
        }
    }

    /// The same device with at most `limit` bytes of pinned memory.
    #[must_use]
    pub const fn with_pinned_limit(mut self, limit: Bytes) -> Self {
        self.pinned_limit = Some(limit.get());
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
    pub fn calls(&self) -> Calls {
        lock(&self.state).calls
    }

    /// What was taken and not given back, by address. A test for leaks asserts that it is empty.
    #[must_use]
    pub fn live(&self, kind: MemoryKind) -> Vec<Span> {
        let state = lock(&self.state);
        let live = match kind {
            MemoryKind::Device => &state.device,
            MemoryKind::PinnedHost => &state.pinned,
            MemoryKind::Host | MemoryKind::AddressOnly => return Vec::new(),
        };
        live.spans.iter().map(|(&address, &bytes)| Span { address, bytes }).collect()
    }
}

impl State {
    /// Counts a call, and refuses it if a fault strikes.
    fn enter(&mut self, operation: Operation, bytes: u64) -> Result<(), SourceError> {
        let count = match operation {
            Operation::AllocateDevice => &mut self.calls.allocate_device,
            Operation::FreeDevice => &mut self.calls.free_device,
            Operation::AllocatePinned => &mut self.calls.allocate_pinned,
            Operation::FreePinned => &mut self.calls.free_pinned,
        };
        *count += 1;
        let mut outcome = Ok(());
        for fault in &mut self.faults {
            // Every fault counts the call, also when another one has struck already.
            outcome = outcome.and(fault.strike(operation, bytes));
        }
        outcome
    }

    /// Takes an allocation out of the live ones. A fault leaves it there: what a driver refuses to free stays taken.
    fn release(&mut self, operation: Operation, address: u64) -> Option<Span> {
        let outcome = self.enter(operation, 0).and_then(|()| {
            let live = match operation {
                Operation::FreePinned => &mut self.pinned,
                _ => &mut self.device,
            };
            let reason = || format!("nothing that is alive was allocated at {address:#x}");
            live.remove(address)
                .ok_or_else(|| SourceError::Driver { call: operation.name(), reason: reason() })
        });
        outcome.map_err(|error| self.free_faults.record(error)).ok()
    }
}

// SAFETY: device addresses are unique and never followed; pinned memory is zeroed memory of the system.
unsafe impl Driver for SimDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let used = lock(&self.state).device.bytes;
        Ok(MemoryInfo { free: self.capacity - used, total: self.capacity })
    }

    fn allocate_device(&self, bytes: u64) -> Result<u64, SourceError> {
        let exhausted = SourceError::Exhausted { bytes };
        let mut state = lock(&self.state);
        state.enter(Operation::AllocateDevice, bytes)?;
        if bytes == 0 || bytes > self.capacity - state.device.bytes {
            return Err(exhausted);
        }
        let address = state.next;
        let end = address.checked_add(bytes).and_then(|end| round_up(end, ALIGNMENT));
        state.next = end.ok_or(exhausted)?;
        state.device.insert(Span { address, bytes });
        Ok(address)
    }

    unsafe fn free_device(&self, address: u64) {
        lock(&self.state).release(Operation::FreeDevice, address);
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<u64, SourceError> {
        let mut state = lock(&self.state);
        state.enter(Operation::AllocatePinned, bytes)?;
        let room = self.pinned_limit.unwrap_or(u64::MAX).saturating_sub(state.pinned.bytes);
        if bytes > room {
            return Err(SourceError::Exhausted { bytes });
        }
        let region = self.host.allocate(ALIGNMENT, bytes)?;
        state.pinned.insert(region);
        Ok(region.address)
    }

    unsafe fn free_pinned(&self, address: u64) {
        let region = lock(&self.state).release(Operation::FreePinned, address);
        if let Some(region) = region {
            // SAFETY: the region was out until just now, and the caller promises that nothing uses it.
            unsafe { self.host.free(region) };
        }
    }

    fn free_faults(&self) -> FreeFaults {
        lock(&self.state).free_faults.clone()
    }
}
