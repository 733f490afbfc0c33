//! A pool with its accounts: what the C functions and the functions for Python call.
//!
//! Each allocation outside of an op is one execution of an op that has the owner's name, so that owners, scopes and marks
//! appear in reports as those of tensors do. Within an op that the thread has opened, the allocation is a part of it.

use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bfc_core::{Allocator, BlockError, Category, DEFAULT_ALIGNMENT, MemoryKind, OwnerId, Request};
use highwater_tracking::{AccountedPool, ModuleGuard, here, module, op_name};

use crate::config::PoolSpec;
use crate::error::{Error, Holders};
use crate::live::{LiveBlock, LiveBlocks};
use crate::run::TrackedRun;
use crate::{config, memory};

/// The owner of blocks that name none, outside of ops.
const NO_OWNER: &str = "allocate";

/// The bit of [`PoolEntry::users`] that says that the pool is closed.
const CLOSED: u64 = 1 << 63;

/// The holders that an error lists.
const LISTED_HOLDERS: usize = 5;

/// A request for a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockRequest<'a> {
    pub(crate) bytes: u64,
    /// A power of two, or 0 for the default.
    pub(crate) alignment: u64,
    /// The owner below the thread's scope. A name with dots names scopes and, last, the owner.
    pub(crate) owner: Option<&'a str>,
    pub(crate) category: Category,
}

/// An open pool.
#[derive(Debug)]
pub(crate) struct PoolEntry {
    blocks: LiveBlocks,
    accounts: AccountedPool,
    run: Arc<TrackedRun>,
    /// Live blocks, running ops and calls under way; [`CLOSED`] after the pool was closed.
    users: AtomicU64,
}

/// A use of a pool, which keeps it open.
#[derive(Debug)]
pub(crate) struct Use<'a>(&'a AtomicU64);

