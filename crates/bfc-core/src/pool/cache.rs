//! Thread caches of small blocks, which spare threads the pool's lock.
//!
//! A pool has a fixed number of caches, each with its own lock. A thread uses the cache that its number selects, so up
//! to [`CACHES`] threads do not contend. A freed block stays in the cache that allocated it, for the next request of
//! its size. No cache belongs to a thread, so an ended thread leaves no unknown blocks.
//!
//! **Leases.** A block that a cache holds, in use or free, stays placed in the policy: the cache has *leased* it. The
//! cache's own [`Accounts`](crate::accounting::accounts::Accounts) record it; the pool's accounts count only the leased
//! bytes. The allocation number identifies the accounts, so a free by any thread finds them under one lock.
//!
//! **Lock order.** The pool's lock comes before those of caches, which follow in order of index. A hit or a free locks
//! one cache alone. A miss, a return to the pool and every query lock the pool first. No cache is locked while the
//! source runs.

mod shard;

use crate::accounting::number;
use crate::base::memory::PoolId;
use crate::base::sync::{SpinGuard, SpinMutex, ThreadNumber};
use crate::base::units::{Bytes, KIB, MIB};
use crate::policy::{GRANULE, PlacementRequest};

pub(super) use shard::Shard;

/// The number of caches in a pool.
const CACHES: usize = 16;

/// The largest cacheable size. Each cache has a 4-byte entry for every 256 bytes of it.
const LARGEST: u64 = 16 * MIB;

/// The capacity of a pool's caches. See [`PoolConfig::with_thread_cache`](crate::PoolConfig::with_thread_cache).
///
/// ```
/// use bfc_core::{BfcConfig, Bytes, ThreadCache};
/// let cache = ThreadCache::new().with_largest_block(Bytes::kib(64)).with_bytes(Bytes::mib(4));
/// let config = BfcConfig::new(Bytes::gib(1)).with_thread_cache(cache);
/// assert_eq!(config.thread_cache, Some(cache));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCache {
    largest: u64,
    bytes: u64,
    blocks: u32,
}

impl ThreadCache {
    /// Caches blocks of up to 1 MiB: in each of the 16 caches at most 32 MiB and 4096 blocks.
    #[must_use]
    pub const fn new() -> Self {
        Self { largest: 1024 * KIB, bytes: 32 * MIB, blocks: 4096 }
    }

    /// Sets the largest block to cache; at most 16 MiB.
    #[must_use]
    pub const fn with_largest_block(mut self, bytes: Bytes) -> Self {
        self.largest = if bytes.0 < LARGEST { bytes.0 } else { LARGEST };
        self
    }

    /// Sets the most free bytes in one cache. If a free exceeds this, half of them return to the pool.
    #[must_use]
    pub const fn with_bytes(mut self, bytes: Bytes) -> Self {
        self.bytes = bytes.0;
        self
    }

    /// Returns the largest block to cache.
    #[must_use]
    pub const fn largest_block(&self) -> Bytes {
        Bytes(self.largest)
    }

    /// Returns the most free bytes in one cache.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Sets the most free blocks in one cache. If a free exceeds this, half of them return to the pool.
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

/// One cache in its own cache lines: two of them, because processors prefetch pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(SpinMutex<Shard>);

impl Caches {
    pub(super) fn new(options: ThreadCache, pool: PoolId) -> Self {
        let shard = |index| Padded(SpinMutex::new(Shard::new(pool, number::before(index as u64 + 1))));
        Self { options, shards: (0..CACHES).map(shard).collect() }
    }

    /// Returns the size class of a request: its size in granules. `None` if it is unsuitable for a cache.
    #[inline]
    pub(super) fn class_of(&self, request: &PlacementRequest) -> Option<usize> {
        let plain = request.bytes <= self.options.largest && request.alignment <= GRANULE;
        plain.then(|| request.bytes.div_ceil(GRANULE) as usize)
    }

    /// Whether a block of this size may be leased.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        bytes <= self.options.largest.next_multiple_of(GRANULE)
    }

    /// Returns the index of a thread's cache.
    #[inline]
    pub(super) fn of_thread(&self, thread: ThreadNumber) -> &SpinMutex<Shard> {
        &self.shards[thread.get() as usize % CACHES].0
    }

    /// Returns the cache with the account of an allocation; `None` if it is the pool.
    #[inline]
    pub(super) fn of_allocation(&self, number: u64) -> Option<&SpinMutex<Shard>> {
        self.shards.get(index_of(number)?).map(|shard| &shard.0)
    }

    /// Whether a cache exceeds its capacity.
    #[inline]
    pub(super) fn is_full(&self, shard: &Shard) -> bool {
        shard.cached_bytes() > self.options.bytes || shard.cached_blocks() > self.options.blocks as usize
    }

    /// Whether a cache exceeds half of its capacity.
    pub(super) fn is_half_full(&self, shard: &Shard) -> bool {
        let half = self.options.blocks as usize / 2;
        shard.cached_bytes() > self.options.bytes / 2 || shard.cached_blocks() > half
    }

    /// Locks all caches. The caller holds the pool's lock and no cache's lock.
    pub(super) fn lock_all(&self) -> Vec<SpinGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.0.lock()).collect()
    }
}

/// Returns the index of the cache that issued an allocation number; `None` if the pool did.
#[inline]
pub(super) const fn index_of(number: u64) -> Option<usize> {
    match number::accounts(number) {
        0 => None,
        index => Some(index as usize - 1),
    }
}

/// Whether a cache issued this allocation number.
pub(super) const fn is_of_cache(number: u64) -> bool {
    number::accounts(number) != 0
}
