//! The [`Allocator`] trait and everything that its methods exchange: requests, blocks, attributes, figures and errors.
//!
//! A caller passes a [`Request`] and receives a [`Block`]; an [`Allocation`] frees its block on drop.
//! Errors are data: an [`AllocError::OutOfMemory`] carries an [`OomReport`] that names the largest holders.

pub(crate) mod attributes;
pub(crate) mod error;
pub(crate) mod oom;
pub(crate) mod stats;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::accounting::retry::Want;
use crate::base::ledger::{Category, Ledger, OwnerBytes, Tag};
use crate::base::memory::{AddressSpace, Block, MemoryKind, Span};
use crate::base::owner::OwnerId;
use crate::base::units::Bytes;
use crate::policy::planned::PlannedCounts;
use crate::streams::Stream;
use crate::wrappers::guard::Damage;

use oom::HOLDERS;

pub use attributes::{AllocationAttributes, AllocatorAttributes};
pub use error::{
    AllocError, AttributeError, BlockError, RecordError, RegistryError, SourceError, VisitorError,
};
pub use oom::{Checkpoint, ExceededBudget, Holding, Holdings, OomReport, Subject, Verdict, WhatIf};
pub use stats::{RetryStats, Stats};

/// The alignment that a request gets unless it asks for more, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 64;

/// One wish for memory.
///
/// ```
/// use bfc_core::{Category, Request};
/// let request = Request::new(1000).with_alignment(512).with_category(Category::Workspace);
/// assert_eq!(request.bytes, 1000);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// How many bytes; 0 is answered by [`Block::EMPTY`].
    pub bytes: u64,
    /// Least alignment of the address, a power of two.
    pub alignment: u64,
    /// Who asks and what for.
    pub tag: Tag,
    /// How hard to try.
    pub attributes: AllocationAttributes<'a>,
    /// What will lie in the memory, for reports.
    pub contents: Option<Contents<'a>>,
}

/// What will lie in a block, in words that mean something to those who read reports: an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents<'a> {
    /// Elements along each axis.
    pub extents: &'a [usize],
    /// The type of the elements.
    pub element: &'a str,
}

impl<'a> Request<'a> {
    /// A request for `bytes` bytes with default alignment, attributes and tag.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            alignment: DEFAULT_ALIGNMENT,
            tag: Tag::default(),
            attributes: AllocationAttributes::default(),
            contents: None,
        }
    }

    /// The same request, for memory that will hold this.
    #[must_use]
    pub const fn with_contents(mut self, contents: Contents<'a>) -> Self {
        self.contents = Some(contents);
        self
    }

    /// The same request with another alignment, in bytes.
    #[must_use]
    pub const fn with_alignment(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// The same request, charged to `tag`.
    #[must_use]
    pub const fn with_tag(mut self, tag: Tag) -> Self {
        self.tag = tag;
        self
    }

    /// The same request for another purpose.
    #[must_use]
    pub const fn with_category(mut self, category: crate::Category) -> Self {
        self.tag.category = category;
        self
    }

    /// The same request, tried for as `attributes` say.
    #[must_use]
    pub fn with_attributes(self, attributes: AllocationAttributes<'a>) -> Self {
        Self { attributes, ..self }
    }
}

/// The figures and the ledger of an [`Allocator`], read at one moment: the ledger's total equals `stats.bytes_in_use`.
#[derive(Clone, Debug, Default)]
pub struct AllocatorSnapshot {
    /// The figures.
    pub stats: Stats,
    /// The account book; empty for allocators that keep none.
    pub ledger: Ledger,
}

/// Hands out blocks of one kind of memory.
///
/// # Safety
/// Callers read and write through the addresses of blocks, so an implementation promises: each block returned by
/// [`allocate`](Self::allocate) is [`Block::EMPTY`] or lies in memory of the kind that
/// [`memory_kind`](Self::memory_kind) says, is valid for `bytes` bytes, is aligned as asked, and overlaps no other
/// live block, until it is given back or the allocator is dropped; device memory is valid in the address space that
/// [`address_space`](Self::address_space) says, if that says one; host memory is initialised (to any values), so that
/// plain numbers may be read from it. Addresses of [`MemoryKind::AddressOnly`] are never followed, and need nothing behind them.
pub unsafe trait Allocator: Send + Sync + fmt::Debug {
    /// A name for reports, unique among the allocators of a device.
    fn name(&self) -> &str;

    /// What kind of memory the blocks lie in.
    fn memory_kind(&self) -> MemoryKind;

    /// The address space of the device that the blocks are valid on, as [`SubAllocator::address_space`](crate::SubAllocator::address_space).
    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    /// Hands out a block of at least `request.bytes` bytes.
    ///
    /// # Errors
    /// See [`AllocError`]; the allocator is as it was before.
    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError>;

