//! A search index in a memory pool, without tensors: scopes, collections, a source of its own, threads that wait for each
//! other, a report and a recording.
//!
//! cargo run --release -p highwater-tracking --example pool_alone -- target/pool_alone.hwm

use std::cell::UnsafeCell;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::{env, thread};

use allocator_api2::vec::Vec as PoolVec;
use bfc_core::{
    AllocError, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, MIB, MemoryKind,
    PoolAllocator, Request, SourceError, Span, SubAllocator,
};
use hashbrown::HashMap;
use highwater_tracking::{Report, RunFacts, TrackedSystem, Tracker, module};

/// Counts the heap by scope. The report shows it under "outside the pools".
#[global_allocator]
static HEAP: TrackedSystem = TrackedSystem::new();

/// The positions of each word.
type Postings = PoolVec<u32, PoolAllocator>;
type Index = HashMap<String, Postings, hashbrown::DefaultHashBuilder, PoolAllocator>;

/// The bytes of [`BUFFER`].
const BUFFER_BYTES: usize = 4 << 20;

/// Memory of the program that a pool divides.
#[repr(align(4096))]
struct Buffer(UnsafeCell<[u8; BUFFER_BYTES]>);

// SAFETY: the program accesses the buffer only through the blocks of one pool, which do not overlap.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_BYTES]));

/// A source of memory for a pool: the buffer, as one region at a time.
#[derive(Debug, Default)]
struct StaticMemory {
    is_taken: AtomicBool,
}

// SAFETY: the region is initialized host memory that lives as long as the program, and no two regions exist at a time.
unsafe impl SubAllocator for StaticMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let fits = bytes <= BUFFER_BYTES as u64 && alignment <= align_of::<Buffer>() as u64;
        if !fits || self.is_taken.swap(true, Ordering::AcqRel) {
            return Err(SourceError::Exhausted { bytes });
        }
        Ok(Span { address: BUFFER.0.get().expose_provenance() as u64, bytes })
    }

    unsafe fn free(&self, _region: Span) {
        self.is_taken.store(false, Ordering::Release);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("index", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::mib(64))));
    let config = BfcConfig::new(Bytes(BUFFER_BYTES as u64)).with_allow_growth(false);
    let scratch: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("scratch", Arc::new(StaticMemory::default()), config));
    let pools = [Arc::clone(&pool), Arc::clone(&scratch)];

    let tracker = Tracker::new();
    let recording = env::args().nth(1);
    if let Some(path) = &recording {
        tracker.start_recording(File::create(path)?, &RunFacts::new("pool_alone"))?;
    }
    let index = {
        let _scope = module("search");
        build(&tracker, &pool)?
    };
    tracker.mark("index built");
    let waits = take_turns(&tracker, &scratch)?;
    tracker.mark("sorted");

    let mut out = io::stdout().lock();
    let the = index.get("the").map_or(0, |postings| postings.len());
    writeln!(out, "{} words, `the` occurs {the} times, {waits} request waited\n", index.len())?;
    writeln!(out, "{}", Report::new(&tracker, &pools))?;
    tracker.finish_recording(&pools)?;
    Ok(())
}

/// Builds an index of a text. The words are on the heap, the table and the positions in the pool.
fn build(tracker: &Tracker, pool: &Arc<dyn Allocator>) -> Result<Index, Box<dyn Error>> {
    let text = {
        let _scope = module("text");
        "the pool keeps the words of the text and the positions of the words ".repeat(2000)
    };
    let _scope = module("index");
    let run = tracker.begin("insert");
    let in_pool = PoolAllocator::new(run.track(pool))?.with_category(Category::Output);
    let mut index = Index::new_in(in_pool.clone());
    for (position, word) in (0_u32..).zip(text.split_whitespace()) {
        let postings = index.entry_ref(word).or_insert_with(|| PoolVec::new_in(in_pool.clone()));
        postings.push(position);
    }
    Ok(index)
}

/// Two threads that need 3 MiB each share a pool of 4 MiB: the second waits for the first. Returns the number of waits.
fn take_turns(tracker: &Arc<Tracker>, pool: &Arc<dyn Allocator>) -> Result<u64, Box<dyn Error>> {
    let (sender, receiver) = mpsc::channel::<()>();
    let sort = |name: &'static str| -> Result<Allocation, AllocError> {
        let _scope = module("sort");
        let run = tracker.begin(name);
        Allocation::new(&run.track(pool), &Request::new(3 * MIB).with_category(Category::Workspace))
    };
    thread::scope(|threads| {
        let first = threads.spawn(|| {
            let buffer = sort("first")?;
            drop(sender);
            while pool.stats().retry.waiting == 0 {
                thread::yield_now();
            }
            drop(buffer);
            Ok::<(), AllocError>(())
        });
        // Ends as soon as the first thread has its memory.
        let _ = receiver.recv();
        drop(sort("second")?);
        first.join().map_err(|_| "a thread panicked")??;
        Ok::<(), Box<dyn Error>>(())
    })?;
    Ok(pool.stats().retry.waits)
}
