//! Faults on demand: which call fails, when and how.

use super::random::nth;
use crate::source::error::SourceError;

/// A call of a device that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(usize)]
pub enum Operation {
    /// Taking device memory.
    AllocateDevice,
    /// Giving device memory back.
    FreeDevice,
    /// Taking pinned memory.
    AllocatePinned,
    /// Giving pinned memory back.
    FreePinned,
    /// Reserving a range of addresses.
    Reserve,
    /// Giving a range of addresses back.
    ReleaseRange,
    /// Taking memory without an address.
    Create,
    /// Giving a handle up.
    Release,
    /// Putting memory behind addresses.
    Map,
    /// Taking it away from there.
    Unmap,
    /// Letting the device access it.
    SetAccess,
    /// Making a stream.
    CreateStream,
    /// Giving a stream up.
    DestroyStream,
    /// Making an event.
    CreateEvent,
    /// Giving an event up.
    DestroyEvent,
    /// Recording an event.
    Record,
    /// Making a stream wait.
    Wait,
    /// Asking for an event.
    Query,
    /// Waiting for an event or for the device.
    Synchronise,
    /// Giving a stream a copy.
    Copy,
    /// Giving a stream other work.
    Launch,
}

/// How many operations there are.
const OPERATIONS: usize = Operation::Launch as usize + 1;

impl Operation {
    /// The call's name in errors.
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
            Self::Synchronise => "synchronise",
            Self::Copy => "copy",
            Self::Launch => "launch",
        }
    }
}

/// How often a device was asked for each [`Operation`], refused calls included. CallCounts of a device that is lost never
/// reach it and are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; OPERATIONS]);

impl CallCounts {
    /// How often this one was asked for.
    #[must_use]
    pub const fn of(&self, operation: Operation) -> u64 {
        self.0[operation as usize]
    }

    /// All calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) const fn count(&mut self, operation: Operation) {
        self.0[operation as usize] += 1;
    }
}

/// Which of the calls that follow the injection fail. Matching calls are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FaultTime {
    /// This call alone.
    Call(u64),
    /// Every call after this many.
    After(u64),
    /// Each call with this probability from 0 to 1; one seed gives one sequence.
    Random {
        /// The share of calls that fail.
        probability: f64,
        /// Chooses the sequence.
        seed: u64,
    },
}

/// What a failing call says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Broken,
    Exhausted,
    Sticky,
}

/// What a fault does to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Struck {
    /// It fails, and that is all.
    Fails(SourceError),
    /// It fails for this reason, and the device with it.
    Poisons(String),
}

/// One fault of a simulated device.
#[derive(Clone, Debug)]
pub struct Fault {
    /// `None` for calls of every operation.
    operation: Option<Operation>,
    when: FaultTime,
    failure: Failure,
    /// Matching calls since the injection.
    calls: u64,
}

impl Fault {
    /// CallCounts of `operation` fail as broken: [`SourceError::Driver`].
    #[must_use]
    pub const fn new(operation: Operation, when: FaultTime) -> Self {
        Self { operation: Some(operation), when, failure: Failure::Broken, calls: 0 }
    }

    /// CallCounts of `operation` fail as out of memory: [`SourceError::Exhausted`].
    #[must_use]
    pub const fn exhausted(operation: Operation, when: FaultTime) -> Self {
        Self { operation: Some(operation), when, failure: Failure::Exhausted, calls: 0 }
    }

    /// CallCounts of `operation` fail for good, and all calls after them: [`SourceError::Poisoned`].
    #[must_use]
    pub const fn sticky(operation: Operation, when: FaultTime) -> Self {
        Self { operation: Some(operation), when, failure: Failure::Sticky, calls: 0 }
    }

    /// The same fault in calls of every operation.
    #[must_use]
    pub const fn of_any_operation(mut self) -> Self {
        self.operation = None;
        self
    }

    /// Counts a call for `bytes` bytes, and says what becomes of it if this fault strikes.
    pub(super) fn strike(&mut self, operation: Operation, bytes: u64) -> Option<Struck> {
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

/// The `index`-th number of the sequence `seed`, evenly spread over [0, 1).
fn unit(seed: u64, index: u64) -> f64 {
    (nth(seed, index) >> 11) as f64 / (1_u64 << 53) as f64
}
