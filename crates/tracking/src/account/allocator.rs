//! An allocator that keeps the accounts of one op execution.
//!
//! Source of the accounting: TensorFlow's `TrackingAllocator`. It wraps another allocator and counts what passes
//! through: bytes in total, bytes live, the high-water mark of bytes live. It lives as long as the last allocation
//! made through it, as results outlive the op that made them.
//!
//! Who holds live bytes is kept in the pool's ledger alone; this account answers only what the op itself did.

mod counts;
mod notes;

use std::sync::Arc;
use std::time::Instant;

use bfc_core::sync::{BiasedGuard, BiasedMutex, Mutex, ThreadNumber, lock};
use bfc_core::{
    AddressSpace, AllocError, Allocator, AllocatorSnapshot, Block, BlockError, Bytes, Category, Damage,
    LastResort, Ledger, MemoryKind, OomReport, OwnerBytes, OwnerId, PlannedCounts, RecordError, Request,
    Span, Stats, Stream, Tag, Verdict,
};

use self::counts::Counts;
use super::books::{Books, Seated};
use super::budget::allocate_within;
use super::local::LocalBlocks;
use super::totals::Figures;
use crate::record::Recorder;

/// What a [`TrackingAllocator`] has counted, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// All bytes that were taken.
    pub total_bytes: u64,
    /// The most that was live at a time; 0 where sizes are not tracked.
    pub high_water_bytes: u64,
    /// What is live now; 0 where sizes are not tracked.
    pub live_bytes: u64,
}

/// One allocation or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes taken, or given back if negative.
    pub bytes: i64,
    /// When.
    pub at: Instant,
}

/// Where sizes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The inner allocator's blocks bear their true size.
    Inner,
    /// They do not, so each block is remembered here.
    Local,
    /// Nobody knows sizes: what was asked for is counted, and frees are not.
    Untracked,
}

impl Mode {
    fn of(inner: &dyn Allocator, track_sizes: bool) -> Self {
        match (inner.tracks_sizes(), track_sizes) {
            (true, _) => Self::Inner,
            (false, true) => Self::Local,
            (false, false) => Self::Untracked,
        }
    }
}

/// Wraps an allocator and counts what passes through, for one execution of an op.
///
/// The counters are changed after the inner allocation and before the inner free. So the bytes that all tracking
/// allocators of a pool call live never exceed the pool's own, and no count is ever negative.
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
// In this order: what every allocation looks at stands together. A step touches many of these a few times each, so each should take few
// lines of the cache.
#[derive(Debug)]
#[repr(C)]
pub struct TrackingAllocator {
    /// `None` only while the allocator lies in the books, where nobody has a handle to call it through.
    inner: Option<Arc<dyn Allocator>>,
    /// Where to go when retired; `None` for an allocator that belongs to no tracker, or lies there already.
    books: Option<Arc<Books>>,
    mode: Mode,
    /// The inner allocator's, which is asked for at each allocation.
    kind: MemoryKind,
    records: Option<Box<Mutex<Vec<Record>>>>,
    counts: BiasedMutex<Counts>,
    /// Used in [`Mode::Local`].
    local: Mutex<LocalBlocks>,
    /// Where it waits to be used again, if the books know the inner allocator as one that ops turn to all the time: it keeps its
    /// handles then.
    seat: Option<usize>,
}

impl TrackingAllocator {
    /// Tracks what passes through to `inner`. If `inner` does not track sizes itself, `track_sizes` says whether each
    /// block is remembered here; otherwise only the total is counted, in bytes asked for.
    #[must_use]
    pub fn new(inner: Arc<dyn Allocator>, track_sizes: bool) -> Arc<Self> {
        Arc::new(Self::build(inner, track_sizes, OwnerId::ROOT))
    }

    /// As [`TrackingAllocator::new`], and keeps a record of each allocation and free, which costs heap memory.
    #[must_use]
    pub fn with_records(inner: Arc<dyn Allocator>, track_sizes: bool) -> Arc<Self> {
        let records = Some(Box::default());
        Arc::new(Self { records, ..Self::build(inner, track_sizes, OwnerId::ROOT) })
    }

