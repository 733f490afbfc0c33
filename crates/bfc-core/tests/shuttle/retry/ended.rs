//! Threads that end at any moment while others request memory that they hold or held. A request that misses
//! such an end sleeps forever here.

use bfc_core::sim::SimDevice;
use bfc_core::sync::{Arc, Mutex, ThreadNumber, lock, thread};
use bfc_core::{
    AllocError, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, PassthroughAllocator,
    Request, Stream, StreamAllocator, ThreadCache,
};

use super::{LONG, SCHEDULES, join};
use crate::common::source::{FakeSource, Nature};

/// The bytes of each allocator.
const ALL: u64 = 1024;

type Memory = std::sync::Arc<dyn Allocator>;

#[derive(Clone, Copy)]
enum Sort {
    Pool,
    Cached,
    Passthrough,
    Streams,
}

impl Sort {
    fn make(self) -> Memory {
        let config = BfcConfig::new(Bytes(ALL)).with_allow_growth(false).with_retry_timeout(LONG);
        let source = || FakeSource::new(Nature::default());
        match self {
            Self::Pool => std::sync::Arc::new(BfcAllocator::new("pool", source(), config)),
            Self::Cached => {
                let config = config.with_thread_cache(ThreadCache::new());
                std::sync::Arc::new(BfcAllocator::new("cached", source(), config))
            }
            Self::Passthrough => {
                let memory = PassthroughAllocator::new("passthrough", source()).with_limit(Bytes(ALL));
                std::sync::Arc::new(memory.with_retry_timeout(LONG))
            }
            Self::Streams => {
                let device = std::sync::Arc::new(SimDevice::new(Bytes::mib(1)));
                let source = std::sync::Arc::new(DeviceMemory::new(device.clone()));
                let memory = std::sync::Arc::new(BfcAllocator::new("streams", source, config));
                let memory = StreamAllocator::new(memory, Stream::new(device).unwrap());
                std::sync::Arc::new(memory.with_retry_timeout(LONG))
            }
        }
    }
}

const SORTS: &[Sort] = &[Sort::Pool, Sort::Cached, Sort::Passthrough, Sort::Streams];

fn check(sorts: &[Sort], scenario: impl Fn(Sort) + Send + Sync + Clone + 'static) {
    for &sort in sorts {
        let scenario = scenario.clone();
        let scenario = move || scenario(sort);
        shuttle::check_random(scenario.clone(), SCHEDULES / 2);
        shuttle::check_pct(scenario, SCHEDULES / 2, 3);
    }
}

fn spawn(memory: &Memory, work: impl FnOnce(&Memory) + Send + 'static) -> thread::JoinHandle<()> {
    let memory = memory.clone();
    thread::spawn(move || work(&memory))
}

fn take(memory: &Memory, bytes: u64) -> Allocation {
    Allocation::new(memory, &Request::new(bytes)).unwrap()
}

fn try_to_take(memory: &Memory, bytes: u64) -> Option<Allocation> {
    match Allocation::new(memory, &Request::new(bytes)) {
        Ok(allocation) => Some(allocation),
        Err(AllocError::OutOfMemory(_)) => None,
        Err(other) => panic!("{other:?}"),
    }
}

/// The waiter itself holds the memory that it wants: it fails, at the latest when the other thread ends.
#[test]
fn nobody_waits_for_a_thread_that_has_ended() {
    check(SORTS, |sort| {
        let memory = sort.make();
        let other = spawn(&memory, |memory| {
            drop(take(memory, ALL / 4));
            // This lets the thread end at any moment of the other's request.
            (0..12).for_each(|_| thread::yield_now());
        });
        let asking = spawn(&memory, |memory| {
            let _held = take(memory, ALL / 2);
            assert!(try_to_take(memory, ALL).is_none());
        });
        join(vec![other, asking]);
    });
}

/// A request finds the memory that two ended threads freed, in any cache or free list.
#[test]
fn a_request_finds_what_threads_gave_back_that_have_ended() {
    check(SORTS, |sort| {
        let memory = sort.make();
        let user = |memory: &Memory| drop([take(memory, ALL / 4), take(memory, ALL / 4)]);
        let users = [spawn(&memory, user), spawn(&memory, user)];
        let asking = spawn(&memory, |memory| drop(take(memory, ALL)));
        join(users.into());
        join(vec![asking]);
        assert_eq!(memory.stats().bytes_in_use, 0);
    });
}

/// One thread allocates the block and ends; another thread frees it.
#[test]
fn a_block_is_waited_for_although_who_took_it_has_ended() {
    check(SORTS, |sort| {
        let memory = sort.make();
        let sent = Arc::new(Mutex::new(None));
        let taker = {
            let sent = sent.clone();
            spawn(&memory, move |memory| {
                let block = take(memory, ALL / 2);
                *lock(&sent) = Some(block);
            })
        };
        let holder = thread::spawn(move || {
            loop {
                if let Some(block) = lock(&sent).take() {
                    break drop(block);
                }
                thread::yield_now();
            }
        });
        let asking = spawn(&memory, |memory| drop(take(memory, ALL)));
        join(vec![taker, holder, asking]);
        assert_eq!(memory.stats().bytes_in_use, 0);
    });
}

/// Two threads share a cache. One starts to use it while the other is about to put a block there. The owner
/// of the block decides which thread the request waits for.
#[test]
fn threads_that_share_a_cache_are_known_by_their_blocks() {
    check(&[Sort::Cached], |sort| {
        let memory = sort.make();
        let mine = ThreadNumber::current().get();
        let sent = Arc::new(Mutex::new(None));
        // Every sixteenth thread shares a cache, and threads of other tests also take numbers.
        loop {
            let (shares, sent) = (Arc::new(Mutex::new(None)), Arc::clone(&sent));
            let answer = Arc::clone(&shares);
            let other = spawn(&memory, move |memory| {
                let shares = ThreadNumber::current().get() % 16 == mine % 16;
                *lock(&answer) = Some(shares);
                if shares {
                    let block = take(memory, ALL / 4);
                    *lock(&sent) = Some(block);
                }
            });
            while lock(&shares).is_none() {
                thread::yield_now();
            }
            if *lock(&shares) == Some(true) {
                break drop(other);
            }
            other.join().unwrap();
        }
        let holder = thread::spawn(move || {
            while lock(&sent).is_none() {
                thread::yield_now();
            }
            drop(lock(&sent).take());
        });
        drop(take(&memory, ALL / 4));
        drop(take(&memory, ALL));
        holder.join().unwrap();
    });
}
