//! A pool whose memory may be used on other streams than its own.

mod facets;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::deferred::Deferred;
use crate::accounting::retry::{AllocatorRetry, Refusal};
use crate::allocator::attributes::AllocationAttributes;
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::oom::{OomReport, PendingFrees, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{Accounting, Allocator, Inspection, Request, StreamOrder, Upkeep, WaitHints};
use crate::base::memory::{AddressSpace, Block, MemoryKind};
use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::{Mutex, ThreadNumber, lock};
use crate::source::error::SourceError;
use crate::source::stream::Stream;

/// How long a request waits for frees, as upstream.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a request waits for frees and then finds none: another thread had them, or the driver tells untruths.
const FRUITLESS_WAITS: u32 = 16;

/// A pool of a device's memory that belongs to one stream, and may be used on others.
///
/// Memory of the pool is handed out for work on its compute stream: what is freed is free at once, since new work there
/// comes after the old. Whoever uses a block elsewhere says so first, by [`record_stream`](crate::StreamOrder::record_stream): the
/// other stream then waits for what the compute stream was given so far, and once the block is given back, from any
/// thread, its memory is free only after the work that the other stream was given until then.
///
/// Such frees are looked at without waiting when memory is asked for. If memory runs out, the request waits for the
/// fewest of them that make room, and for none that would not help; then, as in the pool below, for other threads. Where
/// no other thread could free, it fails at once. Until then the memory counts as in use.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::{Pace, SimDevice};
/// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, Request, Stream, StreamAllocator};
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)).with_pace(Pace::OnDemand));
/// let (compute, copies) = (Stream::new(device.clone())?, Stream::new(device.clone())?);
/// let pool = BfcAllocator::new("sim", Arc::new(DeviceMemory::new(device.clone())), BfcConfig::new(Bytes::mib(32)));
/// let pool = Arc::new(StreamAllocator::new(Arc::new(pool), compute));
/// let allocator: Arc<dyn Allocator> = pool.clone();
///
/// let batch = Allocation::new(&allocator, &Request::new(1000))?;
/// allocator.record_stream(&batch.block(), &copies)?;
/// drop(batch); // the stream `copies` may still read it
/// assert_eq!(pool.pending_frees().bytes, 1024);
/// device.finish(copies.handle());
/// pool.poll();
/// assert_eq!(pool.pending_frees().bytes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StreamAllocator {
    pool: Arc<dyn Allocator>,
    compute: Arc<Stream>,
    /// Blocks that other streams use, or used and that are not free yet, by address.
    uses: Mutex<BTreeMap<u64, Used>>,
    /// How many these are: without any, a free need not look.
    used: AtomicUsize,
    pending: Deferred<Block>,
    stranded_bytes: AtomicU64,
    retry: AllocatorRetry,
    retry_timeout: Duration,
    threads: Threads,
}

/// What is known of a block that another stream uses.
#[derive(Debug)]
struct Used {
    block: Block,
    streams: Vec<Arc<Stream>>,
    /// It was given back, and waits for the streams.
    freed: bool,
}

/// What there was before an attempt.
#[derive(Debug)]
struct Before {
    /// Frees that ever had to wait for streams.
    handed_in: u64,
    /// Blocks that were ever handed out.
    allocations: u64,
    /// Nobody else could have freed anything from then on.
    alone: bool,
}

/// The threads that have come, so that the retry hears of each once and not with each call, without a lock. A thread that finds
/// its number here was told of: it wrote it itself.
#[derive(Debug, Default)]
struct Threads {
    latest: AtomicU64,
    /// By the last digits of their numbers.
    met: [AtomicU64; 16],
}

impl Threads {
    /// Tells of a thread by `meet`, if it was not told of before.
    #[inline]
    fn note(&self, retry: &AllocatorRetry, meet: fn(&AllocatorRetry, u64)) {
        let thread = ThreadNumber::current().get();
        if self.latest.load(Ordering::Relaxed) != thread {
            self.change(thread, retry, meet);
        }
    }

    #[cold]
    #[inline(never)]
    fn change(&self, thread: u64, retry: &AllocatorRetry, meet: fn(&AllocatorRetry, u64)) {
        let met = &self.met[thread as usize % self.met.len()];
        if met.load(Ordering::Relaxed) != thread {
            meet(retry, thread);
            met.store(thread, Ordering::Relaxed);
        }
        self.latest.store(thread, Ordering::Relaxed);
    }
}

