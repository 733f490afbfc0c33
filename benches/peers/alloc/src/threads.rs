//! Two threads on one allocator, each with its own trace, against one thread that alternates between both.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use bfc_core::{
    AddressOnlyMemory, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, Bytes, Request,
    ThreadCache,
};

use crate::ROOMY;
use crate::others::Offset;
use crate::peer::{Peer, empty_slots, replay};
use crate::program::Program;
use crate::report::median;

/// Replays by each thread in one measurement, after as many to warm up.
const REPLAYS: usize = 20;

/// One thread's view of a shared allocator.
struct OfPool(Arc<BfcAllocator>);

impl Peer for OfPool {
    type Handle = Block;

    fn new(capacity: u64, _: u32) -> Self {
        Self(pool(capacity, None))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Block> {
        let attributes = AllocationAttributes::no_retry();
        self.0.allocate(&Request::new(bytes).with_attributes(attributes)).ok()
    }

    #[inline]
    fn free(&mut self, block: Block) {
        // SAFETY: nothing uses addresses that have no memory behind them.
        unsafe { self.0.deallocate(block) }.expect("the block is live");
    }
}

fn pool(capacity: u64, cache: Option<ThreadCache>) -> Arc<BfcAllocator> {
    let config = BfcConfig::new(Bytes(capacity)).with_allow_growth(false);
    let config = match cache {
        Some(cache) => config.with_thread_cache(cache),
        None => config,
    };
    Arc::new(BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config))
}

/// A view of another allocator behind a lock.
struct OfMutex<P>(Arc<Mutex<P>>);

impl<P: Peer> Peer for OfMutex<P> {
    type Handle = P::Handle;

    fn new(capacity: u64, blocks: u32) -> Self {
        Self(Arc::new(Mutex::new(P::new(capacity, blocks))))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<P::Handle> {
        self.0.lock().expect("no panic under the lock").allocate(bytes)
    }

    #[inline]
    fn free(&mut self, handle: P::Handle) {
        self.0.lock().expect("no panic under the lock").free(handle);
    }
}

/// Nanoseconds of wall time per event of all views together, each view on its own thread with its programs.
fn time<P: Peer + Send>(views: Vec<(P, Vec<&Program>)>) -> f64 {
    let events: usize = views.iter().flat_map(|(_, programs)| programs).map(|one| one.events.len()).sum();
    let start = Barrier::new(views.len());
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = views
            .into_iter()
            .map(|(mut view, programs)| {
                let start = &start;
                scope.spawn(move || {
                    let mut slots: Vec<_> = programs.iter().map(|one| empty_slots::<P>(one)).collect();
                    let mut run = || {
                        for _ in 0..REPLAYS {
                            for (program, slots) in programs.iter().zip(&mut slots) {
                                assert!(replay(&mut view, program, slots), "the pool is large enough");
                            }
                        }
                    };
                    run();
                    start.wait();
                    let began = Instant::now();
                    run();
                    (began, Instant::now())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a replay does not panic")).collect()
    });
    let began = spans.iter().map(|span| span.0).min().expect("there is a thread");
    let ended = spans.iter().map(|span| span.1).max().expect("there is a thread");
    (ended - began).as_nanos() as f64 / (events * REPLAYS) as f64
}

fn one_and_two<P: Peer + Send>(view: impl Fn() -> Box<dyn Fn() -> P>, pair: [&Program; 2]) -> [f64; 2] {
    let one = view();
    let single = time(vec![(one(), pair.to_vec())]);
    let both = view();
    [single, time(pair.iter().map(|program| (both(), vec![*program])).collect())]
}

fn of_pool(cache: Option<ThreadCache>, pair: [&Program; 2]) -> [f64; 2] {
    let view = || -> Box<dyn Fn() -> OfPool> {
        let pool = pool(ROOMY, cache);
        Box::new(move || OfPool(Arc::clone(&pool)))
    };
    one_and_two(view, pair)
}

fn of_offset(pair: [&Program; 2]) -> [f64; 2] {
    let view = || -> Box<dyn Fn() -> OfMutex<Offset>> {
        let blocks = pair.iter().map(|one| one.slots as u32).sum::<u32>() + 1;
        let shared = Arc::new(Mutex::new(Offset::new(ROOMY, blocks)));
        Box::new(move || OfMutex(Arc::clone(&shared)))
    };
    one_and_two(view, pair)
}

/// Measures all pairs of neighboring traces, interleaved, and prints medians over the rounds.
pub fn compare(programs: &[Program], rounds: usize) {
    println!("{:<18} {:<26} {:>10} {:>11} {:>17}", "traces", "", "one, ns", "two, ns", "throughput ratio");
    for pair in programs.windows(2) {
        let pair = [&pair[0], &pair[1]];
        let mut times: [[Vec<f64>; 2]; 3] = Default::default();
        for _ in 0..rounds {
            let measured = [of_pool(None, pair), of_pool(Some(ThreadCache::new()), pair), of_offset(pair)];
            for (times, measured) in times.iter_mut().zip(measured) {
                times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
            }
        }
        let names = ["highwater pool", "the same with caches", "offset-allocator + Mutex"];
        for (name, times) in names.iter().zip(&mut times) {
            let [one, two] = times.each_mut().map(|times| median(times));
            let traces = format!("{}, {}", pair[0].name, pair[1].name);
            println!("{traces:<18} {name:<26} {one:>10.1} {two:>11.1} {:>17.2}", one / two);
        }
    }
}
