//! Collections in a pool: the trait `Allocator` of the crate `allocator-api2`, over a pool of host memory.
//!
//! A collection passes an address back, and the pool finds the block of an address in its own index. Blocks therefore need
//! no header, and the requested bytes in the ledger are exactly those of the collections.

use std::alloc::Layout;
use std::ptr::{self, NonNull, with_exposed_provenance_mut};
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator as CollectionAllocator};

use crate::allocator::allocation::note_failed_drop;
use crate::allocator::{Allocator, BlockError, Request};
use crate::base::ledger::{Category, Tag};
use crate::base::memory::{Block, MemoryKind};
use crate::base::owner::OwnerId;
use crate::base::printable::printable;

/// An allocator whose memory cannot hold collections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolAllocatorError {
    /// The host cannot access the memory.
    #[error(
        "{allocator} has {memory} memory, but collections need host memory: use a pool over `HostMemory`", allocator = printable(allocator)
    )]
    NotHostMemory {
        /// The allocator's name.
        allocator: String,
        /// The kind of its memory.
        memory: MemoryKind,
    },
    /// The allocator does not find blocks by address.
    #[error("{allocator} keeps no record of its blocks, but collections free by address: use a pool", allocator = printable(allocator))]
    Untracked {
        /// The allocator's name.
        allocator: String,
    },
}

/// Places collections such as `hashbrown::HashMap`, `allocator_api2::vec::Vec` and `Box` in a pool of host memory.
///
/// Clones share the pool. The pool charges all memory to the adapter's owner and category. Over the
/// `TrackingAllocator` of an op, it charges memory without an owner to the op.
///
/// - **Size:** the pool rounds as for all blocks. It serves any alignment; zero-sized layouts take no memory.
/// - **Growth:** a block grows in place if the allocator [supports](crate::PoolView::supports_resize) it and the memory behind
///   the block is free. Otherwise the collection moves, and both blocks count until the old one is free.
/// - **Lookup:** the first free by address creates an index of the pool, which then takes 20 to 40 bytes of heap per live
///   block and a hash-table update per allocation and free of this pool. With thread caches, a free locks all caches.
/// - **Lack of memory:** methods such as `try_reserve` fail without a report, and all others abort the program. A recording
///   of a tracker keeps the report. [`Allocator::allocate`] returns it for a request of the same size.
///
/// ```
/// use std::sync::Arc;
/// use allocator_api2::vec::Vec;
/// use bfc_core::{Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, OwnerId, PoolAllocator};
///
/// let config = BfcConfig::new(Bytes::mib(64));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
/// let owner = OwnerId::intern(OwnerId::ROOT, "index");
/// let in_pool = PoolAllocator::new(Arc::clone(&pool))?.with_owner(owner).with_category(Category::Input);
///
/// let mut rows: Vec<u64, _> = Vec::with_capacity_in(1000, in_pool.clone());
/// let mut names = hashbrown::HashMap::new_in(in_pool);
/// rows.push(7);
/// names.insert("seven", 0);
/// assert_eq!((pool.ledger().owner(owner).own, pool.ledger().total()), (8192 + 256, 8192 + 256));
/// drop((rows, names));
/// assert_eq!(pool.stats().bytes_in_use, 0);
/// # Ok::<(), bfc_core::PoolAllocatorError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PoolAllocator {
    pool: Arc<dyn Allocator>,
    tag: Tag,
}

impl PoolAllocator {
    /// Creates an adapter over `pool` that charges the root owner and the category [`Category::Temporary`].
    ///
    /// # Errors
    /// Fails if the host cannot access the memory, or if `pool` does not record its blocks.
    pub fn new(pool: Arc<dyn Allocator>) -> Result<Self, PoolAllocatorError> {
        let memory = pool.memory_kind();
        if !memory.is_host_accessible() {
            return Err(PoolAllocatorError::NotHostMemory { allocator: pool.name().to_owned(), memory });
        }
        if !pool.tracks_sizes() || pool.requested_bytes(&Block::EMPTY) == Err(BlockError::Untracked) {
            return Err(PoolAllocatorError::Untracked { allocator: pool.name().to_owned() });
        }
        Ok(Self { pool, tag: Tag::default() })
    }

    /// Returns an adapter of the same pool that charges `owner`.
    #[must_use]
    pub fn with_owner(self, owner: OwnerId) -> Self {
        Self { tag: Tag { owner, ..self.tag }, ..self }
    }