impl StreamAllocator {
    /// The memory of `pool` for work on `compute`. Nobody else may take memory from the pool: it is free there before
    /// the work on it has ended.
    #[must_use]
    pub fn new(pool: Arc<dyn Allocator>, compute: Arc<Stream>) -> Self {
        Self {
            pool,
            compute,
            uses: Mutex::default(),
            used: AtomicUsize::new(0),
            pending: Deferred::new(),
            stranded_bytes: AtomicU64::new(0),
            retry: AllocatorRetry::new(),
            retry_timeout: RETRY_TIMEOUT,
            threads: Threads::default(),
        }
    }

    /// The same with another patience: how long a request waits for other threads to free. 0 is not at all. It stands in
    /// place of the pool's own.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// The same, in which a request fails before its time is over when nobody is left who could free: as
    /// [`PoolConfig::with_stalemate_after`](crate::PoolConfig::with_stalemate_after) says of pools, in place of the pool's own.
    /// What other streams still use is no thread's to free: a request that it would serve waits for the streams, and
    /// meanwhile does not count as waiting for threads. Not for pools whose frees wait for a
    /// [frontier](crate::Upkeep::set_safe_frontier).
    #[must_use]
    pub fn with_stalemate_after(mut self, time: Duration) -> Self {
        self.retry = AllocatorRetry::with_stalemate(Some(time));
        self.threads = Threads::default();
        self
    }

    /// The stream that the memory belongs to.
    #[must_use]
    pub const fn compute(&self) -> &Arc<Stream> {
        &self.compute
    }

    /// The frees that wait for other streams.
    #[must_use]
    pub fn pending_frees(&self) -> PendingFrees {
        self.pending_with(|_| ()).0
    }

    /// Reads the pending frees and asks something about their blocks, under one lock acquisition.
    fn pending_with<R>(&self, ask: impl FnOnce(&[Block]) -> R) -> (PendingFrees, R) {
        let stranded_bytes = self.stranded_bytes.load(Ordering::Relaxed);
        let blocks = |waiting: &[Block]| PendingFrees {
            blocks: waiting.len(),
            bytes: waiting.iter().map(|block| block.bytes).sum(),
            stranded_bytes,
        };
        self.pending.with_waiting(|waiting| {
            let waiting: Vec<Block> = waiting.into_iter().copied().collect();
            (blocks(&waiting), ask(&waiting))
        })
    }

    /// Gives back what no stream uses any more, without waiting. Every request does so by itself.
    pub fn poll(&self) {
        for block in self.pending.passed() {
            self.settle(block);
        }
    }

    /// A pending free is one no longer.
    fn settle(&self, block: Block) {
        self.forget(&block);
        // SAFETY: the block was given back to us, and all work on other streams has ended.
        if unsafe { self.pool.deallocate(block) }.is_err() {
            self.stranded_bytes.fetch_add(block.bytes, Ordering::Relaxed);
        }
        self.notify();
    }

    /// Wakes those whom a free may have served.
    fn notify(&self) {
        if self.retry.is_awaited() {
            self.retry.notify_up_to(self.max_satisfiable_bytes());
        }
    }

