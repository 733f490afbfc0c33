//! What can go wrong, as data.

use crate::allocator::oom::OomReport;
use crate::base::memory::{Block, MemoryKind};
use crate::base::units::Bytes;
use crate::policy::Inconsistent;
use crate::registry::PoolError;
use crate::wrappers::guard::Damage;

/// An allocation that did not happen. The pool is as it was before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No memory, even after growing, waiting and giving back what was idle. The report says why.
    #[error("{0}")]
    OutOfMemory(Box<OomReport>),
    /// The alignment is not a power of two.
    #[error("{allocator}: alignment {alignment} is not a power of two")]
    BadAlignment {
        /// The allocator's name.
        allocator: String,
        /// The alignment asked for.
        alignment: u64,
    },
    /// The size leaves the address space once rounded and aligned.
    #[error("{allocator}: a request for {bytes} bytes with alignment {alignment} leaves the address space")]
    TooLarge {
        /// The allocator's name.
        allocator: String,
        /// The bytes asked for.
        bytes: u64,
        /// The alignment asked for.
        alignment: u64,
    },
    /// A sub-allocator or a visitor called back into the allocator that was calling it.
    #[error("{allocator}: called back from its own sub-allocator or visitor")]
    Reentrant {
        /// The allocator's name.
        allocator: String,
    },
    /// The source of memory failed for a reason other than being out of it.
    #[error("{allocator}: {error}")]
    Source {
        /// The allocator's name.
        allocator: String,
        /// What the source said.
        error: SourceError,
    },
    /// The pool's own bookkeeping was overwritten. It places nothing more by it.
    #[error("{allocator}: {error}")]
    Damaged {
        /// The allocator's name.
        allocator: String,
        /// What was overwritten.
        error: Inconsistent,
    },
}

impl AllocError {
    /// The out-of-memory report, if that is what happened.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OomReport> {
        match self {
            Self::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }
}

/// A block that was not given back, or not found. The pool is as it was before, but for [`OutOfBounds`](Self::OutOfBounds).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The block was given back before; its memory may be somebody else's by now.
    #[error("block {:#x} (allocation {}) was already given back", block.address, block.id)]
    Stale {
        /// The block as given.
        block: Block,
    },
    /// The block came from another allocator.
    #[error("block {:#x} (allocation {}) belongs to another pool", block.address, block.id)]
    Foreign {
        /// The block as given.
        block: Block,
    },
    /// The block's fields are not those of any block this allocator handed out.
    #[error("block {:#x} of {} bytes (allocation {}) was never handed out", block.address, block.bytes, block.id)]
    Unknown {
        /// The block as given.
        block: Block,
    },
    /// What the pool knew of the block was overwritten.
    #[error("what is known of block {:#x} (allocation {}) was overwritten", block.address, block.id)]
    Damaged {
        /// The block as given.
        block: Block,
    },
    /// No live block starts at this address.
    #[error("no live block starts at address {address:#x}")]
    NoBlockAt {
        /// The address as given.
        address: u64,
    },
    /// The block was given back, but something had written outside of it. It counts as given back, and its memory is
    /// kept out of use by the [`GuardAllocator`](crate::GuardAllocator) that says so.
    #[error("{damage}")]
    OutOfBounds {
        /// What was found.
        damage: Damage,
    },
    /// A sub-allocator or a visitor called back into the allocator that was calling it.
    #[error("called back from the allocator's own sub-allocator or visitor")]
    Reentrant,
    /// The allocator cannot answer: it keeps no sizes, or no index.
    #[error("the allocator keeps no record of its blocks")]
    Untracked,
}

impl BlockError {
    /// Whether the block counts as given back although there is an error to tell.
    #[must_use]
    pub const fn took_back(&self) -> bool {
        matches!(self, Self::OutOfBounds { .. })
    }
}

