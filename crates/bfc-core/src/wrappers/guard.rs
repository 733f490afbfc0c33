//! A debug wrapper that detects writes outside of blocks and writes after a free.
//!
//! Each block lies between canaries: bytes of a known pattern. A freed block is filled with poison and stays in a
//! quarantine for a while. Changed poison reveals a write through a stale pointer. Source of the idea: TensorFlow's
//! `GPUDebugAllocator` (guard words around each buffer) and `GPUNanResetAllocator` (NaN in new and freed buffers).
//!
//! Upstream aborts on damage. Here it is a value: a [`Damage`] that names block, offset and owner.

mod config;
mod pattern;
mod quarantine;
mod upkeep;
mod view;
mod zones;

use std::sync::Arc;

use slab::Slab;

use crate::accounting::accounts::Accounts;
use crate::allocator::attributes::AllocationAttributes;
use crate::allocator::error::{AllocError, BlockError};
use crate::allocator::oom::{OomReport, Verdict};
use crate::allocator::stats::Stats;
use crate::allocator::{Allocator, PoolView, Request};
use crate::base::ledger::Tag;
use crate::base::memory::{AddressSpace, Block, MemoryKind, PoolId};
use crate::base::owner::OwnerId;
use crate::base::placement::Placement;
use crate::base::printable::printable;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::{Mutex, lock};

pub use config::GuardConfig;
use pattern::Pattern;
use quarantine::{Freed, Quarantine};
pub use upkeep::GuardReport;
use zones::Zones;

/// The minimum number of canary bytes on each side of a block.
const ZONE: u64 = 64;

/// An error of guarding memory that the host cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{allocator}: {kind} memory cannot be guarded, because the host cannot read it", allocator = printable(allocator))]
pub struct GuardError {
    /// The allocator's name.
    pub allocator: String,
    /// Its kind of memory.
    pub kind: MemoryKind,
}

/// Guards the blocks of another allocator of host memory.
///
/// A block has exactly the requested bytes, so the first byte beyond them is guarded too. At least 64 bytes on each side are
/// canaries. New and freed blocks are filled with bytes of all ones (NaN). Figures, sizes and the ledger
/// count the user's bytes. Canaries and quarantine count as reserved but not in use, and appear in the
/// [report](Self::report).
///
/// Checks run when a block is freed, when it leaves the quarantine, by [`find_damage`](crate::PoolView::find_damage),
/// and when the guard is dropped. Freeing a damaged block returns [`BlockError::OutOfBounds`], and the block is free.
/// Its memory is not reused, because the faulty code may damage it again; it returns to the inner allocator when the
/// guard is dropped. Quarantined memory returns before a request fails or waits.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{
///     Allocator, BfcAllocator, BfcConfig, BlockError, Bytes, DamageKind, GuardAllocator, GuardConfig, HostMemory, Request,
/// };
/// let pool = BfcAllocator::new("cpu", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::mib(4)));
/// let guard = GuardAllocator::new(Arc::new(pool), GuardConfig::default())?;
/// let block = guard.allocate(&Request::new(100))?;
///
/// let past_the_end: *mut u8 = std::ptr::with_exposed_provenance_mut(block.address as usize + 100);
/// // SAFETY: beyond the block, but within the memory that the guard keeps behind it.
/// unsafe { past_the_end.write(0) };
///
/// // SAFETY: nothing uses the block any more.
/// let error = unsafe { guard.deallocate(block) }.unwrap_err();
/// let BlockError::OutOfBounds { damage } = error else { panic!("{error}") };
/// assert_eq!((damage.fault, damage.offset), (DamageKind::Overrun, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GuardAllocator {
    inner: Arc<dyn Allocator>,
    config: GuardConfig,
    state: Mutex<GuardedBlocks>,
    /// Requests that are about to wait for memory. While there are any, no block stays in quarantine.
    starving: AtomicUsize,
}