    fn forget(&self, block: &Block) {
        if lock(&self.uses).remove(&block.address).is_some() {
            self.used.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The streams that the free of a block must wait for, of which it is from now on known that it was freed.
    fn streams_of_freed(&self, block: &Block) -> Result<Vec<Arc<Stream>>, BlockError> {
        if self.used.load(Ordering::Relaxed) == 0 {
            return Ok(Vec::new());
        }
        match lock(&self.uses).get_mut(&block.address).filter(|used| used.block == *block) {
            None => Ok(Vec::new()),
            Some(Used { freed: true, .. }) => Err(BlockError::Stale { block: *block }),
            Some(used) => {
                used.freed = true;
                Ok(std::mem::take(&mut used.streams))
            }
        }
    }

    /// Fails if the block was given back, though its memory is not free yet.
    fn refuse_freed(&self, block: &Block) -> Result<(), BlockError> {
        let freed = self.used.load(Ordering::Relaxed) > 0
            && lock(&self.uses).get(&block.address).is_some_and(|used| used.freed && used.block == *block);
        if freed { Err(BlockError::Stale { block: *block }) } else { Ok(()) }
    }

    /// Lets a block that was given back wait for these streams.
    fn defer(&self, block: Block, streams: &[Arc<Stream>]) {
        match self.pending.marks(streams) {
            Ok(marks) => {
                self.pending.push(block, marks);
                self.retry.notify();
            }
            // Without a mark nobody learns when the work ends, unless all waits for it now. On a device that is lost no
            // work is done.
            Err(error) if error.is_poisoned() => self.settle(block),
            Err(_) if streams.iter().all(|stream| stream.driver().synchronise().is_ok()) => {
                self.settle(block)
            }
            Err(_) => {
                self.stranded_bytes.fetch_add(block.bytes, Ordering::Relaxed);
            }
        }
    }

    fn lost(&self, error: SourceError) -> AllocError {
        AllocError::Source { allocator: self.pool.name().to_owned(), error }
    }

    /// Tries for a block until there is one, or nothing that is pending would help.
    fn attempt(&self, request: &Request<'_>) -> Result<Block, Refusal> {
        let at_once = AllocationAttributes { retry_on_failure: false, brief: true, ..request.attributes };
        let at_once = request.with_attributes(at_once);
        let (mut fruitless, mut before) = (0, None::<Before>);
        loop {
            let error = match self.pool.allocate(&at_once) {
                Ok(block) => return Ok(block),
                Err(error) => error,
            };
            let Some((in_use, verdict)) = error.out_of_memory().map(|report| (report.in_use, report.verdict))
            else {
                return Err(Refusal { error, wait: false });
            };
            // The first question is about all of them.
            let mut all = None;
            let suffices = |freed: &[&Block]| {
                let freed: Vec<Block> = freed.iter().map(|block| **block).collect();
                let all = *all.get_or_insert(freed.len());
                self.pool.would_fit(request, &freed).unwrap_or(freed.len() == all)
            };
            match self.pending.wait_for(suffices) {
                Ok(true) if fruitless < FRUITLESS_WAITS => {
                    let passed = self.pending.passed_by_now();
                    fruitless += u32::from(passed.is_empty());
                    passed.into_iter().for_each(|block| self.settle(block));
                }
                // What the pool said is of another moment than what was pending, or than what is known of other threads:
                // only after an attempt between two looks is it known that others hold nothing.
                Ok(suffices) => {
                    if let Some(before) = before {
                        let nothing_held = !suffices && self.nothing_else_in_use(in_use, &before);
                        // Memory that is pinned comes back by the frontier, whoever raises it.
                        let alone = before.alone && verdict != Verdict::Pinned && self.still_alone(&before);
                        return Err(Refusal { error, wait: !(nothing_held || alone) });
                    }
                }
                Err(error) => return Err(Refusal { error: self.lost(error), wait: false }),
            }
            before = Some(Before {
                handed_in: self.pending.handed_in(),
                allocations: self.allocations(),
                alone: !self.others_may_free(),
            });
        }
    }

    /// Whether all the bytes that were in use at an attempt were pending, before it and since, and nothing was taken
    /// meanwhile: then no other thread holds anything that it could free.
    fn nothing_else_in_use(&self, in_use: u64, before: &Before) -> bool {
        let sum = |blocks: Vec<&Block>| Some(blocks.into_iter().map(|block| block.bytes).sum());
        let pending = self.pending.of_the_first(before.handed_in, sum).unwrap_or(0);
        in_use <= pending && self.allocations() == before.allocations
    }

    /// Whether nobody else could have freed anything since either: a thread that came meanwhile has taken memory by now, or is known.
    fn still_alone(&self, before: &Before) -> bool {
        !self.others_may_free() && self.allocations() == before.allocations
    }

    /// Blocks handed out so far.
    fn allocations(&self) -> u64 {
        self.pool.stats().num_allocs
    }

    fn allocate_or_wait(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let error = match self.attempt(request) {
            Ok(block) => return Ok(block),
            Err(Refusal { error, wait: false }) => return Err(error),
            Err(refusal) => refusal.error,
        };
        if !request.attributes.retry_on_failure || self.retry_timeout.is_zero() {
            return Err(error);
        }
        self.retry.allocate_as(self.pool.wait_key(request), self.retry_timeout, |_last| self.attempt(request))
    }

    /// Completes the report of a request that is given up, of which the pool has told in brief.
    #[cold]
    fn explain(&self, request: &Request<'_>, error: AllocError) -> AllocError {
        let AllocError::OutOfMemory(brief) = error else { return error };
        if request.attributes.brief {
            return AllocError::OutOfMemory(brief);
        }
        let report = self.with_pending(request, self.pool.refusal(request, brief.verdict));
        AllocError::OutOfMemory(Box::new(OomReport { waited: brief.waited, ..report }))
    }

    /// The pool's report, with the frees that wait for other streams. If they are what is missing, they are to blame.
    fn with_pending(&self, request: &Request<'_>, mut report: OomReport) -> OomReport {
        let would_fit = |freed: &[Block]| match freed {
            [] => None,
            freed => self.pool.would_fit(request, freed),
        };
        let (pending, waiting) = self.pending_with(would_fit);
        report.what_if.pending_done = report.what_if.pending_done.or(waiting);
        report.pending.blocks += pending.blocks;
        report.pending.bytes += pending.bytes;
        report.pending.stranded_bytes += pending.stranded_bytes;
        let unreserved = report.limit.map_or(0, |limit| limit.saturating_sub(report.reserved));
        let lost = pending.stranded_bytes > 0
            && report.free.saturating_add(unreserved) < report.rounded
            && report.rounded
                <= report.free.saturating_add(unreserved).saturating_add(pending.stranded_bytes);
        if matches!(report.verdict, Verdict::Exhausted | Verdict::Fragmented)
            && (waiting == Some(true) || lost)
        {
            report.verdict = Verdict::Pinned;
        }
        report
    }

    /// Whether another thread may free something. What is pending was freed.
    fn others_may_free(&self) -> bool {
        self.retry.others_may_free(|| {
            let pending = |blocks: Vec<&Block>| Some(blocks.into_iter().copied().collect());
            let pending: Vec<Block> = self.pending.of_the_first(u64::MAX, pending).unwrap_or_default();
            self.pool.has_orphaned_blocks(&pending)
        })
    }
}

// SAFETY: every block is one of the pool, which makes the same promises; work on its memory that was given before comes
// first, in the order of the compute stream or because its events have passed.
unsafe impl Allocator for StreamAllocator {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.pool.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.pool.address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if let Some(error) = self.compute.driver().poison() {
            return Err(self.lost(error));
        }
        self.threads.note(&self.retry, AllocatorRetry::meet);
        self.poll();
        self.allocate_or_wait(request).map_err(|error| self.explain(request, error))
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        self.threads.note(&self.retry, AllocatorRetry::meet_freeing);
        let streams = self.streams_of_freed(&block)?;
        if !streams.is_empty() {
            self.defer(block, &streams);
            return Ok(());
        }
        // SAFETY: as our caller promises; no other stream uses the block.
        let outcome = unsafe { self.pool.deallocate(block) };
        self.notify();
        outcome
    }

    fn stats(&self) -> Stats {
        Stats { retry: self.retry.stats(), ..self.pool.stats() }
    }

    fn bytes_in_use(&self) -> u64 {
        self.pool.bytes_in_use()
    }

    fn tracks_sizes(&self) -> bool {
        self.pool.tracks_sizes()
    }

    fn as_accounting(&self) -> Option<&dyn Accounting> {
        Some(self)
    }

    fn as_inspection(&self) -> Option<&dyn Inspection> {
        Some(self)
    }

    fn as_wait_hints(&self) -> Option<&dyn WaitHints> {
        Some(self)
    }

    fn as_stream_order(&self) -> Option<&dyn StreamOrder> {
        Some(self)
    }

    fn as_upkeep(&self) -> Option<&dyn Upkeep> {
        Some(self)
    }
}

impl Drop for StreamAllocator {
    fn drop(&mut self) {
        for block in self.pending.finish() {
            self.settle(block);
        }
    }
}

impl fmt::Debug for StreamAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pool, compute) = (&self.pool, &self.compute);
        f.debug_struct("StreamAllocator")
            .field("pool", pool)
            .field("compute", compute)
            .finish_non_exhaustive()
    }
}
