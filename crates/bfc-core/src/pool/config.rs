//! How a pool behaves.

use std::sync::Arc;
use std::time::Duration;

use super::cache::ThreadCache;
use super::frontier::TimingCounter;
use super::growth::GrowthRule;
use crate::base::units::{Bytes, MIB};
use crate::policy::GRANULE;

/// The first region that a growing pool takes, as upstream.
const FIRST_REGION: u64 = 2 * MIB;

/// How long a request waits for frees, as upstream.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// How a [`PolicyAllocator`](super::PolicyAllocator) behaves: what all pools can be told, and the `options` of its
/// policy.
///
/// ```
/// use std::time::Duration;
/// use bfc_core::{BfcConfig, Bytes};
/// let config = BfcConfig::new(Bytes::gib(1)).with_allow_growth(false).with_retry_timeout(Duration::from_millis(50));
/// assert_eq!(config.limit(), Bytes::gib(1));
/// ```
#[derive(Clone, Debug)]
pub struct PoolConfig<O> {
    pub(super) limit: u64,
    pub(super) limit_origin: Option<Arc<str>>,
    pub(super) allow_growth: bool,
    pub(super) first_region: u64,
    pub(super) growth: GrowthRule,
    pub(super) region_merging: bool,
    pub(super) garbage_collection: bool,
    pub(super) retry: bool,
    pub(super) retry_timeout: Duration,
    pub(super) stalemate: Option<Duration>,
    pub(super) timing_counter: Option<Arc<TimingCounter>>,
    pub(super) thread_cache: Option<ThreadCache>,
    pub(crate) options: O,
}

impl<O> PoolConfig<O> {
    /// A pool of at most `limit` bytes with these options of its policy: grows from 2 MiB by doubling, gives
    /// idle regions back when that makes room for a larger one, and waits up to 10 s for frees.
    #[must_use]
    pub const fn with_options(limit: Bytes, options: O) -> Self {
        Self {
            limit: limit.0,
            limit_origin: None,
            allow_growth: true,
            first_region: FIRST_REGION,
            growth: GrowthRule::DOUBLING,
            region_merging: false,
            garbage_collection: true,
            retry: true,
            retry_timeout: RETRY_TIMEOUT,
            stalemate: None,
            timing_counter: None,
            thread_cache: None,
            options,
        }
    }

    /// The same pool over another policy, with these options of that.
    #[must_use]
    pub fn with_policy<Q>(self, options: Q) -> PoolConfig<Q> {
        PoolConfig {
            limit: self.limit,
            limit_origin: self.limit_origin,
            allow_growth: self.allow_growth,
            first_region: self.first_region,
            growth: self.growth,
            region_merging: self.region_merging,
            garbage_collection: self.garbage_collection,
            retry: self.retry,
            retry_timeout: self.retry_timeout,
            stalemate: self.stalemate,
            timing_counter: self.timing_counter,
            thread_cache: self.thread_cache,
            options,
        }
    }

    /// What was chosen of the policy.
    #[must_use]
    pub const fn options(&self) -> &O {
        &self.options
    }

