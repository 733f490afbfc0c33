//! Memory that others own: tensors look into it, and no pool has given it.
//!
//! Each import is an allocator of one block, which keeps the owner until the block goes back. All imports of a device share one
//! account, beside the pools': bytes, owners, categories and peaks of what is not ours. Ops take nothing from here.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    Accounting, AddressSpace, AllocError, Allocation, Allocator, AllocatorSnapshot, Block, BlockError, Bytes,
    Inspection, Ledger, MemoryKind, OwnerBytes, OwnerId, PoolId, Request, Stats, StreamOrder, Tag, Upkeep,
    Verdict, WaitHints,
};

use crate::device::Device;
use crate::shape::{DType, Element};
use crate::storage::Storage;

/// What the imports of a device come to.
pub(crate) struct OutsideAccount {
    name: String,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    stats: Stats,
    ledger: Ledger,
}

impl Book {
    fn open(&mut self, tag: Tag, bytes: u64) {
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

    fn close(&mut self, tag: Tag, bytes: u64) {
        let stats = &mut self.stats;
        stats.live_allocs -= 1;
        stats.bytes_in_use -= bytes;
        stats.bytes_requested -= bytes;
        stats.bytes_reserved -= bytes;
        stats.regions -= 1;
        self.ledger.remove(tag, bytes);
    }
}

impl OutsideAccount {
    pub(crate) fn new(device: impl fmt::Display) -> Arc<Self> {
        Arc::new(Self { name: format!("{device} outside"), book: Mutex::default() })
    }

    /// The figures.
    pub(crate) fn stats(&self) -> Stats {
        self.book().stats.clone()
    }

    /// The account as an allocator that has nothing to give, for those who ask allocators.
    pub(crate) fn as_allocator(self: &Arc<Self>) -> Arc<dyn Allocator> {
        Arc::new(Import { account: Arc::clone(self), block: Block::EMPTY, held: Mutex::new(None) })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of others, and what keeps it: dropped once nobody looks into the memory any more, on whatever thread that is.
pub(crate) struct Lent {
    address: u64,
    bytes: usize,
    keeper: Box<dyn Send>,
}

impl Lent {
    /// The number of bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// As long as `keeper` lives, the `bytes` bytes from `address` are valid and initialised, and nobody writes them.
    pub(crate) unsafe fn new(address: u64, bytes: usize, keeper: Box<dyn Send>) -> Self {
        Self { address, bytes, keeper }
    }

    /// The elements that `owner` has, which are not copied.
    pub(crate) fn of_owner<T: Element>(owner: impl AsRef<[T]> + Send + 'static) -> Self {
        let keeper = Kept(NonNull::from(Box::leak(Box::new(owner))));
        // SAFETY: the pointer is that of a leaked box, which nobody else knows.
        let elements: &[T] = unsafe { keeper.0.as_ref() }.as_ref();
        let (address, bytes) = (elements.as_ptr().expose_provenance() as u64, size_of_val(elements));
        // SAFETY: elements that were borrowed from the owner stay as they are while it is not borrowed as mutable, moved or
        // dropped; it is in a box that nobody touches until the keeper is dropped. No element type has padding.
        unsafe { Self::new(address, bytes, Box::new(keeper)) }
    }
}

/// A boxed value behind a plain pointer: a box that is moved would claim to be the only way to its contents.
struct Kept<O>(NonNull<O>);

// SAFETY: this owns the value, which may be sent.
unsafe impl<O: Send> Send for Kept<O> {}

impl<O> Drop for Kept<O> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box and becomes one again only here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The one block of an import.
struct Import {
    account: Arc<OutsideAccount>,
    block: Block,
    /// `None` before the block was handed out and after it went back.
    held: Mutex<Option<Held>>,
}

struct Held {
    tag: Tag,
    /// Whether the block was handed out.
    is_out: bool,
    /// Dropped after the block went back.
    _keeper: Box<dyn Send>,
}

impl Storage {
    /// A buffer in memory of others for a device, charged to `tag` in its account of such memory.
    pub(crate) fn outside(device: &Device, lent: Lent, dtype: DType, tag: Tag) -> Result<Self, AllocError> {
        let account = device.outside();
        let Lent { address, bytes, keeper } = lent;
        let block = match bytes {
            0 => Block::EMPTY,
            _ => Block { address, bytes: bytes as u64, id: 1, chunk: 0, pool: PoolId::next() },
        };
        let held = Mutex::new(Some(Held { tag, is_out: false, _keeper: keeper }));
        let import: Arc<dyn Allocator> = Arc::new(Import { account: Arc::clone(account), block, held });
        // Whoever needs more alignment than there is has looked before.
        let request = Request::new(block.bytes).with_alignment(1).with_tag(tag);
        let allocation = Allocation::new(&import, &request)?;
        Ok(Self::new(allocation, device.serial(), bytes, dtype, tag.category))
    }
}

impl Import {
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The import as long as this block is out.
    fn of_block<T>(&self, block: &Block, f: impl FnOnce(&mut Held) -> T) -> Result<T, BlockError> {
        if *block != self.block {
            return Err(BlockError::Foreign { block: *block });
        }
        self.held().as_mut().filter(|held| held.is_out).map(f).ok_or(BlockError::Stale { block: *block })
    }
}

// SAFETY: the one block is memory that is valid, initialised and left alone as long as the keeper lives (`Lent::new`), and the
// keeper is let go when the block comes back. It is handed out once: what an import holds goes to its only allocation.
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
        let tag = self.held().as_mut().filter(|held| fits && !held.is_out).map(|held| {
            held.is_out = true;
            held.tag
        });
        let Some(tag) = tag else {
            return Err(AllocError::OutOfMemory(Box::new(
                (self as &dyn Allocator).refusal(request, Verdict::Exhausted),
            )));
        };
        self.account.book().open(tag, self.block.bytes);
        Ok(self.block)
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        self.of_block(&block, |_| ())?;
        let held = self.held().take().ok_or(BlockError::Stale { block })?;
        self.account.book().close(held.tag, self.block.bytes);
        // Last, and with no lock held: whoever lent the memory may do as he likes.
        drop(held);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.account.stats()
    }

