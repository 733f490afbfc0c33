//! An allocator that takes each block directly from its source, with the accounts of a pool.
//!
//! For external memory tools (`compute-sanitizer`, `valgrind`, the address sanitizer). They see only the large regions
//! of a pool, but here every block is a separate allocation. It also separates faults of a pool from faults of the
//! program. PyTorch offers the same without caching, TensorFlow with `cuda_malloc`.

mod view;

use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::accounting::account::Account;
use crate::accounting::accounts::Accounts;
use crate::accounting::callers::{ReentrancyGuard, ThreadRegistry};
use crate::accounting::retry::{AllocatorRetry, Refusal};
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::oom::{HOLDERS, Holdings, OomReport, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{Allocator, PoolView, Request};
use crate::base::memory::{AddressSpace, Block, MemoryKind, PoolId, Span};
use crate::base::placement::Placement;
use crate::base::sync::{Mutex, ThreadNumber, lock};
use crate::base::units::{Bytes, round_up};
use crate::pool::limit::RegionLimit;
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;

/// How long a request waits for frees, as in pools.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// An allocator without a pool: every block is a region of the source. The source is called under the allocator's lock,
/// and calls back fail, as in pools.
///
/// The accounts are those of a pool: figures, ledger, tags, lookups by address, and typed errors for stale, foreign and
/// invalid blocks. A block has exactly the requested bytes, unless the source returns more. Requests beyond the limit
/// or the source wait for frees of other threads, as in pools. A freed block returns to the source at once: free it only
/// after all work on a device that uses it has ended.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocator, Bytes, HostMemory, PassthroughAllocator, Request};
/// let memory = Arc::new(HostMemory::new());
/// let allocator = PassthroughAllocator::new("cpu", memory.clone()).with_limit(Bytes::mib(1));
/// let block = allocator.allocate(&Request::new(1000))?;
/// assert_eq!((block.bytes, memory.live_regions()), (1000, 1));
/// // SAFETY: the block was never used.
/// unsafe { allocator.deallocate(block) }?;
/// assert_eq!(memory.live_regions(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PassthroughAllocator {
    name: String,
    source: Arc<dyn SubAllocator>,
    limit: Option<RegionLimit>,
    limit_origin: Option<Arc<str>>,
    retry_timeout: Duration,
    state: Mutex<LiveBlocks>,
    retry: AllocatorRetry,
    reentrancy: ReentrancyGuard,
}

/// The state behind the lock.
#[derive(Debug)]
struct LiveBlocks {
    accounts: Accounts,
    live: Slab<Live>,
    users: ThreadRegistry,
    /// Bytes of live regions.
    reserved: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Live {
    /// The span that returns to the source.
    region: Span,
    /// The user's block.
    user: Span,
}

impl PassthroughAllocator {
    /// Creates an allocator over `source` without a limit.
    #[must_use]
    pub fn new(name: impl Into<String>, source: Arc<dyn SubAllocator>) -> Self {
        let state = LiveBlocks {
            accounts: Accounts::new(PoolId::next()),
            live: Slab::new(),
            users: ThreadRegistry::default(),
            reserved: 0,
        };
        Self {
            name: name.into(),
            source,
            limit: None,
            limit_origin: None,
            retry_timeout: RETRY_TIMEOUT,
            state: Mutex::new(state),
            retry: AllocatorRetry::new(),
            reentrancy: ReentrancyGuard::default(),
        }
    }

    /// Limits the bytes of live regions. The limit is rounded down to whole regions of the source.
    #[must_use]
    pub fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(RegionLimit::new(limit, &*self.source));
        self
    }

    /// Sets the origin of the limit for out-of-memory reports.
    #[must_use]
    pub fn with_limit_origin(mut self, origin: impl Into<Arc<str>>) -> Self {
        self.limit_origin = Some(origin.into());
        self
    }

