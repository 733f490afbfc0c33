//! Host memory that a pool uses for its own tables, counted by this program's allocator.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests may panic as tests may")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Block, Bytes, Request};

/// Heap bytes in use.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes per chunk: 40 for the chunk, 24 for its account and 4 for an unused slot, in tables that double.
const A_CHUNK: f64 = 2.0 * (40.0 + 24.0 + 4.0);

/// `--nocapture` prints the figures.
#[test]
fn the_books_of_a_chunk_stay_small_however_many_there_are() {
    let most = 1_200_000;
    let mut blocks: Vec<Block> = Vec::with_capacity(most);
    // The second is one more than a power of two, at which a table that doubles is worst.
    for count in [10_000, 65_537, 100_000, 1_000_000, 1_048_577, most] {
        let before = IN_USE.load(Ordering::Relaxed);
        let limit = Bytes(count as u64 * 256);
        let config = BfcConfig::new(limit).with_allow_growth(false);
        let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config);
        let fixed = IN_USE.load(Ordering::Relaxed) - before;
        blocks.extend((0..count).map(|_| pool.allocate(&Request::new(256)).unwrap()));
        let full = IN_USE.load(Ordering::Relaxed) - before - fixed;
        for block in blocks.drain(..) {
            // SAFETY: the addresses have no memory behind them.
            unsafe { pool.deallocate(block) }.unwrap();
        }
        let freed = IN_USE.load(Ordering::Relaxed) - before - fixed;
        // The frees add the stack of unused slots.
        let each = full.max(freed) as f64 / count as f64;
        eprintln!(
            "{count} chunks: {each:.2} bytes each, and {fixed} bytes for the pool; {freed} after all were freed"
        );
        assert!(each <= A_CHUNK, "{each} bytes a chunk");
    }
}