    fn tracks_sizes(&self) -> bool {
        true
    }

    fn as_accounting(&self) -> Option<&dyn Accounting> {
        Some(self)
    }

    fn as_inspection(&self) -> Option<&dyn Inspection> {
        None
    }

    fn as_wait_hints(&self) -> Option<&dyn WaitHints> {
        None
    }

    fn as_stream_order(&self) -> Option<&dyn StreamOrder> {
        None
    }

    fn as_upkeep(&self) -> Option<&dyn Upkeep> {
        Some(self)
    }
}

impl Accounting for Import {
    fn requested_bytes(&self, block: &Block) -> Result<u64, BlockError> {
        self.of_block(block, |_| self.block.bytes)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        let here = !self.block.is_empty() && address == self.block.address && self.held().is_some();
        if here { Ok(self.block) } else { Err(BlockError::NoBlockAt { address }) }
    }

    fn tag(&self, block: &Block) -> Result<Tag, BlockError> {
        self.of_block(block, |held| held.tag)
    }

    fn retag(&self, block: &Block, tag: Tag) -> Result<(), BlockError> {
        let mut book = self.account.book();
        self.of_block(block, |held| {
            book.ledger.retag(held.tag, tag, self.block.bytes);
            held.tag = tag;
        })
    }

    fn ledger(&self) -> Ledger {
        self.account.book().ledger.clone()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        let Book { stats, ledger } = &*self.account.book();
        AllocatorSnapshot { stats: stats.clone(), ledger: ledger.clone() }
    }

    fn owner_bytes(&self, owner: OwnerId) -> OwnerBytes {
        self.account.book().ledger.owner(owner)
    }
}

impl Upkeep for Import {
    fn trim(&self, _keep: Bytes) -> u64 {
        0
    }

    fn clear_stats(&self) -> bool {
        let book = &mut *self.account.book();
        let stats = &mut book.stats;
        stats.num_allocs = 0;
        stats.largest_alloc_bytes = 0;
        (stats.peak_bytes_in_use, stats.peak_bytes_requested) = (stats.bytes_in_use, stats.bytes_in_use);
        (stats.peak_bytes_reserved, stats.peak_tag) = (stats.bytes_in_use, Tag::default());
        book.ledger.reset_peaks();
        true
    }

    fn begin_step(&self) {}

    fn set_safe_frontier(&self, _count: u64) {}
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Import({}, {})", self.account.name, Bytes(self.block.bytes))
    }
}
