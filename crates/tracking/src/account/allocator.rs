//! The allocator of one op execution, which counts the op's memory.
//!
//! This is TensorFlow's `TrackingAllocator`: it wraps a pool and counts total bytes, live bytes and the
//! high-water mark of live bytes. It is reference-counted. The op holds one handle and each live
//! [`Allocation`](bfc_core::Allocation) holds another. It therefore lives until the op has ended and its last
//! allocation is freed.
//!
//! The pool's ledger alone stores live bytes by owner. This account stores the figures of one execution.

mod notes;
mod resize;
mod sizing;
mod view;

use std::sync::Arc;
use std::time::Instant;

use bfc_core::sync::{Mutex, SpinGuard, SpinMutex, lock};
use bfc_core::{
    AddressSpace, AllocError, Allocator, Block, BlockError, Category, LastResort, MemoryKind, OwnerId,
    PoolView, Request, Stats, Tag,
};

use self::sizing::Sizing;
use super::budget;
use super::state::TrackerState;
use crate::record::{Allocated, Recorder};
use crate::tally::{Counts, Figures};

/// The bytes that a [`TrackingAllocator`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// All bytes ever allocated.
    pub total_bytes: u64,
    /// The most bytes live at one time; 0 where sizes are not tracked.
    pub high_water_bytes: u64,
    /// Bytes live now; 0 where sizes are not tracked.
    pub live_bytes: u64,
}

/// One allocation or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes allocated, or freed if negative.
    pub bytes: i64,
    /// The time of the event.
    pub at: Instant,
}

/// Counts the memory that one execution of an op allocates from the wrapped allocator.
///
/// The counters change after the inner allocation and before the inner free. Therefore the live bytes of all tracking
/// allocators of a pool never exceed the pool's own, and no count is ever negative.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, Request};
/// use highwater_tracking::TrackingAllocator;
///
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
/// let tracking = TrackingAllocator::new(pool, true);
/// let op: Arc<dyn Allocator> = tracking.clone();
/// let scratch = Allocation::new(&op, &Request::new(1000))?;
/// drop(scratch);
/// let result = Allocation::new(&op, &Request::new(256))?;
/// let sizes = tracking.sizes();
/// assert_eq!((sizes.total_bytes, sizes.high_water_bytes, sizes.live_bytes), (1280, 1024, 256));
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[derive(Debug)]
pub struct TrackingAllocator {
    inner: Arc<dyn Allocator>,
    /// The tracker that the op belongs to, if any.
    tracker: Option<Arc<TrackerState>>,
    /// The owner of requests without an owner.
    owner: OwnerId,
    /// The number of the thread that began the op.
    thread: u64,
    /// Bytes live in the inner allocator when the op began to use it.
    live_before: u64,
    sizing: Sizing,
    records: Option<Mutex<Vec<Record>>>,
    held: SpinMutex<Held>,
}

/// The bytes of an allocator. They change together, under one lock.
#[derive(Debug, Default)]
struct Held {
    counts: Counts,
    /// Live bytes that are saved for a backward pass.
    saved: u64,
}

impl TrackingAllocator {
    /// Tracks allocations from `inner`. If `inner` does not track sizes itself, `track_sizes` selects whether to store
    /// each block here. Without it, only the total of requested bytes is counted.
    #[must_use]
    pub fn new(inner: Arc<dyn Allocator>, track_sizes: bool) -> Arc<Self> {
        Arc::new(Self::build(inner, track_sizes, OwnerId::ROOT))
    }

    /// Like [`TrackingAllocator::new`], and also records each allocation and free, which costs heap memory.
    #[must_use]
    pub fn with_records(inner: Arc<dyn Allocator>, track_sizes: bool) -> Arc<Self> {
        let records = Some(Mutex::default());
        Arc::new(Self { records, ..Self::build(inner, track_sizes, OwnerId::ROOT) })
    }

    /// The allocator of one op execution of a tracker.
    pub(crate) fn for_op(
        inner: &Arc<dyn Allocator>,
        owner: OwnerId,
        thread: u64,
        tracker: &Arc<TrackerState>,
    ) -> Arc<Self> {
        let tracker = Some(Arc::clone(tracker));
        Arc::new(Self { tracker, thread, ..Self::build(Arc::clone(inner), true, owner) })
    }