    /// Sets how long requests wait for frees before they fail; 0 disables waiting.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Returns the bytes left below the limit.
    fn unreserved(&self, state: &LiveBlocks) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.bytes.saturating_sub(state.reserved))
    }

    /// Makes one attempt. Only the `last` one computes the holders.
    fn attempt(&self, request: &Request<'_>, thread: ThreadNumber, last: bool) -> Result<Block, Refusal> {
        let state = &mut *lock(&self.state);
        state.users.note(thread, &mut state.accounts, &self.retry);
        if request.bytes > self.unreserved(state) {
            return Err(self.refuse(state, request, last));
        }
        match self.take(state, request.alignment, request.bytes) {
            Ok(live) => state.open(live, request).ok_or_else(|| {
                // SAFETY: the region has just come from the source, and no other code knows it.
                unsafe { self.give_back(state, live.region) };
                self.refuse(state, request, last)
            }),
            Err(SourceError::Exhausted { .. }) => Err(self.refuse(state, request, last)),
            Err(error) => {
                let error = AllocError::Source { allocator: self.name.clone(), error };
                Err(Refusal { error, wait: self.could_be_freed(state) })
            }
        }
    }

    /// Takes a region of the source with `bytes` aligned bytes in it. Fails as an exhausted source if the region exceeds
    /// the limit.
    fn take(&self, state: &LiveBlocks, alignment: u64, bytes: u64) -> Result<Live, SourceError> {
        match self.take_region(state, alignment, bytes) {
            // A source that cannot honor the alignment, such as driver memory, gets a larger request to align by hand.
            Err(SourceError::BadRegion { .. }) if alignment > 1 => {
                let padded = bytes.checked_add(alignment - 1).ok_or(SourceError::Exhausted { bytes })?;
                let region = self.take_region(state, 1, padded)?;
                // Stays within the region, which was sized for it.
                let address = round_up(region.address, alignment).unwrap_or(region.address);
                Ok(Live { region, user: Span { address, bytes } })
            }
            taken => taken.map(|region| Live { region, user: region }),
        }
    }

    fn take_region(&self, state: &LiveBlocks, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let unreserved = self.unreserved(state);
        if bytes > unreserved {
            return Err(SourceError::Exhausted { bytes });
        }
        let region = self.reentrancy.call(self.stats_of(state), || self.source.allocate(alignment, bytes))?;
        let sound = region.address % alignment == 0 && region.bytes >= bytes && region.end().is_some();
        if sound && region.bytes <= unreserved {
            return Ok(region);
        }
        // SAFETY: the region has just come from the source, and no other code knows it.
        unsafe { self.give_back(state, region) };
        if sound {
            return Err(SourceError::Exhausted { bytes });
        }
        Err(SourceError::BadRegion { address: region.address, bytes: region.bytes })
    }

    /// Returns a region to the source.
    ///
    /// # Safety
    /// The region came from the source, is no longer in the table, and nothing uses it.
    unsafe fn give_back(&self, state: &LiveBlocks, region: Span) {
        self.reentrancy.call(self.stats_of(state), || {
            // SAFETY: guaranteed by the caller.
            unsafe { self.source.free(region) }
        });
    }

    fn stats_of(&self, state: &LiveBlocks) -> Stats {
        let figures = state.accounts.figures.clone();
        Stats {
            bytes_limit: self.limit.map(|limit| limit.configured),
            regions: figures.live_allocs,
            ..figures
        }
    }

    /// Calls `ask` with the state, unless called back from the source.
    fn with_state<R>(&self, ask: impl FnOnce(&mut LiveBlocks) -> R) -> Option<R> {
        self.reentrancy.enter().map(|_| ask(&mut lock(&self.state)))
    }

    /// Calls `ask` with a live block; returns `of_empty` for an empty one.
    fn of_block<R>(
        &self,
        block: &Block,
        of_empty: R,
        ask: impl FnOnce(&mut LiveBlocks, Account) -> R,
    ) -> Result<R, BlockError> {
        if *block == Block::EMPTY {
            return Ok(of_empty);
        }
        let answer = self.with_state(|state| {
            let (_, account) = state.find(block)?;
            Ok(ask(state, account))
        });
        answer.unwrap_or(Err(BlockError::Reentrant))
    }

    /// Whether another thread may free memory.
    fn could_be_freed(&self, state: &LiveBlocks) -> bool {
        let has_orphaned_blocks = || state.users.has_orphaned_blocks(&state.accounts, &[]);
        state.accounts.figures.live_allocs > 0 && self.retry.others_may_free(has_orphaned_blocks)
    }

    #[cold]
    fn refuse(&self, state: &LiveBlocks, request: &Request<'_>, last: bool) -> Refusal {
        if let Some(error) = self.limit.and_then(|limit| limit.too_small()) {
            let error = AllocError::Source { allocator: self.name.clone(), error };
            return Refusal { error, wait: false };
        }
        let over_limit = self.limit.is_some_and(|limit| request.bytes > limit.bytes);
        let verdict = if over_limit { Verdict::OverLimit } else { Verdict::Exhausted };
        let wait = !over_limit && self.could_be_freed(state);
        let report = self.report(state, request, verdict, last || !wait);
        Refusal { error: AllocError::OutOfMemory(Box::new(report)), wait }
    }

    #[cold]
    fn report(
        &self,
        state: &LiveBlocks,
        request: &Request<'_>,
        verdict: Verdict,
        in_full: bool,
    ) -> OomReport {
        let mut report = OomReport {
            limit: self.limit.map(|limit| limit.bytes),
            limit_origin: match self.limit {
                Some(limit) => limit.origin(self.limit_origin.as_ref()),
                None => self.limit_origin.clone(),
            },
            reserved: state.reserved,
            in_use: state.accounts.figures.bytes_in_use,
            ..OomReport::new(self.name.clone(), request, verdict)
        };
        if in_full {
            report.holders = state.accounts.ledger.largest_holders(HOLDERS);
            let live = state
                .live
                .iter()
                .filter_map(|(slot, live)| Some((state.accounts.by_slot.get(slot)?.tag, live.user.bytes)));
            report.holdings = Holdings::sum(live);
        }
        report
    }
}

