//! External memory: tensors refer to memory that other code owns, outside of all pools.
//!
//! Each import is an allocator of one block. It keeps the owner until the block is freed. All imports of a
//! device share one account of bytes, owners, categories and peaks, next to the accounts of the pools. Ops
//! never allocate here.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    AddressSpace, AllocError, Allocation, Allocator, AllocatorSnapshot, Block, BlockError, Bytes, Category,
    Ledger, MemoryKind, OwnerBytes, OwnerId, PoolId, PoolView, Request, Stats, Tag, Verdict,
};

use crate::device::Device;
use crate::shape::{DType, Element};
use crate::storage::TensorStorage;

/// The account of all imports of a device.
pub(crate) struct ExternalAccount {
    name: String,
    state: Mutex<AccountState>,
}

#[derive(Default)]
struct AccountState {
    stats: Stats,
    ledger: Ledger,
}

impl AccountState {
    fn add_block(&mut self, tag: Tag, bytes: u64) {
        let stats = &mut self.stats;
        stats.num_allocs += 1;
        stats.live_allocs += 1;
        stats.bytes_in_use += bytes;
        stats.bytes_requested += bytes;
        stats.bytes_reserved += bytes;
        stats.regions += 1;
        stats.largest_alloc_bytes = stats.largest_alloc_bytes.max(bytes);
        if stats.bytes_in_use > stats.peak_bytes_in_use {
            (stats.peak_bytes_in_use, stats.peak_bytes_requested) = (stats.bytes_in_use, stats.bytes_in_use);
            (stats.peak_bytes_reserved, stats.peak_tag) = (stats.bytes_in_use, tag);
        }
        self.ledger.add(tag, bytes);
    }

    fn remove_block(&mut self, tag: Tag, bytes: u64) {
        let stats = &mut self.stats;
        stats.live_allocs -= 1;
        stats.bytes_in_use -= bytes;
        stats.bytes_requested -= bytes;
        stats.bytes_reserved -= bytes;
        stats.regions -= 1;
        self.ledger.remove(tag, bytes);
    }
}

impl ExternalAccount {
    pub(crate) fn new(device: impl fmt::Display) -> Arc<Self> {
        Arc::new(Self { name: format!("{device} external"), state: Mutex::default() })
    }

    /// Returns the statistics.
    pub(crate) fn stats(&self) -> Stats {
        self.state().stats.clone()
    }

    /// Returns the account as an allocator without memory, for reports on allocators.
    pub(crate) fn as_allocator(self: &Arc<Self>) -> Arc<dyn Allocator> {
        Arc::new(Import { account: Arc::clone(self), block: Block::EMPTY, import: Mutex::new(None) })
    }

    fn state(&self) -> MutexGuard<'_, AccountState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// External memory and its owner. The last user drops the owner, on any thread.
pub(crate) struct ExternalMemory {
    address: u64,
    bytes: usize,
    owner: Box<dyn Send>,
}

impl ExternalMemory {
    /// Returns the number of bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// While `owner` lives, the `bytes` bytes from `address` are valid and initialized, and no code writes
    /// them.
    pub(crate) unsafe fn new(address: u64, bytes: usize, owner: Box<dyn Send>) -> Self {
        Self { address, bytes, owner }
    }