    fn build(inner: Arc<dyn Allocator>, track_sizes: bool, owner: OwnerId) -> Self {
        Self {
            sizing: Sizing::of(&*inner, track_sizes),
            live_before: inner.bytes_in_use(),
            inner,
            tracker: None,
            owner,
            thread: 0,
            records: None,
            held: SpinMutex::default(),
        }
    }

    /// Begins another execution, for `owner` on this thread. Nothing refers to the previous one.
    pub(super) fn reopen(&mut self, owner: OwnerId, thread: u64) {
        (self.owner, self.thread) = (owner, thread);
        self.live_before = self.inner.bytes_in_use();
        *self.held.get_mut() = Held::default();
        self.sizing.reset();
    }

    /// The bytes. No other code runs while they are locked.
    fn held(&self) -> SpinGuard<'_, Held> {
        self.held.lock()
    }

    /// Returns the bytes counted so far.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let counts = self.held().counts;
        Sizes { total_bytes: counts.total(), high_water_bytes: counts.high_water, live_bytes: counts.live }
    }

    /// Returns all allocations and frees so far, in order; empty unless made by [`TrackingAllocator::with_records`].
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.records.as_ref().map_or_else(Vec::new, |records| lock(records).clone())
    }

    /// Returns whether `allocator` is this one or the wrapped one.
    pub(crate) fn is_for(&self, allocator: &Arc<dyn Allocator>) -> bool {
        let address = Arc::as_ptr(allocator).cast::<()>();
        Arc::as_ptr(&self.inner).cast::<()>() == address || std::ptr::from_ref(self).cast::<()>() == address
    }

    /// Adds the counts so far to the figures of the op.
    pub(crate) fn add_to(&self, figures: &mut Figures) {
        self.held().counts.add_to(figures);
    }

    /// Returns the bytes that were live in the inner allocator when the op began to use it.
    pub(crate) const fn live_before(&self) -> u64 {
        self.live_before
    }

    fn inner(&self) -> &Arc<dyn Allocator> {
        &self.inner
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.tracker.as_ref().map(|tracker| &tracker.recorder)
    }

    /// Counts a free before it happens. Returns whether any live bytes are saved for a backward pass. If fewer bytes
    /// are live, counts nothing and returns `None`.
    fn subtract(&self, bytes: u64) -> Option<bool> {
        let any_saved = {
            let held = &mut *self.held();
            held.counts.subtract(bytes).then_some(held.saved > 0)
        };
        if any_saved.is_some() {
            self.record(i64::try_from(bytes).map_or(i64::MIN, |bytes| -bytes));
        }
        any_saved
    }

    /// Appends a record, if records are kept.
    #[inline]
    fn record(&self, bytes: i64) {
        if let Some(records) = &self.records {
            append_to(records, bytes);
        }
    }

    /// Returns a number that distinguishes a block from all other live blocks of its pool. Pools never reuse the ids of
    /// blocks, so a stale block is detected. Blocks without an id use their address.
    const fn recorded_id(&self, block: &Block) -> u64 {
        match self.sizing {
            Sizing::Inner if block.id != 0 => block.id,
            _ => block.address,
        }
    }

    /// A new block for the recording.
    fn allocated<'a>(&'a self, block: &'a Block, requested: u64, tag: Tag) -> Allocated<'a> {
        let (pool, id, thread) = (&*self.inner, self.recorded_id(block), self.thread);
        Allocated { pool, block, id, requested, tag, replaced: None, thread }
    }

    /// Counts and records a block that the inner allocator has granted. Gives it an id of this allocator where the inner
    /// one does not track sizes.
    fn count(&self, block: &mut Block, request: &Request<'_>) {
        if block.is_empty() {
            return;
        }
        if let Sizing::Local(blocks) = &self.sizing {
            *block = lock(blocks).insert(*block, request.bytes);
        }
        if let Some(tracker) = &self.tracker {
            tracker.steps.note(block);
        }
        let bytes = if self.sizing.is_tracked() { block.bytes } else { request.bytes };
        let is_saved = request.tag.category == Category::Activation;
        {
            let held = &mut *self.held();
            held.counts.add(bytes, request.bytes, request.tag.category, self.sizing.is_tracked());
            if is_saved && self.tracker.is_some() {
                held.saved += bytes;
            }
        }
        if let Some(tracker) = self.tracker.as_ref().filter(|_| is_saved) {
            tracker.saves.add(request.tag.owner, bytes);
        }
        self.record(i64::try_from(bytes).unwrap_or(i64::MAX));
        if let Some(recorder) = self.recorder() {
            recorder.post_alloc(&self.allocated(block, request.bytes, request.tag));
        }
    }

    /// Runs the tracker's callbacks that may free memory and retries after each. Records the failure if none helps.
    #[cold]
    fn retry_with_callbacks(&self, error: AllocError, request: &Request<'_>) -> Result<Block, AllocError> {
        let is_nested = LastResort::is_busy();
        let mut result = match &self.tracker {
            Some(tracker) => {
                tracker.last_resort.rescue(error, || budget::allocate_within(&*self.inner, request))
            }
            None => Err(error),
        };
        match &mut result {
            Ok(block) => self.count(block, request),
            Err(AllocError::BadAlignment { .. } | AllocError::Reentrant { .. }) => {}
            Err(_) if is_nested => {}
            Err(error) => {
                if let Some(recorder) = self.recorder() {
                    recorder.post_failed(&*self.inner, request, error.out_of_memory());
                }
            }
        }
        result
    }

    /// Returns the block of the inner allocator.
    fn inner_block(&self, block: &Block) -> Result<Block, BlockError> {
        match &self.sizing {
            Sizing::Local(blocks) if !block.is_empty() => lock(blocks).find(block).map(|entry| entry.inner),
            _ => Ok(*block),
        }
    }

    /// The error for a block of more bytes than are live here. The pool gives the precise reason.
    fn reject(&self, block: Block) -> BlockError {
        self.inner.requested_bytes(&block).err().unwrap_or(BlockError::Foreign { block })
    }
}