/// The state behind the lock. The guard never calls the inner allocator under it.
#[derive(Debug)]
struct GuardedBlocks {
    accounts: Accounts,
    live: Slab<Live>,
    quarantine: Quarantine,
    findings: upkeep::Findings,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Live {
    zones: Zones,
    /// Whether its damage was counted and reported to the listener.
    is_reported: bool,
}

/// Counts a waiting request while it lives.
struct Starving<'a>(&'a AtomicUsize);

impl<'a> Starving<'a> {
    fn new(starving: &'a AtomicUsize) -> Self {
        starving.fetch_add(1, Ordering::SeqCst);
        Self(starving)
    }
}

impl Drop for Starving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GuardAllocator {
    /// Guards the blocks of `inner`, under its name.
    ///
    /// # Errors
    /// Fails if the host cannot read and write the memory of `inner`.
    pub fn new(inner: Arc<dyn Allocator>, config: GuardConfig) -> Result<Self, GuardError> {
        let kind = inner.memory_kind();
        if !kind.is_host_accessible() {
            return Err(GuardError { allocator: inner.name().to_owned(), kind });
        }
        let state = GuardedBlocks {
            accounts: Accounts::new(PoolId::next()),
            live: Slab::new(),
            quarantine: Quarantine::new(config.quarantine_bytes, config.quarantine_blocks),
            findings: upkeep::Findings::default(),
        };
        Ok(Self { inner, config, state: Mutex::new(state), starving: AtomicUsize::new(0) })
    }

    /// Returns the inner allocator.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Allocator> {
        &self.inner
    }

    /// Allocates a block of the inner allocator. Quarantined memory never makes a request fail or wait.
    fn take(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let at_once = AllocationAttributes { retry_on_failure: false, ..request.attributes };
        let error = match self.inner.allocate(&request.with_attributes(at_once)) {
            Err(error @ AllocError::OutOfMemory(_)) => error,
            answer => return answer,
        };
        // From here on frees go directly to the inner allocator, where this request may wait. An earlier free has its
        // block in the quarantine by now, or will check again afterwards.
        let _starving = Starving::new(&self.starving);
        let emptied = self.empty_quarantine() > 0;
        if emptied || request.attributes.retry_on_failure { self.inner.allocate(request) } else { Err(error) }
    }

    /// Converts the inner allocator's error for `inner` into one for the user's request.
    fn refusal(&self, error: AllocError, request: &Request<'_>) -> AllocError {
        match error {
            AllocError::OutOfMemory(mut report) => {
                report.requested = request.bytes;
                AllocError::OutOfMemory(report)
            }
            AllocError::TooLarge { .. } => self.too_large(request),
            other => other,
        }
    }

    /// Returns the inner request for a block with canaries; `None` if it exceeds the address space.
    fn inner_request<'a>(&self, request: &Request<'a>) -> Option<Request<'a>> {
        let (_, bytes) = Zones::measure(request.bytes, request.alignment, ZONE)?;
        Some(Request { bytes, ..*request })
    }

    fn too_large(&self, request: &Request<'_>) -> AllocError {
        let Request { bytes, alignment, .. } = *request;
        AllocError::TooLarge { allocator: self.inner.name().to_owned(), bytes, alignment }
    }

    /// Opens the account of a block; `None` if no slot is left.
    fn open(&self, zones: Zones, tag: Tag) -> Option<Block> {
        let state = &mut *lock(&self.state);
        let slot = u32::try_from(state.live.vacant_key()).ok()?;
        state.live.insert(Live { zones, is_reported: false });
        let user = zones.user();
        let place = Placement { address: user.address, bytes: user.bytes, slot };
        Some(state.accounts.open(place, user.bytes, tag))
    }

    /// Closes the account of a block, so that no other call finds it.
    fn close(&self, block: Block) -> Result<(Freed, bool), BlockError> {
        let state = &mut *lock(&self.state);
        let tag = state.tag_of(&block)?;
        let live = state.live.try_remove(block.chunk as usize).ok_or(BlockError::Unknown { block })?;
        state.accounts.close(place_of(&block));
        Ok((Freed { block, tag, zones: live.zones }, live.is_reported))
    }
}