    /// Takes a block back.
    ///
    /// # Errors
    /// A block that is stale, foreign or made up gives a [`BlockError`], and the allocator is as it was before. An error
    /// that says it [took the block back](BlockError::took_back) all the same leaves the block given back.
    ///
    /// # Safety
    /// No work still uses the block's memory, and none will. An allocator that does not
    /// [track sizes](Self::tracks_sizes) cannot recognise a stale or made-up block of its own: there the block must be live.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError>;

    /// The allocator's figures now.
    fn stats(&self) -> Stats;

    /// Granted bytes alive now, for those who ask often. What [thread caches](crate::ThreadCache) keep may count.
    fn bytes_in_use(&self) -> u64 {
        self.stats().bytes_in_use
    }

    /// The stream in whose order memory is handed out again; `None` for an allocator that knows of none, as on the host.
    fn stream(&self) -> Option<&Arc<Stream>> {
        None
    }

    /// The regions that are held from the source, in the order of addresses; empty for allocators that keep none.
    fn regions(&self) -> Vec<Span> {
        Vec::new()
    }

    /// Starts the figures over: counts at zero, peaks at what is in use now. `false` if that is not supported.
    fn clear_stats(&self) -> bool {
        false
    }

    /// Whether blocks bear their true granted size and can be looked up.
    fn tracks_sizes(&self) -> bool {
        true
    }

    /// Bytes that were asked for when `block` was handed out.
    ///
    /// # Errors
    /// As for [`deallocate`](Self::deallocate).
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        let _ = block;
        Err(BlockError::Untracked)
    }

    /// The live block that starts at `address`.
    ///
    /// # Errors
    /// [`BlockError::NoBlockAt`] for every other address: interior, free, or not of this allocator.
    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        let _ = address;
        Err(BlockError::Untracked)
    }

    /// What `block` is charged to.
    ///
    /// # Errors
    /// As for [`deallocate`](Self::deallocate).
    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        let _ = block;
        Err(BlockError::Untracked)
    }

    /// Charges a live block to another tag, as when a result turns out to be kept for the backward pass.
    ///
    /// # Errors
    /// As for [`deallocate`](Self::deallocate).
    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        let _ = (block, tag);
        Ok(())
    }

    /// Charges a live block to another category, and the same owner, if it is in one of these. What it was charged to.
    ///
    /// # Errors
    /// As for [`tag`](Self::tag); nothing is changed then.
    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        let before = self.tag(block)?;
        if from.contains(&before.category) {
            self.retag(block, Tag { category: to, ..before })?;
        }
        Ok(before)
    }

    /// A copy of the account book; empty for allocators that keep none.
    fn ledger(&self) -> Ledger {
        Ledger::new()
    }

    /// The figures and the ledger, read under one acquisition of the allocator's lock. Reports use it, so that their sums
    /// balance while other threads allocate.
    ///
    /// The default reads both one after the other. Allocators that keep a ledger and serve several threads override it.
    fn snapshot(&self) -> AllocatorSnapshot {
        AllocatorSnapshot { stats: self.stats(), ledger: self.ledger() }
    }

    /// Says that all work up to `count` of the timing counter has ended, so that memory freed before may be merged.
    fn set_safe_frontier(&self, count: u64) {
        let _ = count;
    }

    /// Gives memory that nobody uses back to where it came from, as long as `keep` bytes stay reserved; how many bytes that
    /// were. 0 from allocators that keep none.
    fn trim(&self, keep: Bytes) -> u64 {
        let _ = keep;
        0
    }

    /// Says that `stream` will use a live block: its work from now on comes after all that was given to the stream which
    /// the memory belongs to, and a free from now on counts once the work has ended that `stream` was given until then.
    /// See [`StreamAllocator`](crate::StreamAllocator).
    ///
    /// # Errors
    /// See [`RecordError`]: the stream must not use the block.
    fn record_stream(&self, block: &Block, stream: &Arc<Stream>) -> Result<(), RecordError> {
        let _ = (block, stream);
        Err(RecordError::Unordered { allocator: self.name().to_owned() })
    }

    /// What a request that waits for frees waits for, so far as it decides whom a free wakes. By default it is compared
    /// with no other.
    fn want(&self, request: &Request<'_>) -> Want {
        Want { bytes: request.bytes, class: None }
    }

    /// The most bytes for which any request may be served as things stand; by default, and where nobody can tell, without
    /// a bound. Allocators that wait for an allocator below them wake by it: see
    /// [`notify_up_to`](crate::AllocatorRetry::notify_up_to).
    fn within_reach(&self) -> u64 {
        u64::MAX
    }

    /// Begins, or ends, to expect frees from threads that have not called the allocator yet. See [`ExpectedFrees`], which
    /// calls it.
    fn expect_frees(&self, begin: bool) {
        let _ = begin;
    }

    /// Whether a live block, other than these, was taken by a thread that has ended: whoever has it now may give it back,
    /// though it is no thread that is known to have memory. By default, and where nobody can tell, yes.
    fn left_behind(&self, besides: &[Block]) -> bool {
        let _ = besides;
        true
    }

    /// Whether the request would find room if these live blocks were free. `None` if the allocator cannot tell; it never
    /// says no to more blocks where it says yes to some of them.
    fn would_fit(&self, request: &Request<'_>, freed: &[Block]) -> Option<bool> {
        let _ = (request, freed);
        None
    }

    /// What is to be told of this request if it is refused now for lack of memory, with this verdict: the allocator's
    /// figures, who holds its memory, and what would make room.
    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        let AllocatorSnapshot { stats, ledger } = self.snapshot();
        OomReport {
            limit: stats.bytes_limit,
            reserved: stats.bytes_reserved,
            in_use: stats.bytes_in_use,
            free: stats.free_bytes(),
            largest_free: stats.largest_free_block_bytes,
            holders: ledger.largest_holders(HOLDERS),
            ..OomReport::new(self.name(), request, verdict)
        }
    }

    /// One owner's account.
    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.ledger().owner(owner)
    }

    /// Checks all memory that the allocator guards, and lists the damage found since it was made; empty for allocators
    /// that guard none. See [`GuardAllocator`](crate::GuardAllocator).
    fn find_damage(&self) -> Vec<Damage> {
        Vec::new()
    }

    /// Tells an allocator that follows a [plan](crate::Plan) that a step begins, so that it compares the next request with
    /// the plan's first. Need not be called between steps that follow the plan to their last allocation.
    fn begin_step(&self) {}

    /// How much of what was asked for went by the plan; `None` for allocators that follow none.
    fn plan_counts(&self) -> Option<PlannedCounts> {
        None
    }
}