    /// Returns the elements of `owner`, without a copy.
    pub(crate) fn of_owner<T: Element>(owner: impl AsRef<[T]> + Send + 'static) -> Self {
        let owner = OwnerPointer(NonNull::from(Box::leak(Box::new(owner))));
        // SAFETY: the pointer is from a leaked box that no other code refers to.
        let elements: &[T] = unsafe { owner.0.as_ref() }.as_ref();
        let (address, bytes) = (elements.as_ptr().expose_provenance() as u64, size_of_val(elements));
        // SAFETY: borrowed elements do not change while the owner is neither mutably borrowed, moved nor
        // dropped. No code accesses the box until the pointer is dropped. No element type has padding.
        unsafe { Self::new(address, bytes, Box::new(owner)) }
    }
}

/// A pointer to a boxed value that this owns. Moving a `Box` would invalidate other pointers to its contents.
struct OwnerPointer<O>(NonNull<O>);

// SAFETY: this owns the value, which is `Send`.
unsafe impl<O: Send> Send for OwnerPointer<O> {}

impl<O> Drop for OwnerPointer<O> {
    fn drop(&mut self) {
        // SAFETY: the pointer is from a box, and only this call converts it back.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The allocator of one imported block.
struct Import {
    account: Arc<ExternalAccount>,
    block: Block,
    /// `None` without an import and after the block is freed.
    import: Mutex<Option<Imported>>,
}

struct Imported {
    tag: Tag,
    /// Whether the block is allocated.
    is_allocated: bool,
    /// Dropped after the block is freed.
    _owner: Box<dyn Send>,
}

impl TensorStorage {
    /// Returns a buffer in external memory, with `tag` in the device's account of external memory.
    pub(crate) fn external(
        device: &Device,
        memory: ExternalMemory,
        dtype: DType,
        tag: Tag,
    ) -> Result<Self, AllocError> {
        let account = device.external();
        let ExternalMemory { address, bytes, owner } = memory;
        let block = match bytes {
            0 => Block::EMPTY,
            _ => Block { address, bytes: bytes as u64, id: 1, chunk: 0, pool: PoolId::next() },
        };
        let imported = Mutex::new(Some(Imported { tag, is_allocated: false, _owner: owner }));
        let import: Arc<dyn Allocator> =
            Arc::new(Import { account: Arc::clone(account), block, import: imported });
        // Callers have checked the alignment that they need.
        let request = Request::new(block.bytes).with_alignment(1).with_tag(tag);
        let allocation = Allocation::new(&import, &request)?;
        Ok(Self::new(allocation, device.serial(), bytes, dtype, tag.category))
    }
}

impl Import {
    fn import(&self) -> MutexGuard<'_, Option<Imported>> {
        self.import.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the import if `block` is its allocated block.
    fn with_block<T>(&self, block: &Block, f: impl FnOnce(&mut Imported) -> T) -> Result<T, BlockError> {
        if *block != self.block {
            return Err(BlockError::Foreign { block: *block });
        }
        self.import()
            .as_mut()
            .filter(|import| import.is_allocated)
            .map(f)
            .ok_or(BlockError::Stale { block: *block })
    }
}

// SAFETY: the block is valid, initialized memory that no code writes while its owner lives
// (`ExternalMemory::new`). The owner is dropped only after the block is freed. The block is allocated once,
// for the only allocation of the import.
unsafe impl Allocator for Import {
    fn name(&self) -> &str {
        &self.account.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::LentHost
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let fits = request.bytes == self.block.bytes && request.alignment == 1;
        let tag = self.import().as_mut().filter(|import| fits && !import.is_allocated).map(|import| {
            import.is_allocated = true;
            import.tag
        });
        let Some(tag) = tag else {
            return Err(AllocError::OutOfMemory(Box::new(
                (self as &dyn Allocator).refusal(request, Verdict::Exhausted),
            )));
        };
        self.account.state().add_block(tag, self.block.bytes);
        Ok(self.block)
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        self.with_block(&block, |_| ())?;
        let import = self.import().take().ok_or(BlockError::Stale { block })?;
        self.account.state().remove_block(import.tag, self.block.bytes);
        // Last and without a lock, as the owner's destructor may run any code.
        drop(import);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.account.stats()
    }

    fn tracks_sizes(&self) -> bool {
        true
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

impl PoolView for Import {
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.with_block(block, |_| self.block.bytes)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        let here = !self.block.is_empty() && address == self.block.address && self.import().is_some();
        if here { Ok(self.block) } else { Err(BlockError::NoBlockAt { address }) }
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.with_block(block, |import| import.tag)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        let mut state = self.account.state();
        self.with_block(block, |import| {
            // The bytes of a mapped file stay mapped, whatever tensors use them for.
            let is_mapped = import.tag.category == Category::Mapped;
            let tag = if is_mapped { Tag { category: Category::Mapped, ..tag } } else { tag };
            state.ledger.retag(import.tag, tag, self.block.bytes);
            import.tag = tag;
        })
    }

    fn ledger(&self) -> Ledger {
        self.account.state().ledger.clone()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        let AccountState { stats, ledger } = &*self.account.state();
        AllocatorSnapshot { stats: stats.clone(), ledger: ledger.clone() }
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.account.state().ledger.owner(owner)
    }

    fn clear_stats(&self) -> bool {
        let state = &mut *self.account.state();
        let stats = &mut state.stats;
        stats.num_allocs = 0;
        stats.largest_alloc_bytes = 0;
        (stats.peak_bytes_in_use, stats.peak_bytes_requested) = (stats.bytes_in_use, stats.bytes_in_use);
        (stats.peak_bytes_reserved, stats.peak_tag) = (stats.bytes_in_use, Tag::default());
        state.ledger.reset_peaks();
        true
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Import({}, {})", self.account.name, Bytes(self.block.bytes))
    }
}