    /// The allocator of one op execution of a tracker.
    pub(crate) fn for_op(
        inner: Arc<dyn Allocator>,
        owner: OwnerId,
        books: Arc<Books>,
        seat: Option<usize>,
    ) -> Self {
        Self { books: Some(books), seat, ..Self::build(inner, true, owner) }
    }

    fn build(inner: Arc<dyn Allocator>, track_sizes: bool, owner: OwnerId) -> Self {
        Self {
            mode: Mode::of(&*inner, track_sizes),
            kind: inner.memory_kind(),
            counts: BiasedMutex::new(Counts::new(owner, inner.bytes_in_use())),
            inner: Some(inner),
            local: Mutex::new(LocalBlocks::default()),
            records: None,
            books: None,
            seat: None,
        }
    }

    /// Makes a recycled allocator as good as new.
    pub(crate) fn restart(&mut self, inner: Arc<dyn Allocator>, owner: OwnerId, books: Arc<Books>) {
        if self.mode == Mode::Local {
            lock(&self.local).clear();
        }
        self.mode = Mode::of(&*inner, true);
        self.kind = inner.memory_kind();
        *self.counts.get_mut() = Counts::new(owner, inner.bytes_in_use());
        self.inner = Some(inner);
        self.books = Some(books);
    }

    /// The same for one that has kept its handles, and that nobody uses.
    pub(crate) fn resume(&self, owner: OwnerId) {
        if self.mode == Mode::Local {
            lock(&self.local).clear();
        }
        let live_before = self.inner().bytes_in_use();
        *self.counts() = Counts::new(owner, live_before);
    }

    /// Waits in its seat to be used again, if nothing refers to it any more.
    fn rest(self: &Arc<Self>, seat: usize) {
        if !self.counts().comes_to_rest() {
            return;
        }
        // This handle and those of the seat. One that somebody kept would come to count for another op.
        let unused = Arc::strong_count(self) == 1 + Seated::HANDLES && Arc::weak_count(self) == 0;
        if let Some(books) = &self.books {
            books.seat(self, self.inner(), seat, unused);
        }
    }