/// Blocks that could not be given back when their [`Allocation`] was dropped. Stays 0 unless an allocator is faulty.
static FAILED_DROPS: AtomicU64 = AtomicU64::new(0);

/// How many blocks of this process could not be given back on drop: a sign of a faulty allocator, for tests to check.
#[must_use]
pub fn failed_drops() -> u64 {
    FAILED_DROPS.load(Ordering::Relaxed)
}

/// A block together with its allocator: gives the block back when dropped.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, HostAllocator, Request};
/// let allocator: Arc<dyn Allocator> = Arc::new(HostAllocator::new("host"));
/// let allocation = Allocation::new(&allocator, &Request::new(100))?;
/// assert!(allocation.block().bytes >= 100);
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[derive(Debug)]
pub struct Allocation {
    allocator: Arc<dyn Allocator>,
    block: Block,
}

impl Allocation {
    /// Takes a block from `allocator` that lives as long as the returned value.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    #[inline]
    pub fn new(allocator: &Arc<dyn Allocator>, request: &Request<'_>) -> Result<Self, AllocError> {
        let block = allocator.allocate(request)?;
        Ok(Self { allocator: Arc::clone(allocator), block })
    }

    /// The block held.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }

    /// The allocator that the block came from.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: borrows of the memory end with the allocation that they borrow from.
        if unsafe { self.allocator.deallocate(self.block) }.is_err() {
            FAILED_DROPS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Says, as long as it lives, that memory of an allocator may be given back by threads that the allocator does not know
/// yet: those that only consume what others have made.
///
/// A request that finds no memory waits for frees of other threads. Where no other thread took memory, or those that did have
/// ended and left none, nobody else seems to have any, and it fails at once; likewise where all who took memory
/// [wait](crate::PoolConfig::with_stalemate_after), if that was chosen. Neither happens while this lives. It is not needed once
/// a thread has given back what another took: from then on requests wait. They also wait as long as a second thread that
/// has allocated lives, or something that it took. What thread-locals of an ending thread hold of others' is not waited for.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, ExpectedFrees, HostMemory, Request};
/// let pool = BfcAllocator::new("batches", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::kib(4)));
/// let pool: Arc<dyn Allocator> = Arc::new(pool);
/// let (sender, batches) = mpsc::channel::<Allocation>();
/// let consumer = std::thread::spawn(move || batches.into_iter().for_each(drop));
/// let _expected = ExpectedFrees::new(&pool);
/// for _ in 0..10 {
///     // Each takes the whole pool, and waits until the consumer is done with the one before.
///     sender.send(Allocation::new(&pool, &Request::new(4096))?)?;
/// }
/// drop(sender);
/// # consumer.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ExpectedFrees(Arc<dyn Allocator>);

impl ExpectedFrees {
    /// Expects frees of this allocator's blocks by threads that it does not know yet.
    #[must_use = "frees are expected until the value is dropped"]
    pub fn new(allocator: &Arc<dyn Allocator>) -> Self {
        allocator.expect_frees(true);
        Self(Arc::clone(allocator))
    }
}

impl Drop for ExpectedFrees {
    fn drop(&mut self) {
        self.0.expect_frees(false);
    }
}
