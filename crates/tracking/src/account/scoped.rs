//! An allocator that charges each block to the scope of the thread that requests it.
//!
//! Programs without ops, such as users of a library of arrays, mark scopes and allocate. Each request runs as one
//! execution of the op `allocate`, so the accounts need no other mechanism. The pool's ledger has the marks of the scopes.

use std::sync::Arc;

use bfc_core::sync::{Mutex, lock};
use bfc_core::{
    AddressSpace, AllocError, Allocator, Block, BlockError, Category, MemoryKind, PoolView, Request, Stats,
    Tag,
};
use rustc_hash::FxHashMap;

use super::accounted_pool::AccountedPool;
use super::tracker::Tracker;

/// The op of requests outside of an op.
const OP: &str = "allocate";

/// Charges each block to the [scope](crate::module) of the requesting thread, and to its running op if there is one.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, Request};
/// use highwater_tracking::{Report, ScopedAllocator, Tracker, module};
///
/// let pool = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::mib(64))));
/// let tracker = Tracker::new();
/// let allocator: Arc<dyn Allocator> = ScopedAllocator::new(&tracker, pool);
/// let _index = {
///     let _scope = module("index");
///     drop(Allocation::new(&allocator, &Request::new(4096))?);
///     Allocation::new(&allocator, &Request::new(1024))?
/// };
/// let report = Report::new(&tracker, &[allocator]);
/// let index = report.scopes.iter().find(|row| row.scope == "index").unwrap();
/// assert_eq!((index.high_water_bytes, index.live_bytes), (4096, 1024));
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[derive(Debug)]
pub struct ScopedAllocator {
    tracker: Arc<Tracker>,
    pool: AccountedPool,
    /// The account of each live block, by address.
    accounts: Mutex<FxHashMap<u64, Arc<dyn Allocator>>>,
}

impl ScopedAllocator {
    /// Charges blocks of `pool` to the scopes of `tracker`.
    #[must_use]
    pub fn new(tracker: &Arc<Tracker>, pool: Arc<dyn Allocator>) -> Arc<Self> {
        let pool = AccountedPool::new(pool).without_time();
        Arc::new(Self { tracker: Arc::clone(tracker), pool, accounts: Mutex::default() })
    }

    /// Returns the pool.
    #[must_use]
    pub const fn pool(&self) -> &Arc<dyn Allocator> {
        self.pool.pool()
    }

    /// Returns the account of the block at `address`. Blocks without one are the pool's own.
    fn account(&self, address: u64) -> Arc<dyn Allocator> {
        Arc::clone(lock(&self.accounts).get(&address).unwrap_or_else(|| self.pool()))
    }
}

// SAFETY: blocks come from the pool, which keeps the promise, and return to it exactly when the caller frees them.
unsafe impl Allocator for ScopedAllocator {
    fn name(&self) -> &str {
        self.pool().name()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.pool().memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.pool().address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let run = self.tracker.begin_over(OP, self.pool(), Some(&self.pool));
        let Some(account) = run.allocator() else { return self.pool().allocate(request) };
        let block = account.allocate(request)?;
        if !block.is_empty() {
            lock(&self.accounts).insert(block.address, Arc::clone(account));
        }
        Ok(block)
    }