    /// Returns an adapter of the same pool that charges `category`.
    #[must_use]
    pub fn with_category(self, category: Category) -> Self {
        Self { tag: Tag { category, ..self.tag }, ..self }
    }

    /// Returns the pool.
    #[must_use]
    pub const fn pool(&self) -> &Arc<dyn Allocator> {
        &self.pool
    }

    fn find(&self, pointer: NonNull<u8>) -> Option<Block> {
        self.pool.block_at(pointer.as_ptr().expose_provenance() as u64).ok()
    }

    /// Changes the size of a block in place. Returns whether it has `new.size()` bytes and `new`'s alignment now.
    ///
    /// # Safety
    /// As for [`CollectionAllocator::grow`] and [`CollectionAllocator::shrink`].
    unsafe fn resize(&self, pointer: NonNull<u8>, new: Layout) -> bool {
        if pointer.as_ptr().addr() & (new.align() - 1) != 0 {
            return false;
        }
        let Some(block) = self.find(pointer) else { return false };
        // SAFETY: the collection owns the block and uses only the new size. It holds the address, which stays the same.
        let resized = unsafe { self.pool.resize(&block, new.size() as u64) };
        matches!(resized, Ok(Some(_)))
    }

    /// Moves the first `bytes` bytes into a new block.
    ///
    /// # Safety
    /// As for [`CollectionAllocator::grow`] and [`CollectionAllocator::shrink`]; both layouts have at least `bytes` bytes.
    unsafe fn relocate(
        &self,
        pointer: NonNull<u8>,
        (old, new): (Layout, Layout),
        bytes: usize,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let moved = CollectionAllocator::allocate(self, new)?;
        // SAFETY: both blocks are live, hold `bytes` bytes, and do not overlap.
        unsafe { ptr::copy_nonoverlapping(pointer.as_ptr(), moved.as_ptr().cast::<u8>(), bytes) };
        // SAFETY: the collection passes on the old block, which has this layout.
        unsafe { CollectionAllocator::deallocate(self, pointer, old) };
        Ok(moved)
    }
}

/// Returns the pointer for a zero-sized layout: aligned and never dereferenced.
fn dangling(layout: Layout) -> NonNull<u8> {
    NonNull::new(ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

fn slice(pointer: NonNull<u8>, layout: Layout) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(pointer, layout.size())
}

// SAFETY: blocks are host memory, which `new` checks. The pool keeps them valid until they are freed, and clones share the
// pool. A block moves only in `grow` and `shrink`.
unsafe impl CollectionAllocator for PoolAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(slice(dangling(layout), layout));
        }
        let request =
            Request::new(layout.size() as u64).with_alignment(layout.align() as u64).with_tag(self.tag);
        let block = self.pool.allocate(&request).map_err(|_| AllocError)?;
        let address = usize::try_from(block.address).map_err(|_| AllocError)?;
        let pointer = NonNull::new(with_exposed_provenance_mut(address)).ok_or(AllocError)?;
        Ok(slice(pointer, layout))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        // SAFETY: the collection passes a live block of this pool, which it no longer uses.
        let freed = self.find(pointer).map(|block| unsafe { self.pool.deallocate(block) });
        if !matches!(freed, Some(Ok(()))) {
            note_failed_drop();
        }
    }

    unsafe fn grow(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller guarantees the contract of both methods.
        if old.size() > 0 && unsafe { self.resize(pointer, new) } {
            return Ok(slice(pointer, new));
        }
        // SAFETY: the caller guarantees the contract, and `old` is not larger than `new`.
        unsafe { self.relocate(pointer, (old, new), old.size()) }
    }

    unsafe fn grow_zeroed(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller guarantees the contract.
        let grown = unsafe { CollectionAllocator::grow(self, pointer, old, new) }?;
        // SAFETY: the block has `new.size()` bytes, which are at least `old.size()`.
        let rest = unsafe { grown.as_ptr().cast::<u8>().add(old.size()) };
        // SAFETY: the rest belongs to the block.
        unsafe { rest.write_bytes(0, new.size() - old.size()) };
        Ok(grown)
    }

    unsafe fn shrink(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller guarantees the contract of both methods.
        if old.size() == 0 || (new.size() > 0 && unsafe { self.resize(pointer, new) }) {
            let pointer = if old.size() == 0 { dangling(new) } else { pointer };
            return Ok(slice(pointer, new));
        }
        // SAFETY: the caller guarantees the contract, and `new` is not larger than `old`.
        unsafe { self.relocate(pointer, (old, new), new.size()) }
    }
}