    /// Nothing else is called while this is held.
    #[inline]
    fn counts(&self) -> BiasedGuard<'_, Counts> {
        self.counts.lock(ThreadNumber::current())
    }

    /// What has been counted so far.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.counts().sizes()
    }

    /// Every allocation and free so far, in order; empty unless made by [`TrackingAllocator::with_records`].
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.records.as_ref().map_or_else(Vec::new, |records| lock(records).clone())
    }

    /// Whether `allocator` is this one, or the one that this one wraps.
    pub(crate) fn stands_for(&self, allocator: &Arc<dyn Allocator>) -> bool {
        let address = Arc::as_ptr(allocator).cast::<()>();
        let wraps = self.inner.as_ref().is_some_and(|inner| Arc::as_ptr(inner).cast::<()>() == address);
        wraps || std::ptr::from_ref(self).cast::<()>() == address
    }

    /// Gives up the op's own reference, and adds what the op has come to. Whether nothing refers to this one any more.
    #[inline]
    pub(crate) fn end_op(&self, figures: &mut Figures) -> bool {
        let mut counts = self.counts();
        counts.references -= 1;
        figures.add(&counts.sizes(), counts.live_before, counts.rounding, &counts.classes);
        counts.comes_to_rest()
    }

    /// Its seat in the books, and the allocator that it is over, if it has one.
    pub(crate) fn seat(&self) -> Option<(usize, &Arc<dyn Allocator>)> {
        Some((self.seat?, self.inner.as_ref()?))
    }

    /// Whether it has a seat in the books.
    pub(crate) const fn has_seat(&self) -> bool {
        self.seat.is_some()
    }

    fn inner(&self) -> &Arc<dyn Allocator> {
        self.inner.as_ref().expect("an allocator in the books has no handle to be called through")
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.books.as_ref().map(|books| &books.recorder)
    }

    /// Counts `bytes` more, whose allocation has succeeded.
    fn add(&self, bytes: u64, requested: u64, tag: Tag) {
        self.counts().add(bytes, requested, tag.category, self.mode != Mode::Untracked);
        if tag.category == Category::Activation {
            self.note_kept(bytes);
        }
        self.record(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts `bytes` as no longer live, and says whether any are kept for a backward pass; `None`, and nothing counted,
    /// if fewer are live.
    fn subtract(&self, bytes: u64) -> Option<bool> {
        let any_kept = {
            let mut counts = self.counts();
            counts.subtract(bytes).then_some(counts.saved > 0)
        };
        if any_kept.is_some() {
            self.record(i64::try_from(bytes).map_or(i64::MIN, |bytes| -bytes));
        }
        any_kept
    }

    /// Undoes [`subtract`](Self::subtract) for a free that failed.
    fn restore(&self, bytes: u64) {
        self.counts().restore(bytes);
        self.record(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    #[inline]
    fn record(&self, bytes: i64) {
        if self.records.is_some() {
            self.add_record(bytes);
        }
    }

    #[cold]
    fn add_record(&self, bytes: i64) {
        if let Some(records) = &self.records {
            lock(records).push(Record { bytes, at: Instant::now() });
        }
    }

    /// A number that tells a block from all others that are live in its pool. Numbers are never used again, so a stale
    /// block's free is told apart; where there are none, its address has to do.
    const fn recorded_id(&self, block: &Block) -> u64 {
        match self.mode {
            Mode::Inner if block.id != 0 => block.id,
            _ => block.address,
        }
    }

    /// Allocates for a request that names who is charged.
    // A block is moved as such, and not as a part of what the inner allocator returns: it was just written in two pieces, and whoever
    // moves it across these waits longer than all the counting takes.
    #[inline]
    fn allocate_owned(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        match allocate_within(&**self.inner(), request) {
            Ok(mut block) => {
                self.count(&mut block, request);
                Ok(block)
            }
            Err(error) => self.allocate_after(error, request),
        }
    }

    /// Counts a block that the inner allocator has granted, and makes it one of this allocator.
    #[inline]
    fn count(&self, block: &mut Block, request: &Request<'_>) {
        if block.is_empty() {
            return;
        }
        if self.mode == Mode::Local {
            *block = lock(&self.local).insert(*block, request.bytes);
        }
        let bytes = if self.mode == Mode::Untracked { request.bytes } else { block.bytes };
        self.add(bytes, request.bytes, request.tag);
        if let Some(recorder) = self.recorder() {
            let id = self.recorded_id(block);
            recorder.post_alloc(&**self.inner(), block, id, request.bytes, request.tag);
        }
    }

    /// Asks those who may free memory, tries again as they do, and records the failure if nothing helps.
    #[cold]
    fn allocate_after(&self, error: AllocError, request: &Request<'_>) -> Result<Block, AllocError> {
        let again = || allocate_within(&**self.inner(), request);
        let told = !LastResort::is_busy();
        let mut result = match &self.books {
            Some(books) => books.last_resort.rescue(error, again),
            None => Err(error),
        };
        match &mut result {
            Ok(block) => self.count(block, request),
            Err(error) => {
                let no_memory =
                    !matches!(error, AllocError::BadAlignment { .. } | AllocError::Reentrant { .. });
                if let (Some(recorder), true, true) = (self.recorder(), told, no_memory) {
                    recorder.post_failed(&**self.inner(), request, error.out_of_memory());
                }
            }
        }
        result
    }

    /// The block as the inner allocator knows it.
    fn inner_block(&self, block: &Block) -> Result<Block, BlockError> {
        match self.mode {
            Mode::Local if !block.is_empty() => lock(&self.local).find(block).map(|entry| entry.inner),
            _ => Ok(*block),
        }
    }

    /// Why a block of more bytes than are live cannot be one of ours. The pool knows best.
    fn reject(&self, block: Block) -> BlockError {
        self.inner().requested_bytes(&block).err().unwrap_or(BlockError::Foreign { block })
    }
}

// SAFETY: blocks come from the inner allocator, which keeps the promise, and are handed on with the same address and
// size; each goes back exactly when the caller gives it back.
unsafe impl Allocator for TrackingAllocator {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.kind
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.inner().address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if request.tag.owner == OwnerId::ROOT {
            let mut owned = *request;
            owned.tag.owner = self.counts().owner;
            return self.allocate_owned(&owned);
        }
        self.allocate_owned(request)
    }

    // The ledger changes before the inner free, so that it never shows more than the pool holds. The price: while a wrong
    // block (stale or foreign) is on its way to being refused, its bytes are missing here, and a rightful free on another
    // thread may be refused with it. Such a block is a caller's error to begin with.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        let entry = match self.mode {
            Mode::Local => Some(lock(&self.local).remove(&block)?),
            Mode::Inner | Mode::Untracked => None,
        };
        let inner_block = entry.map_or(block, |entry| entry.inner);
        let any_kept = match self.mode {
            Mode::Untracked => false,
            Mode::Inner | Mode::Local => match self.subtract(block.bytes) {
                Some(any_kept) => any_kept,
                None => return Err(self.reject(block)),
            },
        };
        // Costs nothing in ops of which nothing is kept.
        let kept =
            any_kept && self.inner().tag(&inner_block).is_ok_and(|tag| tag.category == Category::Activation);
        if let Some(recorder) = self.recorder() {
            recorder.post_free(&**self.inner(), &block, self.recorded_id(&block));
        }
        // SAFETY: the caller promises that nothing uses the memory any more.
        match unsafe { self.inner().deallocate(inner_block) } {
            Ok(()) => {
                self.note_taken_back(&block, kept);
                Ok(())
            }
            Err(error) => {
                if error.took_back() {
                    self.note_taken_back(&block, kept);
                } else {
                    self.note_still_live(&block, entry);
                }
                Err(error)
            }
        }
    }

    fn stats(&self) -> Stats {
        self.inner().stats()
    }

    fn bytes_in_use(&self) -> u64 {
        self.inner().bytes_in_use()
    }

    fn stream(&self) -> Option<&Arc<Stream>> {
        self.inner().stream()
    }

    fn regions(&self) -> Vec<Span> {
        self.inner().regions()
    }

    fn clear_stats(&self) -> bool {
        self.inner().clear_stats()
    }

    fn tracks_sizes(&self) -> bool {
        self.mode != Mode::Untracked
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        match self.mode {
            Mode::Local if !block.is_empty() => lock(&self.local).find(block).map(|entry| entry.requested),
            _ => self.inner().requested_bytes(block),
        }
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        match self.mode {
            Mode::Local => lock(&self.local).block_at(address),
            Mode::Inner | Mode::Untracked => self.inner().block_at(address),
        }
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.inner().tag(&self.inner_block(block)?)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        let inner = self.inner_block(block)?;
        let before = self.inner().tag(&inner);
        self.inner().retag(&inner, tag)?;
        self.note_retagged(block, before.ok(), tag);
        Ok(())
    }

    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        let before = self.inner().recategorize(&self.inner_block(block)?, from, to)?;
        if from.contains(&before.category) {
            self.note_retagged(block, Some(before), Tag { category: to, ..before });
        }
        Ok(before)
    }

    fn ledger(&self) -> Ledger {
        self.inner().ledger()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        self.inner().snapshot()
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.inner().owner_bytes(owner)
    }

    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        self.inner().refusal(request, verdict)
    }

    fn set_safe_frontier(&self, count: u64) {
        self.inner().set_safe_frontier(count);
    }

    fn record_stream(&self, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError> {
        self.inner().record_stream(block, stream)
    }

    fn trim(&self, keep: Bytes) -> u64 {
        self.inner().trim(keep)
    }

    fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        self.inner().would_fit(request, freed)
    }

    fn find_damage(&self) -> Vec<Damage> {
        self.inner().find_damage()
    }

    fn expect_frees(&self, begin: bool) {
        self.inner().expect_frees(begin);
    }

    fn begin_step(&self) {
        self.inner().begin_step();
    }

    fn plan_counts(&self) -> Option<PlannedCounts> {
        self.inner().plan_counts()
    }

    fn retire(mut self: Arc<Self>) {
        if let Some(seat) = self.seat {
            self.rest(seat);
            return;
        }
        // Only the last handle recycles: in the books, beside another one, the allocator would keep its pool alive. If
        // every handle goes without passing here as the last, the allocator is simply dropped. Most that pass are not the
        // last, and looking is cheaper than claiming.
        if Arc::strong_count(&self) > 1 {
            return;
        }
        let Some(this) = Arc::get_mut(&mut self) else { return };
        if this.counts.get_mut().references != 0 {
            return;
        }
        let Some(books) = this.books.take() else { return };
        if let Some(inner) = this.inner.take() {
            inner.retire();
        }
        books.put_allocator(self);
    }
}

#[cfg(test)]
mod tests;
