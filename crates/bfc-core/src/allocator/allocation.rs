//! A block that frees itself on drop, and the announcement of frees from unknown threads.

use std::mem::ManuallyDrop;
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
    /// Taken out exactly once, in `drop`, unless it is lent.
    allocator: ManuallyDrop<Arc<dyn Allocator>>,
    /// Whether the handle is not counted: somebody else has one for as long as this lives.
    is_lent: bool,
    block: Block,
}

impl Allocation {
    /// Takes a block from `allocator` that lives as long as the value returned.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    #[inline]
    pub fn new(allocator: &Arc<dyn Allocator>, request: &Request<'_>) -> Result<Self, AllocError> {
        match allocator.allocate(request) {
            // Not moved before the handle is there: what was just written in pieces has to settle before it can be moved as a whole.
            Ok(ref block) => {
                let allocator = ManuallyDrop::new(Arc::clone(allocator));
                Ok(Self { allocator, is_lent: false, block: *block })
            }
            Err(error) => Err(error),
        }
    }

    /// The same without a handle of its own, whose counting takes as long as a part of the request: for those who keep the
    /// allocator beside the allocation anyway.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    ///
    /// # Safety
    /// A handle to the allocator that is counted, as `allocator` is, lives until the allocation has been dropped.
    #[inline]
    pub unsafe fn lent(allocator: &Arc<dyn Allocator>, request: &Request<'_>) -> Result<Self, AllocError> {
        match allocator.allocate(request) {
            // As above.
            Ok(ref block) => {
                // SAFETY: it is never dropped, and the caller promises that the allocator lives for as long as it is read.
                let allocator = ManuallyDrop::new(unsafe { std::ptr::read(allocator) });
                Ok(Self { allocator, is_lent: true, block: *block })
            }
            Err(error) => Err(error),
        }
    }

    /// The block held.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }

    /// The allocator that the block came from.
    #[must_use]
    pub fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: borrows of the memory end with the allocation that they borrow from.
        if unsafe { self.allocator.deallocate(self.block) }.is_err() {
            FAILED_DROPS.fetch_add(1, Ordering::Relaxed);
        }
        if !self.is_lent {
            // SAFETY: `drop` runs once, and nothing reads the field afterwards.
            unsafe { ManuallyDrop::take(&mut self.allocator) }.retire();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostAllocator;

    #[test]
    fn a_lent_allocation_counts_no_handle_and_gives_its_block_back() {
        let allocator: Arc<dyn Allocator> = Arc::new(HostAllocator::new("host"));
        // SAFETY: the allocator is dropped at the end, after the allocation.
        let lent = unsafe { Allocation::lent(&allocator, &Request::new(100)) }.unwrap();
        assert_eq!((Arc::strong_count(&allocator), allocator.stats().live_allocs), (1, 1));
        assert!(Arc::ptr_eq(lent.allocator(), &allocator));
        // A handle that is asked for counts as any other.
        let kept = Arc::clone(lent.allocator());
        drop(lent);
        assert_eq!((Arc::strong_count(&allocator), kept.stats().live_allocs), (2, 0));
        assert_eq!(failed_drops(), 0);
    }
}