impl Use<'_> {
    /// Keeps the pool open until [`PoolEntry::end_use`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PoolEntry {
    /// Opens a pool. The table of handles ensures that names are unique.
    pub(crate) fn from_spec(spec: &PoolSpec, name: &str) -> Result<Arc<Self>, Error> {
        let run = match spec.memory {
            config::Memory::Dry => TrackedRun::new(),
            _ => Arc::clone(TrackedRun::shared()),
        };
        let allocator = memory::allocator(spec, name, run.tracker())?;
        Ok(Arc::new(Self {
            blocks: LiveBlocks::default(),
            // The time of an allocation is not the time of an op.
            accounts: AccountedPool::new(allocator).without_time(),
            run,
            users: AtomicU64::new(0),
        }))
    }

    pub(crate) const fn allocator(&self) -> &Arc<dyn Allocator> {
        self.accounts.pool()
    }

    pub(crate) const fn run(&self) -> &Arc<TrackedRun> {
        &self.run
    }

    pub(crate) fn name(&self) -> &str {
        self.allocator().name()
    }

    /// Begins a use of the pool. Fails if the pool was closed.
    pub(crate) fn enter(&self) -> Result<Use<'_>, Error> {
        let before = self.users.fetch_add(1, Ordering::AcqRel);
        let entered = Use(&self.users);
        // The handle of a closed pool is no longer in the table; this thread took the pool from it before.
        if before & CLOSED == 0 { Ok(entered) } else { Err(Error::Handle { handle: 0, kind: "pool" }) }
    }

    /// Ends a use that was kept.
    pub(crate) fn end_use(&self) {
        drop(Use(&self.users));
    }

    /// Allocates a block and returns its address; 0 for zero bytes.
    pub(crate) fn allocate(&self, request: &BlockRequest<'_>) -> Result<u64, Error> {
        let owner = Owner::enter(request.owner);
        self.allocate_for(request, owner.op, request.owner.map(|_| OwnerId::ROOT))
    }

    /// Allocates a block in the thread's scope as a part of `op`. `owner` is charged within a running op: the root means
    /// the owner of `op`, and `None` the running op.
    fn allocate_for(
        &self,
        request: &BlockRequest<'_>,
        op: &'static str,
        owner: Option<OwnerId>,
    ) -> Result<u64, Error> {
        let entered = self.enter()?;
        let tracker = self.run.tracker();
        let run = tracker.begin_over(op, self.allocator(), Some(&self.accounts));
        let alignment = if request.alignment == 0 { DEFAULT_ALIGNMENT } else { request.alignment };
        let mut asked = Request::new(request.bytes).with_alignment(alignment).with_category(request.category);
        asked.tag.owner = match owner {
            Some(OwnerId::ROOT) if run.is_nested() => tracker.owner_here(op),
            Some(owner) => owner,
            None => OwnerId::ROOT,
        };
        let allocator = run.track(self.allocator());
        let block = allocator.allocate(&asked)?;
        if block.is_empty() {
            return Ok(0);
        }
        let place = here();
        self.blocks.insert(LiveBlock { allocator, block, requested: request.bytes, alignment, op, place });
        entered.keep();
        Ok(block.address)
    }

    /// Frees the block that starts at `address`; 0 has no effect.
    ///
    /// # Safety
    /// Nothing uses the memory of the block, now or later.
    pub(crate) unsafe fn free(&self, address: u64) -> Result<(), Error> {
        if address == 0 {
            return Ok(());
        }
        let live = self.blocks.remove(address).ok_or_else(|| self.not_allocated(address))?;
        // SAFETY: the block was live, and the caller promises that nothing uses its memory.
        let freed = unsafe { live.allocator.deallocate(live.block) };
        match freed {
            Err(error) if !error.took_back() => {
                self.blocks.insert(live);
                Err(self.block_error(error))
            }
            freed => {
                self.end_use();
                freed.map_err(|error| self.block_error(error))
            }
        }
    }

    /// Gives a block another size, with the same owner, category and alignment. Stays at the address if the memory behind
    /// the block is free, else moves the bytes that both blocks have; a dry pool moves nothing. 0 as the address allocates,
    /// and 0 bytes frees. The block is unchanged after an error.
    ///
    /// # Safety
    /// Nothing uses the memory of the block during the call. After a success, nothing uses the memory that the new block
    /// lacks.
    pub(crate) unsafe fn reallocate(&self, address: u64, bytes: u64) -> Result<u64, Error> {
        if address == 0 {
            return self.allocate(&BlockRequest { bytes, ..BlockRequest::default() });
        }
        let live = self.blocks.get(address).ok_or_else(|| self.not_allocated(address))?;
        // SAFETY: the caller promises that nothing uses the memory that the new block lacks.
        let resized = unsafe { live.allocator.resize(&live.block, bytes) };
        if let Some(block) = resized.map_err(|error| self.block_error(error))? {
            self.blocks.insert(LiveBlock { block, requested: bytes, ..live });
            return Ok(address);
        }
        let kind = self.allocator().memory_kind();
        if !kind.is_host_accessible() && kind != MemoryKind::AddressOnly && bytes != 0 {
            return Err(Error::NoCopy { pool: self.name().to_owned(), memory: kind });
        }
        // SAFETY: the caller promises that nothing uses the block.
        unsafe { self.relocate(&live, bytes) }
    }

    /// Moves a live block into a new one.
    ///
    /// # Safety
    /// Nothing uses the memory of the block during the call, and nothing uses it after a success.
    unsafe fn relocate(&self, live: &LiveBlock, bytes: u64) -> Result<u64, Error> {
        let address = live.block.address;
        let tag = live.allocator.tag(&live.block).map_err(|error| self.block_error(error))?;
        let _scope = live.place.enter();
        let request = BlockRequest { bytes, alignment: live.alignment, owner: None, category: tag.category };
        let moved = self.allocate_for(&request, live.op, Some(tag.owner))?;
        let length = usize::try_from(live.requested.min(bytes)).unwrap_or(0);
        if self.allocator().memory_kind().is_host_accessible() && length > 0 {
            let from = with_exposed_provenance_mut::<u8>(address as usize);
            let to = with_exposed_provenance_mut::<u8>(moved as usize);
            // SAFETY: both blocks are live, do not overlap, and have at least this many bytes.
            unsafe { from.copy_to_nonoverlapping(to, length) };
        }
        // SAFETY: the caller promises that nothing uses the old block.
        match unsafe { self.free(address) } {
            Ok(()) => Ok(moved),
            Err(error) => {
                // SAFETY: the address of the new block was not returned to any caller.
                let _ = unsafe { self.free(moved) };
                Err(error)
            }
        }
    }

    /// Returns the requested bytes of the live block at `address`.
    pub(crate) fn size_of(&self, address: u64) -> Result<u64, Error> {
        let live = self.blocks.get(address).ok_or_else(|| self.not_allocated(address))?;
        Ok(live.requested)
    }

    /// Whether a live block starts at `address`.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.blocks.contains(address)
    }

    /// Closes the pool. Fails and changes nothing while blocks are live or ops run.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let closed = self.users.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        closed.map(drop).map_err(|users| {
            if users & CLOSED != 0 {
                return Error::Handle { handle: 0, kind: "pool" };
            }
            let blocks = self.blocks.len();
            let largest = self.allocator().ledger().largest_holders(LISTED_HOLDERS);
            let calls = users.saturating_sub(blocks as u64);
            Error::InUse { pool: self.name().to_owned(), holders: Holders { blocks, largest, calls } }
        })
    }

    fn not_allocated(&self, address: u64) -> Error {
        Error::NotAllocated { pool: self.name().to_owned(), address, other_pool: None }
    }

    fn block_error(&self, error: BlockError) -> Error {
        Error::Block { pool: self.name().to_owned(), error }
    }
}

/// Returns the name of a pool that its configuration does not name.
pub(crate) fn default_name(memory: config::Memory) -> String {
    match memory {
        config::Memory::Host => "host".to_owned(),
        config::Memory::Dry => "dry".to_owned(),
        config::Memory::Cuda(ordinal) => format!("cuda:{ordinal}"),
        config::Memory::Pinned(ordinal) => format!("pinned:{ordinal}"),
    }
}

/// The owner of a request: scopes below the thread's own, and the name of an op in them.
#[derive(Debug)]
struct Owner {
    op: &'static str,
    _scopes: Option<ModuleGuard>,
}

impl Owner {
    fn enter(path: Option<&str>) -> Self {
        let path = path.map_or("", |path| path.trim_matches('.'));
        let (scopes, name) =
            path.rsplit_once('.').map_or((None, path), |(scopes, name)| (Some(scopes), name));
        let op = if name.is_empty() { NO_OWNER } else { op_name(name) };
        Self { op, _scopes: scopes.map(module) }
    }
}
