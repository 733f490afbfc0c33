//! The cost of a recording: nanoseconds and bytes per event in memory, in a full ring, and in a file.
//!
//! cargo bench -p highwater-tracking --bench recording
//!
//! The variants run interleaved, and the fastest round of each counts, because other work on the machine only adds
//! time.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};
use highwater_tracking::{RunFacts, Tracker, module};

/// Ops in a round, which is shorter than a time slice of a busy machine. Each op allocates and frees this many blocks.
const OPS: u64 = 500;
const BLOCKS: u64 = 8;
const ROUNDS: usize = 500;

/// The destination of events.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Off,
    Memory,
    FullRing,
    File,
}

fn main() -> Result<(), Box<dyn Error>> {
    let ways = [Way::Off, Way::Memory, Way::FullRing, Way::File];
    let mut best = [Duration::MAX; 4];
    let (mut events, mut file_bytes) = (0, 0);
    for _ in 0..ROUNDS {
        for (way, best) in ways.into_iter().zip(&mut best) {
            let (time, count, bytes) = round(way)?;
            *best = time.min(*best);
            events = events.max(count);
            file_bytes = file_bytes.max(bytes);
        }
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{events} events a round, {:.1} bytes each in the file",
        file_bytes as f64 / events as f64
    )?;
    for (way, time) in ways.into_iter().zip(best) {
        let per_event = |time: Duration| time.as_nanos() as f64 / events as f64;
        let added = per_event(time) - per_event(best[0]);
        writeln!(
            out,
            "{:<9} {:6.1} ns an event, {added:5.1} ns of them for recording",
            format!("{way:?}"),
            per_event(time)
        )?;
    }
    Ok(())
}

/// Returns the time of a round, its number of events, and their bytes in a file.
fn round(way: Way) -> Result<(Duration, u64, u64), Box<dyn Error>> {
    let config = BfcConfig::new(Bytes::gib(1));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    match way {
        Way::Off => {}
        Way::Memory => tracker.start_log(Bytes::mib(64)),
        Way::FullRing => tracker.start_log(Bytes::kib(16)),
        Way::File => {
            let path = std::env::temp_dir().join(format!("highwater-bench-{}.hwm", std::process::id()));
            let file = File::create(&path)?;
            std::fs::remove_file(path)?;
            tracker.start_recording(file, &RunFacts::new("bench"))?;
        }
    }
    let _scope = module("net.fc1");
    let start = Instant::now();
    for op in 0..OPS {
        let run = tracker.begin("matmul");
        let allocator = run.track(&pool);
        for block in 0..BLOCKS {
            let request = Request::new(1000 + 300 * ((op + block) % 7)).with_category(Category::Output);
            drop(Allocation::new(&allocator, &request)?);
        }
    }
    let time = start.elapsed();
    let events = tracker.recorded_events();
    let bytes = tracker.finish_recording(&[pool])?.map_or(0, |written| written.bytes);
    Ok((time, events, bytes))
}
