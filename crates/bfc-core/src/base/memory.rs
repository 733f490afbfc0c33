//! Kinds of memory, spans of addresses, and blocks handed out.

mod pairs;

use std::fmt;

/// What kind of memory an allocator hands out. Decides who may touch the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// A device's own memory: addresses mean nothing to the host.
    Device,
    /// Ordinary host memory.
    Host,
    /// Page-locked host memory, which devices copy from and to without staging.
    PinnedHost,
    /// Ordinary host memory that others own: lent to be read, and never written.
    LentHost,
    /// Addresses with nothing behind them: for dry runs, replays and tests.
    AddressOnly,
}

impl MemoryKind {
    /// Whether the host may read and write the bytes.
    #[must_use]
    pub const fn is_host_accessible(self) -> bool {
        matches!(self, Self::Host | Self::PinnedHost)
    }

    /// Whether the host may read the bytes.
    #[must_use]
    pub const fn is_host_readable(self) -> bool {
        self.is_host_accessible() || matches!(self, Self::LentHost)
    }

    /// The kind's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::PinnedHost => "pinned host",
            Self::LentHost => "lent host",
            Self::AddressOnly => "address only",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Names the address space of a device's own memory, so that what computes on a device recognizes the memory that it can
/// address.
///
/// Two devices have address spaces of their own, also where their memory is of one [`MemoryKind`]: the memory of another GPU, or
/// of a simulated one, is none that a GPU can compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressSpace(u64);

impl AddressSpace {
    /// An address space unlike any other of this process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A contiguous piece of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte's address.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Span {
    /// The address one past the last byte, or `None` if the span leaves the address space.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.address.checked_add(self.bytes)
    }
}

/// A block of memory handed out by an allocator: a small copy value that is needed to give the block back.
///
/// The `id` is unique within its pool and never used again, so a block that was already given back is recognised
/// without a look-up and can never free somebody else's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// In this order, because `pairs` writes two fields at a time.
#[repr(C)]
pub struct Block {
    /// Address of the first byte, a multiple of the alignment asked for; 0 for an empty block.
    pub address: u64,
    /// Bytes granted: at least as many as were asked for.
    pub bytes: u64,
    /// The allocation's number in its pool, from 1 upward; 0 from allocators that do not number, and for empty blocks. In
    /// numbers of pools that several threads or caches use, the upper bits say which of them took the block.
    pub id: u64,
    /// The allocator's own handle for the block; meaningless to others.
    pub chunk: u32,
    /// Which pool handed the block out (see [`PoolId`]).
    pub pool: PoolId,
}

impl Block {
    /// The block that answers a request for zero bytes. Giving it back does nothing.
    pub const EMPTY: Self = Self { address: 0, bytes: 0, id: 0, chunk: u32::MAX, pool: PoolId::NONE };

    /// Whether this is the answer to a request for zero bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where the block lies.
    #[must_use]
    pub const fn span(&self) -> Span {
        Span { address: self.address, bytes: self.bytes }
    }
}

/// Names one allocator instance of this process, so that a foreign block is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u32);

impl PoolId {
    /// The pool of empty blocks.
    pub const NONE: Self = Self(0);

    /// A new pool's id, unlike any other of this process.
    #[must_use]
    pub fn next() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
