//! Fault injection: which call fails, when and how.

use super::random::nth;
use crate::source::error::SourceError;

/// A call of a device that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(usize)]
pub enum DeviceCall {
    /// Allocating device memory.
    AllocateDevice,
    /// Freeing device memory.
    FreeDevice,
    /// Allocating pinned memory.
    AllocatePinned,
    /// Freeing pinned memory.
    FreePinned,
    /// Reserving a range of addresses.
    Reserve,
    /// Releasing a range of addresses.
    ReleaseRange,
    /// Allocating memory without an address.
    Create,
    /// Releasing a handle.
    Release,
    /// Mapping memory.
    Map,
    /// Unmapping memory.
    Unmap,
    /// Granting access to mapped memory.
    SetAccess,
    /// Creating a stream.
    CreateStream,
    /// Destroying a stream.
    DestroyStream,
    /// Creating an event.
    CreateEvent,
    /// Destroying an event.
    DestroyEvent,
    /// Recording an event.
    Record,
    /// Making a stream wait.
    Wait,
    /// Querying an event.
    Query,
    /// Waiting for an event or for the device.
    Synchronize,
    /// Submitting a copy.
    Copy,
    /// Submitting other work.
    Launch,
}

/// The number of operations.
const OPERATIONS: usize = DeviceCall::Launch as usize + 1;

impl DeviceCall {
    /// Returns the call's name in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllocateDevice => "allocate_device",
            Self::FreeDevice => "free_device",
            Self::AllocatePinned => "allocate_pinned",
            Self::FreePinned => "free_pinned",
            Self::Reserve => "reserve",
            Self::ReleaseRange => "release_range",
            Self::Create => "create",
            Self::Release => "release",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::SetAccess => "set_access",
            Self::CreateStream => "create_stream",
            Self::DestroyStream => "destroy_stream",
            Self::CreateEvent => "create_event",
            Self::DestroyEvent => "destroy_event",
            Self::Record => "record",
            Self::Wait => "wait",
            Self::Query => "query",
            Self::Synchronize => "synchronize",
            Self::Copy => "copy",
            Self::Launch => "launch",
        }
    }
}

/// The number of calls of each [`DeviceCall`], failed ones included. Calls to a lost device never reach it and are not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; OPERATIONS]);

impl CallCounts {
    /// Returns the calls of one operation.
    #[must_use]
    pub const fn of(&self, operation: DeviceCall) -> u64 {
        self.0[operation as usize]
    }

    /// Returns all calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) const fn count(&mut self, operation: DeviceCall) {
        self.0[operation as usize] += 1;
    }
}

/// The calls after the injection that fail. Matching calls are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FaultTime {
    /// This call only.
    Call(u64),
    /// Every call after this many.
    After(u64),
    /// Each call with this probability from 0 to 1; the seed determines the sequence.
    Random {
        /// The probability of a failure.
        probability: f64,
        /// The seed of the sequence.
        seed: u64,
    },
}

/// The error of a failing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Broken,
    Exhausted,
    Sticky,
}

/// The effect of a fault on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Struck {
    /// The call fails.
    Fails(SourceError),
    /// The call fails for this reason, and the device is lost.
    Poisons(String),
}

/// One injected fault of a simulated device.
#[derive(Clone, Debug)]
pub struct Fault {
    /// `None` for calls of every operation.
    operation: Option<DeviceCall>,
    when: FaultTime,
    failure: Failure,
    /// Matching calls since the injection.
    calls: u64,
}

impl Fault {
    /// Makes calls of `operation` fail with [`SourceError::Driver`].
    #[must_use]
    pub const fn new(operation: DeviceCall, when: FaultTime) -> Self {
        Self { operation: Some(operation), when, failure: Failure::Broken, calls: 0 }
    }

    /// Makes calls of `operation` fail with [`SourceError::Exhausted`].
    #[must_use]
    pub const fn exhausted(operation: DeviceCall, when: FaultTime) -> Self {
        Self { operation: Some(operation), when, failure: Failure::Exhausted, calls: 0 }
    }

    /// Makes calls of `operation`, and all calls after them, fail with [`SourceError::Poisoned`].
    #[must_use]
    pub const fn sticky(operation: DeviceCall, when: FaultTime) -> Self {
        Self { operation: Some(operation), when, failure: Failure::Sticky, calls: 0 }
    }

    /// Extends the fault to calls of every operation.
    #[must_use]
    pub const fn of_any_operation(mut self) -> Self {
        self.operation = None;
        self
    }

    /// Counts a call for `bytes` bytes, and returns its outcome if this fault applies.
    pub(super) fn strike(&mut self, operation: DeviceCall, bytes: u64) -> Option<Struck> {
        if self.operation.is_some_and(|only| only != operation) {
            return None;
        }
        self.calls += 1;
        let strikes = match self.when {
            FaultTime::Call(call) => self.calls == call,
            FaultTime::After(calls) => self.calls > calls,
            FaultTime::Random { probability, seed } => unit(seed, self.calls) < probability,
        };
        let reason = || format!("injected fault at call {}", self.calls);
        strikes.then(|| match self.failure {
            Failure::Exhausted => Struck::Fails(SourceError::Exhausted { bytes }),
            Failure::Broken => {
                Struck::Fails(SourceError::Driver { call: operation.name(), reason: reason() })
            }
            Failure::Sticky => Struck::Poisons(reason()),
        })
    }
}

/// Returns the `index`-th number of the sequence `seed`, uniform in [0, 1).
fn unit(seed: u64, index: u64) -> f64 {
    (nth(seed, index) >> 11) as f64 / (1_u64 << 53) as f64
}