/// A source of memory that did not deliver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source has no such amount left.
    #[error("the source has no {} left", Bytes(*bytes))]
    Exhausted {
        /// The bytes asked for.
        bytes: u64,
    },
    /// The source delivered an address or a size that breaks its contract.
    #[error("the source delivered {bytes} bytes at {address:#x}, which breaks its contract")]
    BadRegion {
        /// The address delivered.
        address: u64,
        /// The size delivered.
        bytes: u64,
    },
    /// A driver refused.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// The device has failed in a way that it does not recover from: nothing works on it until the process ends.
    #[error("{device} is lost to this process: {call} failed with {reason}")]
    Poisoned {
        /// The device's name.
        device: String,
        /// The driver's function that met the failure first.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// The device cannot do what is needed.
    #[error("{device} has no {feature}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What it lacks.
        feature: &'static str,
    },
}

impl SourceError {
    /// Whether the device is lost, so that no later call can succeed.
    #[must_use]
    pub const fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned { .. })
    }
}

/// A block that another stream cannot use, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The allocator does not know of streams: it would hand the memory out again before the other stream is done.
    #[error("{allocator} does not order memory between streams")]
    Unordered {
        /// The allocator's name.
        allocator: String,
    },
    /// The block is not one that is live.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The driver refused to make the stream wait. The block will be given back late all the same.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// A visitor that came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("visitors must be registered before the first region is taken")]
pub struct VisitorError;

/// Attributes that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// Two different scoped allocators are named.
    #[error("attributes name two scoped allocators, {lhs} and {rhs}")]
    ScopeConflict {
        /// The one on the left.
        lhs: i32,
        /// The one on the right.
        rhs: i32,
    },
}

/// A device or a memory that the registry does not have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No such device was registered.
    #[error("no device {device} is registered")]
    NoDevice {
        /// The device asked for.
        device: String,
    },
    /// The device is registered already.
    #[error("device {device} is registered already")]
    DeviceExists {
        /// The device given.
        device: String,
    },
    /// The device has no memory of that kind.
    #[error("device {device} has no {kind} memory")]
    NoMemory {
        /// The device asked.
        device: String,
        /// The kind its attributes resolve to.
        kind: MemoryKind,
    },
    /// The device was given two memories of one kind.
    #[error("device {device} is given {kind} memory twice")]
    MemoryExists {
        /// The device given.
        device: String,
        /// The kind that came twice.
        kind: MemoryKind,
    },
    /// The allocator made for a memory is for another kind of memory.
    #[error("device {device}: the allocator made for {kind} memory is for {found} memory")]
    WrongKind {
        /// The device asked.
        device: String,
        /// The kind that the memory was registered as.
        kind: MemoryKind,
        /// The kind that the allocator says.
        found: MemoryKind,
    },
    /// The factory of a memory asked for the memory that it is making.
    #[error("device {device}: {kind} memory is being made by the factory that asks for it")]
    Reentrant {
        /// The device asked.
        device: String,
        /// The kind of memory.
        kind: MemoryKind,
    },
    /// A visitor came too late.
    #[error("device {device}, {kind} memory: {error}")]
    Visitor {
        /// The device given.
        device: String,
        /// The memory whose regions the visitor was to see.
        kind: MemoryKind,
        /// That it is too late.
        error: VisitorError,
    },
    /// The device's source of memory could not be made.
    #[error("device {device}: {error}")]
    Source {
        /// The device asked.
        device: String,
        /// What the source said.
        error: SourceError,
    },
    /// A memory's pool cannot be made as its options say.
    #[error("device {device}: {error}")]
    Pool {
        /// The device asked.
        device: String,
        /// Why not.
        error: PoolError,
    },
}

impl RegistryError {
    /// The error of a device whose pool was not made.
    pub(crate) fn of_pool(device: String, error: PoolError) -> Self {
        match error {
            PoolError::Source(error) => Self::Source { device, error },
            error => Self::Pool { device, error },
        }
    }
}
