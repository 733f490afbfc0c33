//! Caches of small blocks by thread: what a pool keeps back from its policy so that threads need not queue at its lock.
//!
//! A pool with caches has a fixed number of them, each behind a lock of its own; a thread uses the one that its number
//! falls to, so up to [`CACHES`] threads meet no other. A freed block stays in the cache that handed it out and is
//! handed out again to the next request for its size. No cache belongs to a thread: when a thread ends, nothing is left
//! behind that the pool does not know of.
//!
//! **Leases.** A block in use or kept through a cache stays placed in the policy: the cache has *leased* it. It is in
//! the cache's own [`Accounts`](crate::accounting::accounts::Accounts), never in the pool's, which count only the bytes leased. The
//! number of an allocation says whose account it is in, so a free by any thread finds it under one lock.
//!
//! **Order of locks.** The pool's lock before those of caches, and those in the order of their index. A hit or a free
//! takes one cache's lock alone; a miss, a return to the pool and every question take the pool's first. The source is
//! never called with a cache's lock held.

mod shard;

use crate::accounting::number;
use crate::base::memory::PoolId;
use crate::base::sync::{SpinGuard, SpinMutex, ThreadNumber};
use crate::base::units::{Bytes, KIB, MIB};
use crate::policy::{GRANULE, PlacementRequest};

pub(super) use shard::Shard;

/// How many caches a pool has.
const CACHES: usize = 16;

/// The largest size that may be cached: each cache has an entry of 4 bytes for every 256 bytes of it.
const LARGEST: u64 = 16 * MIB;

/// How much the caches of a pool keep. See [`PoolConfig::with_thread_cache`](crate::PoolConfig::with_thread_cache).
///
/// ```
/// use bfc_core::{BfcConfig, Bytes, ThreadCache};
/// let cache = ThreadCache::new().with_largest_block(Bytes::kib(64)).with_bytes(Bytes::mib(4));
/// let config = BfcConfig::new(Bytes::gib(1)).with_thread_cache(cache);
/// assert_eq!(config.thread_cache(), Some(cache));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCache {
    largest: u64,
    bytes: u64,
    blocks: u32,
}

impl ThreadCache {
    /// Blocks of up to 1 MiB, and in each of the 16 caches at most 32 MiB of them, in at most 4096 blocks.
    #[must_use]
    pub const fn new() -> Self {
        Self { largest: 1024 * KIB, bytes: 32 * MIB, blocks: 4096 }
    }

    /// The largest block that is cached; at most 16 MiB.
    #[must_use]
    pub const fn with_largest_block(mut self, bytes: Bytes) -> Self {
        self.largest = if bytes.0 < LARGEST { bytes.0 } else { LARGEST };
        self
    }

    /// The most bytes that one cache keeps. When a free exceeds that, half of them go back to the pool.
    #[must_use]
    pub const fn with_bytes(mut self, bytes: Bytes) -> Self {
        self.bytes = bytes.0;
        self
    }

    /// The most blocks that one cache keeps, in the same way.
    #[must_use]
    pub const fn with_blocks(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }
}

impl Default for ThreadCache {
    fn default() -> Self {
        Self::new()
    }
}

/// The caches of a pool.
#[derive(Debug)]
pub(super) struct Caches {
    options: ThreadCache,
    shards: Box<[Padded]>,
}

/// One cache, alone on its cache lines: two of them, as processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(SpinMutex<Shard>);

impl Caches {
    pub(super) fn new(options: ThreadCache, pool: PoolId) -> Self {
        let shard = |index| Padded(SpinMutex::new(Shard::new(pool, number::before(index as u64 + 1))));
        Self { options, shards: (0..CACHES).map(shard).collect() }
    }

    /// The size class of a need: its bytes in granules. `None` if it is not for a cache.
    #[inline]
    pub(super) fn class_of(&self, need: &PlacementRequest) -> Option<usize> {
        let plain =
            need.bytes <= self.options.largest && need.alignment <= GRANULE && need.freed_before.is_none();
        plain.then(|| need.bytes.div_ceil(GRANULE) as usize)
    }

    /// Whether a block of so many bytes may be leased.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        bytes <= self.options.largest.next_multiple_of(GRANULE)
    }

    /// The cache that a thread uses.
    #[inline]
    pub(super) fn of_thread(&self, thread: ThreadNumber) -> &SpinMutex<Shard> {
        &self.shards[thread.get() as usize % CACHES].0
    }

    /// The cache that has the account of an allocation; `None` if that is the pool itself.
    #[inline]
    pub(super) fn of_allocation(&self, number: u64) -> Option<&SpinMutex<Shard>> {
        self.shards.get(index_of(number)?).map(|shard| &shard.0)
    }

    /// Whether a cache keeps more than it may.
    #[inline]
    pub(super) fn is_full(&self, shard: &Shard) -> bool {
        shard.cached_bytes() > self.options.bytes || shard.cached_blocks() > self.options.blocks as usize
    }

    /// Whether a cache keeps more than it should after half of it went back.
    pub(super) fn is_half_full(&self, shard: &Shard) -> bool {
        let half = self.options.blocks as usize / 2;
        shard.cached_bytes() > self.options.bytes / 2 || shard.cached_blocks() > half
    }

    /// All caches at one moment. The caller holds the pool's lock and that of no cache.
    pub(super) fn lock_all(&self) -> Vec<SpinGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.0.lock()).collect()
    }
}

/// The index of the cache that gave an allocation its number; `None` if that was the pool itself.
#[inline]
pub(super) const fn index_of(number: u64) -> Option<usize> {
    match number::accounts(number) {
        0 => None,
        index => Some(index as usize - 1),
    }
}

/// Whether an allocation's number was given by a cache.
pub(super) const fn is_of_cache(number: u64) -> bool {
    number::accounts(number) != 0
}