impl GuardedBlocks {
    /// Returns the inner blocks of the live ones among these blocks.
    fn inner_blocks<'a>(&'a self, blocks: &'a [Block]) -> impl Iterator<Item = Block> + 'a {
        let live = blocks.iter().filter(|block| self.tag_of(block).is_ok());
        live.filter_map(|block| self.live.get(block.chunk as usize)).map(|live| live.zones.inner)
    }

    /// Returns the tag of a live block.
    fn tag_of(&self, block: &Block) -> Result<Tag, BlockError> {
        let tag = self.accounts.live(block)?.tag;
        match self.live.get(block.chunk as usize) {
            Some(live) if live.zones.user() == block.span() => Ok(tag),
            _ => Err(BlockError::Unknown { block: *block }),
        }
    }
}

const fn place_of(block: &Block) -> Placement {
    Placement { address: block.address, bytes: block.bytes, slot: block.chunk }
}

// SAFETY: a block lies within a block of the inner allocator, which makes the same guarantee, at a multiple of the
// alignment from its start. Each inner block carries one guarded block until that is freed.
unsafe impl Allocator for GuardAllocator {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.inner.address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let Request { bytes, alignment, tag, .. } = *request;
        if bytes == 0 {
            return Ok(Block::EMPTY);
        }
        if !alignment.is_power_of_two() {
            return Err(AllocError::BadAlignment { allocator: self.inner.name().to_owned(), alignment });
        }
        let (front, total) = Zones::measure(bytes, alignment, ZONE).ok_or_else(|| self.too_large(request))?;
        let inner =
            self.take(&Request { bytes: total, ..*request }).map_err(|error| self.refusal(error, request))?;
        let zones = Zones::new(inner, front, bytes);
        for zone in [zones.before(), zones.after()] {
            // SAFETY: the zones are parts of a block that this call has just allocated.
            unsafe { pattern::fill(zone, Pattern::Canary) };
        }
        // SAFETY: as above; the user does not have it yet.
        unsafe { pattern::fill(zones.user(), Pattern::Poison) };
        self.open(zones, tag).ok_or_else(|| {
            // SAFETY: the block is new and no other code knows it. It came from the inner allocator.
            let _ = unsafe { self.inner.deallocate(inner) };
            AllocError::OutOfMemory(Box::new(OomReport::new(self.inner.name(), request, Verdict::Exhausted)))
        })
    }

    /// See the trait; also [`BlockError::OutOfBounds`] if something wrote outside of the block. The block is free then.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block == Block::EMPTY {
            return Ok(());
        }
        let (freed, is_reported) = self.close(block)?;
        if let Some(damage) = freed.zones.damage_around(block, freed.tag) {
            self.condemn(freed, damage, is_reported);
            return Err(BlockError::OutOfBounds { damage });
        }
        // SAFETY: the user has freed the block, and this call removed it from the table.
        unsafe { pattern::fill(freed.zones.user(), Pattern::Poison) };
        // Retags the inner block as freed. An allocator without tags has nothing to change.
        let _ = self.inner.retag(&freed.zones.inner, quarantine_tag());
        self.quarantine(freed);
        Ok(())
    }

    fn stats(&self) -> Stats {
        with_source_figures(lock(&self.state).accounts.figures.clone(), self.inner.stats())
    }

    fn bytes_in_use(&self) -> u64 {
        lock(&self.state).accounts.figures.bytes_in_use
    }

    fn tracks_sizes(&self) -> bool {
        true
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

/// Combines the figures of the guard's users with those of the inner allocator.
fn with_source_figures(figures: Stats, inner: Stats) -> Stats {
    Stats {
        bytes_limit: inner.bytes_limit,
        bytes_reserved: inner.bytes_reserved,
        peak_bytes_reserved: inner.peak_bytes_reserved,
        largest_free_block_bytes: inner.largest_free_block_bytes,
        regions: inner.regions,
        retry: inner.retry,
        ..figures
    }
}

/// The owner name of quarantined memory in reports of the inner allocator.
fn quarantine_tag() -> Tag {
    Tag { owner: OwnerId::intern(OwnerId::ROOT, "(in quarantine)"), ..Tag::default() }
}