impl LiveBlocks {
    /// Opens the account of a block; `None` if no slot is left.
    fn open(&mut self, live: Live, request: &Request<'_>) -> Option<Block> {
        let slot = u32::try_from(self.live.vacant_key()).ok()?;
        self.live.insert(live);
        self.reserved = self.reserved.saturating_add(live.region.bytes);
        self.accounts.note_reserved(self.reserved);
        let place = Placement { address: live.user.address, bytes: live.user.bytes, slot };
        Some(self.accounts.open(place, request.bytes, request.tag))
    }

    /// Returns the record of a live block.
    fn find(&self, block: &Block) -> Result<(Live, Account), BlockError> {
        let account = self.accounts.live(block)?;
        match self.live.get(block.chunk as usize) {
            Some(live) if live.user == block.span() => Ok((*live, *account)),
            _ => Err(BlockError::Unknown { block: *block }),
        }
    }
}

const fn place_of(block: &Block) -> Placement {
    Placement { address: block.address, bytes: block.bytes, slot: block.chunk }
}

// SAFETY: each block is a region or lies in one. The source guarantees that regions are disjoint valid memory of its
// kind, initialized if the host can read it. A region returns to the source with its block, or with the allocator.
unsafe impl Allocator for PassthroughAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.source.address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let Request { bytes, alignment, .. } = *request;
        if bytes == 0 {
            return Ok(Block::EMPTY);
        }
        if !alignment.is_power_of_two() {
            return Err(AllocError::BadAlignment { allocator: self.name.clone(), alignment });
        }
        if bytes.checked_add(alignment).is_none() {
            return Err(AllocError::TooLarge { allocator: self.name.clone(), bytes, alignment });
        }
        let reentrant = || AllocError::Reentrant { allocator: self.name.clone() };
        let thread = self.reentrancy.enter().ok_or_else(reentrant)?;
        let timeout = self.retry_timeout;
        let retry = request.attributes.retry_on_failure && !timeout.is_zero();
        match self.attempt(request, thread, !retry) {
            Err(refusal) if retry && refusal.wait => {}
            outcome => return outcome.map_err(|refusal| refusal.error),
        }
        self.retry.allocate_as(self.wait_key(request), timeout, |last| self.attempt(request, thread, last))
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block == Block::EMPTY {
            return Ok(());
        }
        let thread = self.reentrancy.enter().ok_or(BlockError::Reentrant)?;
        let unreserved = {
            let state = &mut *lock(&self.state);
            let (Live { region, .. }, _) = state.find(&block)?;
            state.users.note_free(thread, &mut state.accounts, &self.retry);
            state.accounts.close(place_of(&block));
            state.live.try_remove(block.chunk as usize);
            state.reserved = state.reserved.saturating_sub(region.bytes);
            state.accounts.note_reserved(state.reserved);
            // SAFETY: the caller has freed the block, and the region is no longer in the table.
            unsafe { self.give_back(state, region) };
            self.unreserved(state)
        };
        self.retry.notify_up_to(unreserved);
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = match self.reentrancy.enter() {
            Some(_) => self.stats_of(&lock(&self.state)),
            None => self.reentrancy.stats(),
        };
        Stats { retry: self.retry.stats(), ..stats }
    }

    fn tracks_sizes(&self) -> bool {
        true
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

impl Drop for PassthroughAllocator {
    fn drop(&mut self) {
        let state = lock(&self.state);
        for (_, live) in state.live.iter() {
            // SAFETY: no block is valid longer than its allocator.
            unsafe { self.give_back(&state, live.region) };
        }
    }
}
