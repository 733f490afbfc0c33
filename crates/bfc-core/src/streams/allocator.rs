//! A pool whose blocks other streams may use.

mod attempt;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::deferred::Deferred;
use crate::accounting::retry::AllocatorRetry;
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::oom::PendingFrees;
use crate::allocator::stats::Stats;
use crate::allocator::{Allocator, PoolView, Request};
use crate::base::memory::{AddressSpace, Block, MemoryKind};
use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::{Mutex, ThreadNumber, lock};
use crate::source::error::SourceError;
use crate::source::stream::Stream;

/// How long a request waits for frees, as upstream.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The most waits for frees that find no memory: another thread took it, or the driver reports wrong states.
const FRUITLESS_WAITS: u32 = 16;

/// A pool of device memory that belongs to one compute stream, and whose blocks other streams may use.
///
/// A freed block is reusable immediately, because new work on the compute stream runs after the old work. A caller that
/// uses a block on another stream first calls [`record_stream`](crate::PoolView::record_stream). That stream then
/// waits for the work submitted to the compute stream so far. After the free, from any thread, the block stays pending
/// until the work submitted to the other stream so far has ended.
///
/// Each request collects ended frees without waiting. If memory runs out, the request waits for the smallest set of
/// pending frees that makes room, and for none that would not help. After that it waits for other threads, as in the
/// pool below, and fails immediately if no other thread could free. Pending blocks count as in use.
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
#[derive(Debug)]
pub struct StreamAllocator {
    pool: Arc<dyn Allocator>,
    compute: Arc<Stream>,
    /// Blocks in use on other streams, live or pending, by address.
    uses: Mutex<BTreeMap<u64, Used>>,
    /// The number of these blocks. If it is 0, a free skips the lookup.
    used: AtomicUsize,
    pending: Deferred<Block>,
    stranded_bytes: AtomicU64,
    retry: AllocatorRetry,
    retry_timeout: Duration,
    /// The number of the thread that called last, which is registered with the retry.
    latest_thread: AtomicU64,
}

/// The record of a block in use on another stream.
#[derive(Debug)]
struct Used {
    block: Block,
    streams: Vec<Arc<Stream>>,
    /// Whether the block was freed and waits for the streams.
    freed: bool,
}

/// The state observed before an attempt.
#[derive(Debug)]
struct Observation {
    /// Frees that had to wait for streams so far.
    pushed: u64,
    /// Blocks allocated so far.
    allocations: u64,
    /// Whether no other thread could free from this moment on.
    alone: bool,
}

impl StreamAllocator {
    /// Creates an allocator for work on `compute`. No other code may allocate from `pool`: its blocks are free before
    /// the work on them has ended.
    #[must_use]
    pub fn new(pool: Arc<dyn Allocator>, compute: Arc<Stream>) -> Self {
        let retry = AllocatorRetry::new();
        pool.wake_also(&retry.waker());
        Self {
            pool,
            compute,
            uses: Mutex::default(),
            used: AtomicUsize::new(0),
            pending: Deferred::new(),
            stranded_bytes: AtomicU64::new(0),
            retry,
            retry_timeout: RETRY_TIMEOUT,
            latest_thread: AtomicU64::new(0),
        }
    }

    /// Sets how long a request waits for other threads to free, in place of the pool's own timeout. 0 disables waiting.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Returns the stream that the memory belongs to.
    #[must_use]
    pub const fn compute(&self) -> &Arc<Stream> {
        &self.compute
    }

    /// Returns the frees that wait for other streams.
    #[must_use]
    pub fn pending_frees(&self) -> PendingFrees {
        self.pending_with(|_| ()).0
    }

    /// Reads the pending frees and calls `ask` on their blocks, under one lock acquisition.
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

    /// Frees the pending blocks that no stream uses any more, without waiting. Each request does so by itself.
    pub fn poll(&self) {
        for block in self.pending.passed() {
            self.free_pending(block);
        }
    }

    /// Frees a pending block.
    fn free_pending(&self, block: Block) {
        self.forget(&block);
        // SAFETY: the caller freed the block, and all work on other streams has ended.
        if unsafe { self.pool.deallocate(block) }.is_err() {
            self.stranded_bytes.fetch_add(block.bytes, Ordering::Relaxed);
        }
        self.notify();
    }

    /// Wakes the waiters that a free may serve.
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

    /// Marks a block as freed and returns the streams that its free must wait for.
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

    /// Fails if the block was freed, although its memory is still pending.
    fn refuse_freed(&self, block: &Block) -> Result<(), BlockError> {
        let freed = self.used.load(Ordering::Relaxed) > 0
            && lock(&self.uses).get(&block.address).is_some_and(|used| used.freed && used.block == *block);
        if freed { Err(BlockError::Stale { block: *block }) } else { Ok(()) }
    }

    /// Defers the free of a block until these streams have ended their work.
    fn defer(&self, block: Block, streams: &[Arc<Stream>]) {
        match self.pending.marks(streams) {
            Ok(marks) => {
                self.pending.push(block, marks);
                self.retry.notify();
            }
            // Without a mark, no later check finds the end of the work, so the call waits now. A lost device runs no
            // work.
            Err(error) if error.is_poisoned() => self.free_pending(block),
            Err(_) if streams.iter().all(|stream| stream.driver().synchronize().is_ok()) => {
                self.free_pending(block)
            }
            Err(_) => {
                self.stranded_bytes.fetch_add(block.bytes, Ordering::Relaxed);
            }
        }
    }

    /// Registers the calling thread with the retry, unless it called last. A thread that finds its own number here wrote
    /// the number itself.
    #[inline]
    fn note_thread(&self, register: fn(&AllocatorRetry, u64)) {
        let thread = ThreadNumber::current().get();
        if self.latest_thread.load(Ordering::Relaxed) != thread {
            register(&self.retry, thread);
            self.latest_thread.store(thread, Ordering::Relaxed);
        }
    }

    fn source_error(&self, error: SourceError) -> AllocError {
        AllocError::Source { allocator: self.pool.name().to_owned(), error }
    }
}

// SAFETY: each block comes from the pool, which makes the same guarantees. Earlier work on its memory runs first: in
// the order of the compute stream, or because its events have passed.
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
            return Err(self.source_error(error));
        }
        self.note_thread(AllocatorRetry::note_allocating_thread);
        self.poll();
        self.allocate_or_wait(request).map_err(|error| self.explain(request, error))
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        self.note_thread(AllocatorRetry::note_freeing_thread);
        let streams = self.streams_of_freed(&block)?;
        if !streams.is_empty() {
            self.defer(block, &streams);
            return Ok(());
        }
        // SAFETY: guaranteed by the caller; no other stream uses the block.
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

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

impl Drop for StreamAllocator {
    fn drop(&mut self) {
        for block in self.pending.finish() {
            self.free_pending(block);
        }
    }
}
