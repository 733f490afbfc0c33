//! Uses a pool directly: blocks, accounts, statistics, and an out-of-memory error.
//!
//! cargo run --example allocate

use std::sync::Arc;

use highwater::alloc::{
    Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, HostMemory, Request,
};
use highwater::tracking::TrackingAllocator;
use highwater::{Report, Tracker, module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A pool takes regions from a source, here the system, and splits them into blocks. It grows up to its limit.
    let config = BfcConfig::new(Bytes::mib(8));
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("pool", Arc::new(HostMemory::new()), config));

    // An allocation frees its block when dropped. Blocks are multiples of 256 bytes.
    let block = Allocation::new(&pool, &Request::new(1000))?;
    println!("requested 1000 bytes, got {} at {:#x}", block.block().bytes, block.block().address);
    drop(block);

    // A tracking allocator counts total, peak and live bytes.
    let tracking = TrackingAllocator::new(Arc::clone(&pool), true);
    let counted: Arc<dyn Allocator> = tracking.clone();
    let scratch = Allocation::new(&counted, &Request::new(64 << 10))?;
    let result = Allocation::new(&counted, &Request::new(16 << 10))?;
    drop(scratch);
    println!("{:?}", tracking.sizes());
    drop(result);

    // A tracker opens such an account for each execution of an op, grouped by module and op.
    let tracker = Tracker::new();
    let weights = {
        let _scope = module("net.fc1");
        let run = tracker.begin("init");
        let request = Request::new(3 << 20).with_category(Category::Parameter);
        Allocation::new(&run.track(&pool), &request)?
    };
    println!("\n{}", Report::new(&tracker, &[Arc::clone(&pool)]));

    // Running out of memory returns an error with a report of the largest holders.
    match Allocation::new(&pool, &Request::new(6 << 20)) {
        Ok(_) => println!("the allocation succeeded"),
        Err(error) => {
            println!("{}", error.out_of_memory().map_or(error.to_string(), |report| report.details()))
        }
    }
    drop(weights);
    Ok(())
}
