//! The cost of `TrackedSystem`: nanoseconds per pair of an allocation and a free, beside the system's allocator.
//!
//! cargo bench -p highwater-tracking --bench heap
//!
//! The variants run interleaved, and the fastest round of each counts, because other work on the machine only adds time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use highwater_tracking::{TrackedSystem, module};

/// Pairs in a round, which is shorter than a time slice of a busy machine.
const PAIRS: u32 = 20_000;
const ROUNDS: usize = 200;
const SIZES: [usize; 3] = [32, 256, 4096];

fn main() -> io::Result<()> {
    let (counted, _scope) = (TrackedSystem::new(), module("net.fc1"));
    let mut out = io::stdout().lock();
    for size in SIZES {
        let mut best = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            best = [best[0].min(round(&System, size)), best[1].min(round(&counted, size))];
        }
        let [system, counted] = best.map(|time| time.as_nanos() as f64 / f64::from(PAIRS));
        let added = counted - system;
        writeln!(
            out,
            "{size:>5} bytes: system {system:5.1} ns, counted {counted:5.1} ns, {added:4.1} ns more"
        )?;
    }
    Ok(())
}

/// Returns the time of a round.
fn round(heap: &impl GlobalAlloc, size: usize) -> Duration {
    let Ok(layout) = Layout::from_size_align(size, 8) else { return Duration::MAX };
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
