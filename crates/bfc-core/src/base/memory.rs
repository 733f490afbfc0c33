//! Kinds of memory, spans of addresses, and blocks.

mod pairs;

use std::fmt;

/// The kind of an allocator's memory, which decides who may access the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Device memory: its addresses are meaningless to the host.
    Device,
    /// Ordinary host memory.
    Host,
    /// Page-locked host memory, which devices access without staging.
    PinnedHost,
    /// Read-only host memory of an external owner.
    LentHost,
    /// Addresses without memory: for dry runs, replays and tests.
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

    /// Returns the name in tables and JSON.
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

/// The identity of a device's address space, by which a device recognizes the memory that it can access.
///
/// Each device has its own address space, even if two devices have the same [`MemoryKind`]: a GPU cannot compute on the
/// memory of another GPU or of a simulated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressSpace(u64);

impl AddressSpace {
    /// Creates an address space that is unique in this process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A contiguous range of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The address of the first byte.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
}

impl Span {
    /// Returns the end address, or `None` beyond the address space.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.address.checked_add(self.bytes)
    }
}

/// A block of memory from an allocator: a small copyable value that is required to free the block.
///
/// The `id` is unique within its pool and never reused. Freeing a block twice is detected without a lookup, and never
/// frees another block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// In this order, because `pairs` writes two fields at a time.
#[repr(C)]
pub struct Block {
    /// The address of the first byte, aligned as requested; 0 for an empty block.
    pub address: u64,
    /// The granted bytes: at least those requested.
    pub bytes: u64,
    /// The allocation number in its pool, from 1 on; 0 for empty blocks and from allocators without numbers. In pools
    /// with several threads or caches, the upper bits identify the thread and the cache.
    pub id: u64,
    /// The allocator's own handle of the block; opaque to callers.
    pub chunk: u32,
    /// The pool of the block (see [`PoolId`]).
    pub pool: PoolId,
}

impl Block {
    /// The result of a request for zero bytes. Freeing it has no effect.
    pub const EMPTY: Self = Self { address: 0, bytes: 0, id: 0, chunk: u32::MAX, pool: PoolId::NONE };

    /// Whether this is the result of a request for zero bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the span of the block.
    #[must_use]
    pub const fn span(&self) -> Span {
        Span { address: self.address, bytes: self.bytes }
    }
}

/// The identity of an allocator in this process, which detects foreign blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u32);

impl PoolId {
    /// The pool of empty blocks.
    pub const NONE: Self = Self(0);

    /// Creates an id that is unique in this process.
    #[must_use]
    pub fn next() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the id as a number, which is 0 for [`NONE`](Self::NONE).
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}