    // The entry goes first: another thread may receive the address as soon as the block is free.
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        let account = lock(&self.accounts).remove(&block.address);
        let freed = {
            let allocator = account.as_ref().unwrap_or_else(|| self.pool());
            // SAFETY: the caller promises that nothing uses the memory any more.
            unsafe { allocator.deallocate(block) }
        };
        match (account, &freed) {
            (Some(account), Err(error)) if !error.took_back() => {
                lock(&self.accounts).insert(block.address, account);
            }
            _ => {}
        }
        freed
    }

    fn stats(&self) -> Stats {
        self.pool().stats()
    }

    fn bytes_in_use(&self) -> u64 {
        self.pool().bytes_in_use()
    }

    fn tracks_sizes(&self) -> bool {
        self.pool().tracks_sizes()
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

impl PoolView for ScopedAllocator {
    fn forwards_to(&self) -> Option<&dyn Allocator> {
        Some(&**self.pool())
    }

    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.account(block.address).requested_bytes(block)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.account(address).block_at(address)
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.account(block.address).tag(block)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        self.account(block.address).retag(block, tag)
    }

    fn recategorize(&self, block: &Block, from: &[Category], to: Category) -> Result<Tag, BlockError> {
        self.account(block.address).recategorize(block, from, to)
    }

    // The block keeps its address, and so its account.
    unsafe fn resize(&self, block: &Block, bytes: u64) -> Result<Option<Block>, BlockError> {
        // SAFETY: the caller promises the same.
        unsafe { self.account(block.address).resize(block, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use bfc_core::{AddressOnlyMemory, Allocation, BfcAllocator, BfcConfig, Bytes};

    use super::*;
    use crate::report::Report;
    use crate::scope::module;

    fn scoped(tracker: &Arc<Tracker>) -> Arc<dyn Allocator> {
        let (memory, config) = (Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(1)));
        ScopedAllocator::new(tracker, Arc::new(BfcAllocator::new("pool", memory, config)))
    }

    fn scope_bytes(report: &Report, scope: &str) -> (u64, u64) {
        let row = report.scopes.iter().find(|row| row.scope == scope).unwrap();
        (row.high_water_bytes, row.live_bytes)
    }

    #[test]
    fn blocks_count_in_the_scope_of_the_request() {
        let tracker = Tracker::new();
        let allocator = scoped(&tracker);
        tracker.start_log(Bytes::mib(1));
        let allocate = |bytes| Allocation::new(&allocator, &Request::new(bytes)).unwrap();
        let kept = {
            let _outer = module("scoped");
            let _freed = allocate(1024);
            let _inner = module("inner");
            (allocate(256), allocate(0))
        };
        let report = Report::new(&tracker, std::slice::from_ref(&allocator));
        assert_eq!(scope_bytes(&report, "scoped"), (1280, 256));
        assert_eq!(scope_bytes(&report, "scoped.inner"), (256, 256));
        assert_eq!((report.ops[0].op.as_str(), report.ops[0].calls), ("allocate", 3));
        drop(kept);
        assert_eq!(allocator.bytes_in_use(), 0);
        // Each free has its event: no block of the recording is live.
        let log = tracker.take_log();
        assert_eq!((log.blocks().len(), log.live_after(u32::MAX).len()), (2, 0));
    }

    #[test]
    fn a_resized_block_keeps_its_scope() {
        let tracker = Tracker::new();
        let allocator = scoped(&tracker);
        let block = {
            let _scope = module("resized");
            allocator.allocate(&Request::new(256)).unwrap()
        };
        // SAFETY: nothing uses the memory, and the old block is not used again.
        let grown = unsafe { allocator.resize(&block, 4096) }.unwrap().unwrap();
        let report = Report::new(&tracker, std::slice::from_ref(&allocator));
        assert_eq!(scope_bytes(&report, "resized"), (4096, 4096));
        // SAFETY: nothing uses the memory.
        unsafe { allocator.deallocate(grown) }.unwrap();
        assert_eq!(allocator.bytes_in_use(), 0);
    }

    #[test]
    fn a_wrong_free_changes_nothing() {
        let tracker = Tracker::new();
        let allocator = scoped(&tracker);
        let kept = Allocation::new(&allocator, &Request::new(64)).unwrap();
        let block = kept.block();
        // SAFETY: nothing uses the memory; the block is wrong on purpose.
        let freed = unsafe { allocator.deallocate(Block { id: block.id + 1, ..block }) };
        assert!(freed.is_err());
        let tag = Tag { category: Category::Parameter, ..allocator.tag(&block).unwrap() };
        allocator.retag(&block, tag).unwrap();
        assert_eq!(allocator.ledger().category(Category::Parameter), 256);
        drop(kept);
        assert_eq!((allocator.bytes_in_use(), bfc_core::failed_drops()), (0, 0));
    }
}
