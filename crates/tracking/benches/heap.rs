//! The cost of `TrackedSystem` and of collections in a pool: nanoseconds per pair of an allocation and a free, beside the
//! system's allocator.
//!
//! cargo bench -p highwater-tracking --bench heap
//!
//! The variants run interleaved, and the fastest round of each counts, because other work on the machine only adds time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::hint::black_box;
use std::io::{self, Write};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use allocator_api2::alloc::Allocator as _;
use bfc_core::{BfcAllocator, BfcConfig, Bytes, HostMemory, PoolAllocator};
use highwater_tracking::{TrackedSystem, module};

/// Pairs in a round, which is shorter than a time slice of a busy machine.
const PAIRS: u32 = 20_000;
const ROUNDS: usize = 200;
const SIZES: [usize; 3] = [32, 256, 4096];

fn main() -> Result<(), Box<dyn Error>> {
    let (counted, _scope) = (TrackedSystem::new(), module("net.fc1"));
    let config = BfcConfig::new(Bytes::mib(64));
    let in_pool =
        PoolAllocator::new(Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config)))?;
    let mut out = io::stdout().lock();
    for size in SIZES {
        let layout = Layout::from_size_align(size, 8)?;
        let mut best = [Duration::MAX; 3];
        for _ in 0..ROUNDS {
            let times = [round(layout, &System), round(layout, &counted), pool_round(layout, &in_pool)];
            best = std::array::from_fn(|variant| best[variant].min(times[variant]));
        }
        let [system, counted, pool] = best.map(|time| time.as_nanos() as f64 / f64::from(PAIRS));
        writeln!(
            out,
            "{size:>5} bytes: system {system:5.1} ns, counted {counted:5.1} ns, in a pool {pool:5.1} ns"
        )?;
    }
    Ok(())
}

/// Returns the time of a round of a global allocator.
fn round(layout: Layout, heap: &impl GlobalAlloc) -> Duration {
    let start = Instant::now();
    for _ in 0..PAIRS {
        // SAFETY: the layout is not empty.
        let pointer = black_box(unsafe { heap.alloc(black_box(layout)) });
        if !pointer.is_null() {
            // SAFETY: the block was allocated with this layout.
            unsafe { heap.dealloc(pointer, layout) };
        }
    }
    start.elapsed()
}

/// Returns the time of a round of a collection's allocator.
fn pool_round(layout: Layout, in_pool: &PoolAllocator) -> Duration {
    let start = Instant::now();
    for _ in 0..PAIRS {
        if let Ok(block) = in_pool.allocate(black_box(layout)) {
            let pointer: NonNull<u8> = black_box(block.cast());
            // SAFETY: the block was allocated with this layout.
            unsafe { in_pool.deallocate(pointer, layout) };
        }
    }
    start.elapsed()
}
