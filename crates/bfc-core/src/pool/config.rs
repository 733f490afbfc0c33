//! The configuration of a pool.

use std::sync::Arc;
use std::time::Duration;

use super::cache::ThreadCache;
use super::growth::GrowthRule;
use super::timing::TimingCounter;
use crate::base::units::Bytes;
use crate::policy::GRANULE;

/// The first region of a growing pool, as upstream.
const FIRST_REGION: Bytes = Bytes::mib(2);

/// How long a request waits for frees, as upstream.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a [`PolicyAllocator`](super::PolicyAllocator): settings of all pools, and the `options` of its
/// policy.
///
/// ```
/// use std::time::Duration;
/// use bfc_core::{BfcConfig, Bytes};
/// let config = BfcConfig::new(Bytes::gib(1)).with_allow_growth(false).with_retry_timeout(Duration::from_millis(50));
/// assert_eq!(config.limit, Bytes::gib(1));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolConfig<O> {
    /// The most bytes that the pool may reserve. The pool rounds it down to whole regions of its source.
    pub limit: Bytes,
    /// The origin of the limit, if known.
    pub limit_origin: Option<Arc<str>>,
    /// Whether the pool grows on demand.
    pub allow_growth: bool,
    /// The size of a growing pool's first region.
    pub first_region: Bytes,
    /// The size rule for regions of a growing pool.
    pub growth: GrowthRule,
    /// Whether the pool returns idle regions before it takes a new one.
    pub region_merging: bool,
    /// Whether the pool returns idle regions to make room for a larger one.
    pub garbage_collection: bool,
    /// Whether requests wait for frees.
    pub retry: bool,
    /// How long a request waits for frees, if it does.
    pub retry_timeout: Duration,
    /// Counts the frees, if any.
    pub timing_counter: Option<Arc<TimingCounter>>,
    /// The options of thread caches, if enabled.
    pub thread_cache: Option<ThreadCache>,
    /// The options of the policy.
    pub options: O,
}

impl<O> PoolConfig<O> {
    /// Creates a pool of at most `limit` bytes with these policy options. It grows from 2 MiB by doubling, returns idle
    /// regions to make room for a larger one, and waits up to 10 s for frees.
    #[must_use]
    pub const fn with_options(limit: Bytes, options: O) -> Self {
        Self {
            limit,
            limit_origin: None,
            allow_growth: true,
            first_region: FIRST_REGION,
            growth: GrowthRule::DOUBLING,
            region_merging: false,
            garbage_collection: true,
            retry: true,
            retry_timeout: RETRY_TIMEOUT,
            timing_counter: None,
            thread_cache: None,
            options,
        }
    }

    /// Replaces the policy and its options.
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
            timing_counter: self.timing_counter,
            thread_cache: self.thread_cache,
            options,
        }
    }

    /// Sets the limit and clears its [origin](Self::with_limit_origin).
    #[must_use]
    pub fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = limit;
        self.limit_origin = None;
        self
    }

    /// Sets the origin of the limit for out-of-memory reports, such as `"24.00 GiB of physical memory"`.
    #[must_use]
    pub fn with_limit_origin(mut self, origin: impl Into<Arc<str>>) -> Self {
        self.limit_origin = Some(origin.into());
        self
    }

    /// Sets whether the pool grows on demand. If not, the first request takes one region of the whole limit, or as much
    /// of it as the source provides.
    #[must_use]
    pub const fn with_allow_growth(mut self, allow: bool) -> Self {
        self.allow_growth = allow;
        self
    }

    /// Sets the size rule for regions of a growing pool, from the second on.
    #[must_use]
    pub const fn with_growth(mut self, rule: GrowthRule) -> Self {
        self.growth = rule;
        self
    }

    /// Sets the size of a growing pool's first region.
    #[must_use]
    pub const fn with_first_region(mut self, bytes: Bytes) -> Self {
        self.first_region = if bytes.0 < GRANULE { Bytes(GRANULE) } else { bytes };
        self
    }

    /// Sets whether the pool returns idle regions to make room for a larger one.
    #[must_use]
    pub const fn with_garbage_collection(mut self, collect: bool) -> Self {
        self.garbage_collection = collect;
        self
    }

    /// Sets whether the pool returns idle regions before it takes a new one. The growth rule alone sets the size of the
    /// new region, whatever the size of the returned ones. The pool thus replaces small regions by larger ones; each
    /// replacement is larger, so this terminates. Has no effect over a source that merges adjacent regions.
    /// [`GrowthRule`] lists measurements.
    #[must_use]
    pub const fn with_region_merging(mut self, merge: bool) -> Self {
        self.region_merging = merge;
        self
    }

    /// Sets whether requests wait for frees.
    #[must_use]
    pub const fn with_retry(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }

    /// Sets how long a request waits for frees before it fails.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Marks each free with the next count of the counter. The memory is merged and returned to the source only once the
    /// [counter](TimingCounter) has learned that the work up to that count has ended.
    ///
    /// Requires a policy that [supports counts](crate::Policy::timed): here only [`Bfc`](crate::Bfc).
    /// Other pools ignore the counter; [`PolicyAllocator::timing_counter`](crate::PolicyAllocator::timing_counter) then
    /// returns `None`. A registry fails with [`PoolError::NoCounts`](crate::PoolError) instead.
    #[must_use]
    pub fn with_timing_counter(mut self, counter: Arc<TimingCounter>) -> Self {
        self.timing_counter = Some(counter);
        self
    }

    /// Enables thread caches, which serve small blocks without the pool's lock; off by default.
    ///
    /// Exact at any moment: bytes and allocations in use, by owner and category, and the detection of stale, foreign
    /// and invalid blocks. A cached free block counts as free memory. The changes:
    /// - Addresses depend on the interleaving of threads. A single thread still gets the same addresses every time.
    /// - The peak of the bytes in use counts cached bytes as in use at that moment: an upper bound. Peaks of owners are
    ///   upper bounds too. Resetting the figures empties the caches.
    /// - [`Stats::largest_free_block_bytes`](crate::Stats) excludes cached blocks and the chunks that they would merge
    ///   into.
    ///
    /// The pool empties the caches before it grows, before it returns idle regions and before a request fails. While a
    /// request waits, frees bypass the caches. Requests bypass them if they require an alignment above 256 bytes. Pools with a [timing counter](Self::with_timing_counter) have no caches. Neither do
    /// policies without [support for them](crate::Capabilities::supports_caches): here, all except [`Bfc`](crate::Bfc).
    #[must_use]
    pub const fn with_thread_cache(mut self, cache: ThreadCache) -> Self {
        self.thread_cache = Some(cache);
        self
    }
}

/// Returns `fraction` of `bytes`, rounded down and saturating. The fraction is positive.
pub(crate) fn fraction_of(bytes: u64, fraction: f64) -> u64 {
    (bytes as f64 * fraction) as u64
}

/// An invalid share of memory: not a finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{fraction} is not a share of memory: expected a finite number above 0")]
#[non_exhaustive]
pub struct FractionError {
    /// The invalid fraction.
    pub fraction: f64,
}
