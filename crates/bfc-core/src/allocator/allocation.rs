//! An RAII block, and a guard for frees from threads that the allocator does not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AllocError, Allocator, Request};
use crate::base::memory::Block;

/// The number of failed frees in drops. Stays 0 unless an allocator is faulty.
static FAILED_DROPS: AtomicU64 = AtomicU64::new(0);

/// Returns how many frees failed in the drop of an [`Allocation`] or of a collection in a pool, in this process. For
/// tests: an error means a faulty allocator.
#[must_use]
pub fn failed_drops() -> u64 {
    FAILED_DROPS.load(Ordering::Relaxed)
}

/// Counts a failed free whose caller cannot return an error.
#[cold]
pub(crate) fn note_failed_drop() {
    FAILED_DROPS.fetch_add(1, Ordering::Relaxed);
}

/// A block that frees itself on drop, together with its allocator.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{Allocation, Allocator, HostMemory, PassthroughAllocator, Request};
/// let memory = Arc::new(HostMemory::new());
/// let allocator: Arc<dyn Allocator> = Arc::new(PassthroughAllocator::new("host", memory));
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
    /// Allocates a block that is freed when the returned value is dropped.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    #[inline]
    pub fn new(allocator: &Arc<dyn Allocator>, request: &Request<'_>) -> Result<Self, AllocError> {
        let block = allocator.allocate(request)?;
        Ok(Self { allocator: Arc::clone(allocator), block })
    }

    /// Returns the block.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }

    /// Returns the allocator of the block.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: borrows of the memory end with the allocation that they borrow from.
        if unsafe { self.allocator.deallocate(self.block) }.is_err() {
            note_failed_drop();
        }
    }
}

/// Announces frees from threads that have not allocated from the allocator, such as consumers of a queue.
///
/// A request without memory waits for other threads to free blocks. It fails immediately if no other thread appears to
/// hold memory, but not while this value lives.
///
/// The guard is unnecessary in two cases:
///
/// - A thread has already freed a block that another thread allocated. From then on requests wait.
/// - A second thread that has allocated still lives, or one of its blocks does.
///
/// Requests do not wait for blocks of other threads that the thread-locals of an ending thread hold.
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
    /// Announces frees of this allocator's blocks by unknown threads.
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
