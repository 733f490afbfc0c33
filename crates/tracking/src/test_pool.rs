//! A pool for tests: exact sizes, checked frees, a ledger, a limit, and addresses without memory.

use std::collections::HashMap;
use std::sync::Arc;

use bfc_core::sync::{Mutex, lock};
use bfc_core::{
    AddressSpace, AllocError, Allocator, AllocatorSnapshot, Block, BlockError, Ledger, MemoryKind, PoolId,
    PoolView, Request, SourceError, Stats, Tag,
};

#[derive(Debug)]
pub(crate) struct TestPool {
    id: PoolId,
    tracks_sizes: bool,
    limit: u64,
    /// Whether each query is followed by an allocation of a byte, as by another thread.
    busy: bool,
    state: Mutex<LiveBlocks>,
}

#[derive(Debug)]
struct LiveBlocks {
    next_address: u64,
    next_id: u64,
    live: HashMap<u64, (Block, u64, Tag)>,
    ledger: Ledger,
    stats: Stats,
}

impl TestPool {
    pub(crate) fn build(tracks_sizes: bool, limit: u64) -> Arc<Self> {
        let state = LiveBlocks {
            next_address: 0x1000,
            next_id: 1,
            live: HashMap::new(),
            ledger: Ledger::new(),
            stats: Stats::default(),
        };
        Arc::new(Self { id: PoolId::next(), tracks_sizes, limit, busy: false, state: Mutex::new(state) })
    }

    /// Creates a pool from which another thread allocates whenever its lock is free.
    pub(crate) fn busy() -> Arc<dyn Allocator> {
        let pool = Self::build(true, u64::MAX);
        let Ok(pool) = Arc::try_unwrap(pool) else { unreachable!("there is one handle") };
        Arc::new(Self { busy: true, ..pool })
    }

    /// Returns a fact about the state, after which another thread allocates.
    fn answer<R>(&self, ask: impl FnOnce(&LiveBlocks) -> R) -> R {
        let mut state = lock(&self.state);
        let answer = ask(&state);
        if self.busy {
            state.ledger.add(Tag::default(), 1);
            state.stats.bytes_in_use += 1;
        }
        answer
    }

    /// Creates a pool that tracks sizes.
    pub(crate) fn tracking() -> Arc<dyn Allocator> {
        Self::build(true, u64::MAX)
    }

    /// Creates a pool whose blocks have no ids and cannot be queried.
    pub(crate) fn not_tracking() -> Arc<dyn Allocator> {
        Self::build(false, u64::MAX)
    }
}

// SAFETY: addresses are never used twice, and the memory is address-only.
unsafe impl Allocator for TestPool {
    fn name(&self) -> &str {
        "test"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let mut state = lock(&self.state);
        if request.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        if state.stats.bytes_in_use + request.bytes > self.limit {
            let error = SourceError::Exhausted { bytes: request.bytes };
            return Err(AllocError::Source { allocator: "test".to_owned(), error });
        }
        let address = state.next_address.next_multiple_of(request.alignment);
        let id = state.next_id;
        state.next_address = address + request.bytes;
        state.next_id += 1;
        let shown = if self.tracks_sizes { id } else { 0 };
        let block = Block { address, bytes: request.bytes, id: shown, chunk: 0, pool: self.id };
        state.live.insert(address, (block, request.bytes, request.tag));
        state.ledger.add(request.tag, request.bytes);
        state.stats.num_allocs += 1;
        state.stats.live_allocs += 1;
        state.stats.bytes_in_use += request.bytes;
        if state.stats.bytes_in_use > state.stats.peak_bytes_in_use {
            state.stats.peak_bytes_in_use = state.stats.bytes_in_use;
            state.stats.peak_tag = request.tag;
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        if block.pool != self.id {
            return Err(BlockError::Foreign { block });
        }
        let mut state = lock(&self.state);
        let Some((_, bytes, tag)) = state.live.remove(&block.address) else {
            return Err(BlockError::Stale { block });
        };
        state.ledger.remove(tag, bytes);
        state.stats.live_allocs -= 1;
        state.stats.bytes_in_use -= bytes;
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.answer(|state| state.stats.clone())
    }

    fn tracks_sizes(&self) -> bool {
        self.tracks_sizes
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

impl PoolView for TestPool {
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        if !self.tracks_sizes {
            return Err(BlockError::Untracked);
        }
        let state = lock(&self.state);
        state.live.get(&block.address).map(|entry| entry.1).ok_or(BlockError::Stale { block: *block })
    }

    fn block_at(&self, _address: u64) -> Result<Block, BlockError> {
        Err(BlockError::Untracked)
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        let state = lock(&self.state);
        state.live.get(&block.address).map(|entry| entry.2).ok_or(BlockError::Stale { block: *block })
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        let mut state = lock(&self.state);
        let LiveBlocks { live, ledger, .. } = &mut *state;
        let (_, bytes, old) = live.get_mut(&block.address).ok_or(BlockError::Stale { block: *block })?;
        ledger.retag(*old, tag, *bytes);
        *old = tag;
        Ok(())
    }

    fn ledger(&self) -> Ledger {
        self.answer(|state| state.ledger.clone())
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        self.answer(|LiveBlocks { stats, ledger, .. }| AllocatorSnapshot {
            stats: stats.clone(),
            ledger: ledger.clone(),
        })
    }
}