    /// Sets the limit and forgets the [origin](Self::with_limit_origin) of the limit before.
    #[must_use]
    pub fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = limit.0;
        self.limit_origin = None;
        self
    }

    /// Says where the limit comes from, for out-of-memory reports: `"24.00 GiB of physical memory"`.
    #[must_use]
    pub fn with_limit_origin(mut self, origin: impl Into<Arc<str>>) -> Self {
        self.limit_origin = Some(origin.into());
        self
    }

    /// Whether the pool takes memory as it needs it. If not, the first request takes one region of the whole limit,
    /// or as much of it as the source gives.
    #[must_use]
    pub const fn with_allow_growth(mut self, allow: bool) -> Self {
        self.allow_growth = allow;
        self
    }

    /// How large the regions of a growing pool are, from the second on.
    #[must_use]
    pub const fn with_growth(mut self, rule: GrowthRule) -> Self {
        self.growth = rule;
        self
    }

    /// The size of a growing pool's first region.
    #[must_use]
    pub const fn with_first_region(mut self, bytes: Bytes) -> Self {
        self.first_region = if bytes.0 < GRANULE { GRANULE } else { bytes.0 };
        self
    }

    /// Whether idle regions are given back when a larger one could then be taken.
    #[must_use]
    pub const fn with_garbage_collection(mut self, collect: bool) -> Self {
        self.garbage_collection = collect;
        self
    }

    /// Whether idle regions are given back before a new one is taken in their place, which is as large as the growth rule
    /// says, whatever they were together. So the pool comes to have larger regions, and holds no memory in regions that
    /// are too small: each that was given back was smaller than the one that replaces it, so this comes to an end.
    /// Does nothing over a source that joins adjacent regions. See [`GrowthRule`] for what it is worth.
    #[must_use]
    pub const fn with_region_merging(mut self, merge: bool) -> Self {
        self.region_merging = merge;
        self
    }

    /// Whether requests wait for frees at all.
    #[must_use]
    pub const fn with_retry(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }

    /// How long a request waits for frees before it fails.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Refuses a request before its time is over when nobody is left who could free: once every thread that took memory from
    /// the pool, and has not ended, has waited in it for so long, the oldest request makes its last attempt; the others wait
    /// on, for what the thread of that one may then free. Without this, which is the default and as upstream, each of them
    /// waits until its own time is over.
    ///
    /// A thread that only frees is known from its first free on. Until then it does not count, and a request that it
    /// would have served may be refused: [expect it](crate::ExpectedFrees), or leave this out. It never comes to that after a
    /// thread has freed that took nothing, while something is live that a thread took which has ended, since somebody else
    /// has it, after more than 64 threads at a time, with a [timing counter](Self::with_timing_counter), or below a
    /// [`StreamAllocator`](crate::StreamAllocator), which waits in the pool's place and has
    /// [the same choice](crate::StreamAllocator::with_stalemate_after); a registry hands this one on to it.
    #[must_use]
    pub const fn with_stalemate_after(mut self, time: Duration) -> Self {
        self.stalemate = Some(time);
        self
    }

    /// Marks every free with the counter's next count; the memory joins its neighbours, and goes back to the source,
    /// only once [`set_safe_frontier`](crate::Upkeep::set_safe_frontier) has passed that count.
    ///
    /// For policies that [support counts](crate::Capabilities::supports_counts): of those here [`Bfc`](crate::Bfc) alone. Pools of all
    /// others leave the counter out, as [`PolicyAllocator::timing_counter`](crate::PolicyAllocator::timing_counter) then says,
    /// and a registry refuses to make them with one: [`PoolError::NoCounts`](crate::PoolError).
    #[must_use]
    pub fn with_timing_counter(mut self, counter: Arc<TimingCounter>) -> Self {
        self.timing_counter = Some(counter);
        self
    }

    /// Lets threads take and free blocks that are not large without the pool's lock, through caches; off by default.
    ///
    /// What stays exact, at whatever moment one asks: bytes and allocations in use, by owner and category too, and what
    /// is said of a block that is stale, foreign or made up. A block in a cache is free memory. What changes:
    /// - Addresses depend on which thread did what when. A single thread still gets the same ones every time.
    /// - The peak of the bytes in use counts cached bytes as in use at that moment: an upper bound, and never below the
    ///   bytes in use. The peaks of owners are upper bounds too. Clearing the figures empties the caches.
    /// - [`Stats::largest_free_block_bytes`](crate::Stats) leaves out cached blocks and what they would join to.
    ///
    /// The caches are emptied before the pool grows, before it gives back idle regions and before it refuses a request;
    /// while a request waits, no free goes to a cache. Requests pass the caches by if they ask for more than 256 bytes of
    /// alignment or for memory freed before a count. No caches are made with a
    /// [timing counter](Self::with_timing_counter), and by policies that do not
    /// [support them](crate::Capabilities::supports_caches): of those here, all but [`Bfc`](crate::Bfc).
    #[must_use]
    pub const fn with_thread_cache(mut self, cache: ThreadCache) -> Self {
        self.thread_cache = Some(cache);
        self
    }

    /// Without caches by thread, which is the default.
    #[must_use]
    pub const fn without_thread_cache(mut self) -> Self {
        self.thread_cache = None;
        self
    }

    /// The caches chosen, if any.
    #[must_use]
    pub const fn thread_cache(&self) -> Option<ThreadCache> {
        self.thread_cache
    }

    /// The most the pool may take from its source.
    #[must_use]
    pub const fn limit(&self) -> Bytes {
        Bytes(self.limit)
    }

    /// Where the limit comes from, if that is known.
    #[must_use]
    pub const fn limit_origin(&self) -> Option<&Arc<str>> {
        self.limit_origin.as_ref()
    }

    /// Whether the pool takes memory as it needs it.
    #[must_use]
    pub const fn allow_growth(&self) -> bool {
        self.allow_growth
    }

    /// The size of a growing pool's first region.
    #[must_use]
    pub const fn first_region(&self) -> Bytes {
        Bytes(self.first_region)
    }

    /// How large the regions of a growing pool are.
    #[must_use]
    pub const fn growth(&self) -> GrowthRule {
        self.growth
    }

    /// Whether idle regions are given back before a new one is taken in their place.
    #[must_use]
    pub const fn region_merging(&self) -> bool {
        self.region_merging
    }

    /// Whether idle regions are given back when a larger one could then be taken.
    #[must_use]
    pub const fn garbage_collection(&self) -> bool {
        self.garbage_collection
    }

    /// Whether requests wait for frees.
    #[must_use]
    pub const fn retry(&self) -> bool {
        self.retry
    }

    /// What counts the frees, if anything does.
    #[must_use]
    pub const fn timing_counter(&self) -> Option<&Arc<TimingCounter>> {
        self.timing_counter.as_ref()
    }

    /// After how long without anybody left who could free a request is refused, if ever.
    #[must_use]
    pub const fn stalemate_after(&self) -> Option<Duration> {
        self.stalemate
    }

    /// How long a request waits for frees, if it does.
    #[must_use]
    pub const fn retry_timeout(&self) -> Duration {
        self.retry_timeout
    }
}

/// `fraction` of `bytes`, rounded down and saturating; the fraction is above 0.
pub(crate) fn fraction_of(bytes: u64, fraction: f64) -> u64 {
    (bytes as f64 * fraction) as u64
}

/// A share of memory that is not a finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{fraction} is not a share of memory: expected a finite number above 0")]
pub struct FractionError {
    /// The fraction given.
    pub fraction: f64,
}
