//! Faults on demand: which call fails, and when.

use crate::error::SourceError;

/// A call of a device that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Taking device memory.
    AllocateDevice,
    /// Giving device memory back.
    FreeDevice,
    /// Taking pinned memory.
    AllocatePinned,
    /// Giving pinned memory back.
    FreePinned,
}

impl Operation {
    /// The call's name in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllocateDevice => "allocate_device",
            Self::FreeDevice => "free_device",
            Self::AllocatePinned => "allocate_pinned",
            Self::FreePinned => "free_pinned",
        }
    }
}

/// Which of the calls that follow the injection fail. Calls of one [`Operation`] are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum When {
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

/// One fault of a simulated device.
#[derive(Clone, Debug)]
pub struct Fault {
    operation: Operation,
    when: When,
    exhausted: bool,
    /// Calls of the operation since the injection.
    calls: u64,
}

impl Fault {
    /// Calls of `operation` fail as broken: [`SourceError::Driver`].
    #[must_use]
    pub const fn new(operation: Operation, when: When) -> Self {
        Self { operation, when, exhausted: false, calls: 0 }
    }

    /// Calls of `operation` fail as out of memory: [`SourceError::Exhausted`].
    #[must_use]
    pub const fn exhausted(operation: Operation, when: When) -> Self {
        Self { operation, when, exhausted: true, calls: 0 }
    }

    /// Counts a call for `bytes` bytes, and refuses it if this fault says so.
    pub(super) fn strike(&mut self, operation: Operation, bytes: u64) -> Result<(), SourceError> {
        if operation != self.operation {
            return Ok(());
        }
        self.calls += 1;
        let strikes = match self.when {
            When::Call(call) => self.calls == call,
            When::After(calls) => self.calls > calls,
            When::Random { probability, seed } => unit(seed, self.calls) < probability,
        };
        match (strikes, self.exhausted) {
            (false, _) => Ok(()),
            (true, true) => Err(SourceError::Exhausted { bytes }),
            (true, false) => {
                let reason = format!("injected fault at call {}", self.calls);
                Err(SourceError::Driver { call: operation.name(), reason })
            }
        }
    }
}

/// The `index`-th number of the sequence `seed`, evenly spread over [0, 1): SplitMix64 (Steele, Lea, Flood 2014).
fn unit(seed: u64, index: u64) -> f64 {
    let mut bits = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
