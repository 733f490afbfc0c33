//! An allocator that keeps the accounts of one op execution.
//!
//! Source of the accounting: TensorFlow's `TrackingAllocator`. It wraps another allocator and counts what passes
//! through: bytes in total, bytes live, the high-water mark of bytes live. It lives as long as the last allocation
//! made through it, as results outlive the op that made them.
//!
//! Who holds live bytes is kept in the pool's ledger alone; this account answers only what the op itself did.

use std::sync::{Arc, Weak};
use std::time::Instant;

use bfc_core::sync::atomic::{AtomicU64, Ordering};
use bfc_core::sync::{Mutex, lock};
use bfc_core::{
    AllocError, Allocator, Block, BlockError, Bytes, Category, Damage, LastResort, Ledger, MemoryKind,
    OomReport, OwnerBytes, OwnerId, PlannedCounts, RecordError, Request, Span, Stats, Stream, Tag, Verdict,
};

use crate::bin::Bin;
use crate::budget::allocate_within;
use crate::local::LocalBlocks;
use crate::record::Recorder;
use crate::saved::Saves;
use crate::totals::Class;

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
#[derive(Debug)]
pub struct TrackingAllocator {
    /// `None` only while the allocator lies in its bin, where nobody has a handle to call it through.
    inner: Option<Arc<dyn Allocator>>,
    /// Charged for requests that name nobody.
    owner: OwnerId,
    mode: Mode,
    /// One for the op, and one for each live allocation.
    references: AtomicU64,
    live: AtomicU64,
    high_water: AtomicU64,
    /// Bytes taken by class; together they are the total.
    classes: [AtomicU64; Class::COUNT],
    /// Bytes taken beyond those asked for.
    rounding: AtomicU64,
    /// What was live in the inner allocator when the op turned to it.
    live_before: u64,
    /// Live bytes that are kept for a backward pass.
    saved: AtomicU64,
    /// Used in [`Mode::Local`].
    local: Mutex<LocalBlocks>,
    records: Option<Mutex<Vec<Record>>>,
    /// Where to go when retired; dangling for an allocator that belongs to no tracker.
    bin: Weak<Bin>,
    recorder: Option<Arc<Recorder>>,
    saves: Option<Arc<Saves>>,
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
        let records = Some(Mutex::new(Vec::new()));
        Arc::new(Self { records, ..Self::build(inner, track_sizes, OwnerId::ROOT) })
    }

    /// The allocator of one op execution of a tracker.
    pub(crate) fn for_op(
        inner: Arc<dyn Allocator>,
        owner: OwnerId,
        bin: Weak<Bin>,
        recorder: Arc<Recorder>,
        saves: Arc<Saves>,
    ) -> Self {
        Self { bin, recorder: Some(recorder), saves: Some(saves), ..Self::build(inner, true, owner) }
    }

    fn build(inner: Arc<dyn Allocator>, track_sizes: bool, owner: OwnerId) -> Self {
        Self {
            mode: Mode::of(&*inner, track_sizes),
            live_before: inner.bytes_in_use(),
            inner: Some(inner),
            owner,
            references: AtomicU64::new(1),
            live: AtomicU64::new(0),
            high_water: AtomicU64::new(0),
            classes: std::array::from_fn(|_| AtomicU64::new(0)),
            rounding: AtomicU64::new(0),
            saved: AtomicU64::new(0),
            local: Mutex::new(LocalBlocks::default()),
            records: None,
            bin: Weak::new(),
            recorder: None,
            saves: None,
        }
    }

    /// Makes a recycled allocator as good as new.
    pub(crate) fn restart(&mut self, inner: Arc<dyn Allocator>, owner: OwnerId) {
        self.mode = Mode::of(&*inner, true);
        self.live_before = inner.bytes_in_use();
        self.inner = Some(inner);
        self.owner = owner;
        *self.references.get_mut() = 1;
        *self.live.get_mut() = 0;
        *self.high_water.get_mut() = 0;
        *self.rounding.get_mut() = 0;
        *self.saved.get_mut() = 0;
        for class in &mut self.classes {
            *class.get_mut() = 0;
        }
        lock(&self.local).clear();
    }

    /// What has been counted so far.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            total_bytes: self.class_bytes().iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            high_water_bytes: self.high_water.load(Ordering::Relaxed),
            live_bytes: self.live.load(Ordering::Relaxed),
        }
    }

    /// Every allocation and free so far, in order; empty unless made by [`TrackingAllocator::with_records`].
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.records.as_ref().map_or_else(Vec::new, |records| lock(records).clone())
    }

    /// Bytes taken by class.
    pub(crate) fn class_bytes(&self) -> [u64; Class::COUNT] {
        std::array::from_fn(|class| self.classes[class].load(Ordering::Relaxed))
    }

    /// Bytes taken beyond those asked for.
    pub(crate) fn rounding_bytes(&self) -> u64 {
        self.rounding.load(Ordering::Relaxed)
    }

    /// What was live in the inner allocator, whoever held it, when the op turned to it.
    pub(crate) const fn live_before(&self) -> u64 {
        self.live_before
    }

    /// Whether `allocator` is this one, or the one that this one wraps.
    pub(crate) fn stands_for(&self, allocator: &Arc<dyn Allocator>) -> bool {
        let address = Arc::as_ptr(allocator).cast::<()>();
        let wraps = self.inner.as_ref().is_some_and(|inner| Arc::as_ptr(inner).cast::<()>() == address);
        wraps || std::ptr::from_ref(self).cast::<()>() == address
    }

    /// Gives up the op's own reference.
    pub(crate) fn end_op(self: Arc<Self>) {
        self.references.fetch_sub(1, Ordering::AcqRel);
        self.retire();
    }

    fn inner(&self) -> &Arc<dyn Allocator> {
        self.inner.as_ref().expect("an allocator in the bin has no handle to be called through")
    }

    /// Counts `bytes` more, whose allocation has succeeded.
    fn add(&self, bytes: u64, requested: u64, tag: Tag) {
        if self.mode != Mode::Untracked {
            let live = self.live.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
            // Looking first spares most events a write that others must wait for.
            if live > self.high_water.load(Ordering::Relaxed) {
                self.high_water.fetch_max(live, Ordering::Relaxed);
            }
        }
        if bytes != requested {
            self.rounding.fetch_add(bytes.saturating_sub(requested), Ordering::Relaxed);
        }
        if tag.category == Category::Activation {
            self.note_kept(bytes);
        }
        self.classes[Class::of(tag.category) as usize].fetch_add(bytes, Ordering::Relaxed);
        self.references.fetch_add(1, Ordering::Relaxed);
        self.record(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts `bytes` as no longer live; `false`, and nothing counted, if fewer are live.
    fn subtract(&self, bytes: u64) -> bool {
        let live =
            self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |live| live.checked_sub(bytes));
        if live.is_ok() {
            self.record(i64::try_from(bytes).map_or(i64::MIN, |bytes| -bytes));
        }
        live.is_ok()
    }

    /// Undoes [`subtract`](Self::subtract) for a free that failed.
    fn restore(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::Relaxed);
        self.record(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts bytes as kept for a backward pass from now on.
    #[cold]
    fn note_kept(&self, bytes: u64) {
        if let Some(saves) = &self.saves {
            self.saved.fetch_add(bytes, Ordering::Relaxed);
            saves.keep(self.owner, bytes);
        }
    }

    /// Counts bytes as kept no more.
    #[cold]
    fn note_let_go(&self, bytes: u64) {
        if let Some(saves) = &self.saves {
            self.saved.fetch_sub(bytes, Ordering::Relaxed);
            saves.let_go(self.owner, bytes);
        }
    }

    /// Whether a live block is kept for a backward pass. Costs nothing in ops of which nothing is.
    fn is_kept(&self, block: &Block) -> bool {
        self.saved.load(Ordering::Relaxed) > 0
            && self.tag(block).is_ok_and(|tag| tag.category == Category::Activation)
    }

    /// Counts bytes for another class, as for scratch that turns out to be the op's result.
    fn reclass(&self, bytes: u64, from: Class, to: Class) {
        if from == to || self.mode == Mode::Untracked {
            return;
        }
        let take = |taken: u64| taken.checked_sub(bytes);
        if self.classes[from as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            self.classes[to as usize].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn record(&self, bytes: i64) {
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

    /// Takes back what was recorded of a free that then failed, if the block is live.
    #[cold]
    fn record_still_live(&self, block: &Block) {
        if let Some(recorder) = &self.recorder
            && let (Ok(tag), Ok(requested)) = (self.tag(block), self.requested_bytes(block))
        {
            recorder.post_alloc(&**self.inner(), block, self.recorded_id(block), requested, tag);
        }
    }

    /// Asks those who may free memory, tries again as they do, and records the failure if nothing helps.
    #[cold]
    fn allocate_after(&self, error: AllocError, request: &Request<'_>) -> Result<Block, AllocError> {
        let again = || allocate_within(&**self.inner(), request);
        let told = !LastResort::is_busy();
        let outcome = match self.bin.upgrade() {
            Some(bin) => bin.last_resort.rescue(error, again),
            None => Err(error),
        };
        if let (Err(error), Some(recorder), true) = (&outcome, &self.recorder, told) {
            let no_memory = !matches!(error, AllocError::BadAlignment { .. } | AllocError::Reentrant { .. });
            if no_memory {
                recorder.post_failed(&**self.inner(), request, error.out_of_memory());
            }
        }
        outcome
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
        self.inner().memory_kind()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let mut request = *request;
        if request.tag.owner == OwnerId::ROOT {
            request.tag.owner = self.owner;
        }
        let mut block = match allocate_within(&**self.inner(), &request) {
            Ok(block) => block,
            Err(error) => self.allocate_after(error, &request)?,
        };
        if block.is_empty() {
            return Ok(block);
        }
        if self.mode == Mode::Local {
            block = lock(&self.local).insert(block, request.bytes);
        }
        let bytes = if self.mode == Mode::Untracked { request.bytes } else { block.bytes };
        self.add(bytes, request.bytes, request.tag);
        if let Some(recorder) = &self.recorder {
            let id = self.recorded_id(&block);
            recorder.post_alloc(&**self.inner(), &block, id, request.bytes, request.tag);
        }
        Ok(block)
    }

    // The ledger changes before the inner free, so that it never shows more than the pool holds. The price: while a wrong
    // block (stale or foreign) is on its way to being refused, its bytes are missing here, and a rightful free on another
    // thread may be refused with it. Such a block is a caller's error to begin with.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        let kept = self.is_kept(&block);
        let entry = match self.mode {
            Mode::Local => Some(lock(&self.local).remove(&block)?),
            Mode::Inner | Mode::Untracked => None,
        };
        if self.mode != Mode::Untracked && !self.subtract(block.bytes) {
            return Err(self.reject(block));
        }
        if let Some(recorder) = &self.recorder {
            recorder.post_free(&**self.inner(), &block, self.recorded_id(&block));
        }
        // SAFETY: the caller promises that nothing uses the memory any more.
        let result = unsafe { self.inner().deallocate(entry.map_or(block, |entry| entry.inner)) };
        if kept && result.as_ref().map_or_else(BlockError::took_back, |()| true) {
            self.note_let_go(block.bytes);
        }
        match result {
            Ok(()) => {
                self.references.fetch_sub(1, Ordering::AcqRel);
            }
            Err(error) if error.took_back() => {
                self.references.fetch_sub(1, Ordering::AcqRel);
            }
            Err(_) if self.mode != Mode::Untracked => {
                self.restore(block.bytes);
                if let Some(entry) = entry {
                    lock(&self.local).restore(entry);
                }
                self.record_still_live(&block);
            }
            Err(_) => {}
        }
        result
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
        if let Some(recorder) = &self.recorder
            && !block.is_empty()
        {
            recorder.post_retag(&**self.inner(), block, self.recorded_id(block), tag);
        }
        if let Ok(before) = before {
            match [before.category, tag.category].map(|category| category == Category::Activation) {
                [false, true] => self.note_kept(block.bytes),
                [true, false] => self.note_let_go(block.bytes),
                _ => {}
            }
            self.reclass(block.bytes, Class::of(before.category), Class::of(tag.category));
        }
        Ok(())
    }

    fn ledger(&self) -> Ledger {
        self.inner().ledger()
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

    fn begin_step(&self) {
        self.inner().begin_step();
    }

    fn plan_counts(&self) -> Option<PlannedCounts> {
        self.inner().plan_counts()
    }

    fn retire(mut self: Arc<Self>) {
        if self.references.load(Ordering::Acquire) != 0 {
            return;
        }
        let Some(bin) = self.bin.upgrade() else { return };
        // Only the last handle recycles: in the bin, beside another one, the allocator would keep its pool alive. If
        // every handle goes without passing here as the last, the allocator is simply dropped.
        if let Some(this) = Arc::get_mut(&mut self) {
            if let Some(inner) = this.inner.take() {
                inner.retire();
            }
            bin.put(self);
        }
    }
}

#[cfg(test)]
mod tests;
