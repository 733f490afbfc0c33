//! A block that frees itself on drop, and the announcement of frees from unknown threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AllocError, Allocator, Request};
use crate::base::memory::Block;

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