#[cold]
fn append_to(records: &Mutex<Vec<Record>>, bytes: i64) {
    lock(records).push(Record { bytes, at: Instant::now() });
}

// SAFETY: blocks come from the inner allocator, which keeps the promise. They keep their address and size. Each returns
// to the inner allocator exactly when the caller frees it.
unsafe impl Allocator for TrackingAllocator {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner().memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.inner().address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let mut owned;
        let request = if request.tag.owner == OwnerId::ROOT {
            owned = *request;
            owned.tag.owner = self.owner;
            &owned
        } else {
            request
        };
        let granted = if budget::is_any_set() {
            budget::allocate_within(&*self.inner, request)
        } else {
            self.inner.allocate(request)
        };
        match granted {
            Ok(mut block) => {
                self.count(&mut block, request);
                Ok(block)
            }
            Err(error) => self.retry_with_callbacks(error, request),
        }
    }

    // The counts change before the inner free, so that they never show more than the pool holds. While the pool rejects
    // a wrong block (stale or foreign), its bytes are missing here, and a valid free on another thread may fail too.
    // Only an error of the caller leads to this.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        let entry = match &self.sizing {
            Sizing::Local(blocks) => Some(lock(blocks).remove(&block)?),
            Sizing::Inner | Sizing::Untracked => None,
        };
        let inner_block = entry.map_or(block, |entry| entry.inner);
        let any_saved = if self.sizing.is_tracked() {
            self.subtract(block.bytes).ok_or_else(|| self.reject(block))?
        } else {
            false
        };
        // Queries the pool only if some live bytes of this op are saved.
        let saved = if any_saved { self.inner().tag(&inner_block).ok() } else { None };
        let saved = saved.filter(|tag| tag.category == Category::Activation);
        if let Some(recorder) = self.recorder() {
            recorder.post_free(&**self.inner(), &block, self.recorded_id(&block));
        }
        // SAFETY: the caller promises that nothing uses the memory any more.
        let freed = unsafe { self.inner().deallocate(inner_block) };
        if freed.as_ref().err().is_some_and(|error| !error.took_back()) {
            self.note_still_live(&block, entry);
        } else if let Some(tag) = saved {
            self.note_released(tag.owner, block.bytes);
        }
        freed
    }

    fn stats(&self) -> Stats {
        self.inner().stats()
    }

    fn bytes_in_use(&self) -> u64 {
        self.inner().bytes_in_use()
    }

    fn tracks_sizes(&self) -> bool {
        self.sizing.is_tracked()
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

#[cfg(test)]
mod tests;
