//! Ended threads free nothing more, so no request waits for them; but another thread may own their live
//! blocks. These tests cover every allocator whose requests wait.

use std::sync::{Arc, mpsc};
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

use bfc_core::sim::SimDevice;
use bfc_core::{
    AllocError, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, OomReport,
    PassthroughAllocator, Request, Stream, StreamAllocator, ThreadCache,
};

use crate::common::source::{FakeSource, Nature};

/// Longer than any test may take: a request that waits this long has missed its wake-up.
const LONG: Duration = Duration::from_secs(30);

/// The bytes of each allocator.
const ALL: u64 = 4096;

/// Allocators of all kinds that wait, each of [`ALL`] bytes.
fn allocators() -> Vec<(&'static str, Arc<dyn Allocator>)> {
    let config = BfcConfig::new(Bytes(ALL)).with_allow_growth(false).with_retry_timeout(LONG);
    let source = || FakeSource::new(Nature::default());
    let pool = |name, config| Arc::new(BfcAllocator::new(name, source(), config));
    let cached = config.clone().with_thread_cache(ThreadCache::new());
    let passthrough = PassthroughAllocator::new("passthrough", source());
    let passthrough = passthrough.with_limit(Bytes(ALL)).with_retry_timeout(LONG);
    let device = Arc::new(SimDevice::new(Bytes::mib(1)));
    let memory = BfcAllocator::new("streams", Arc::new(DeviceMemory::new(device.clone())), config.clone());
    let streams = StreamAllocator::new(Arc::new(memory), Stream::new(device).unwrap());
    vec![
        ("pool", pool("pool", config)),
        ("cached", pool("cached", cached)),
        ("passthrough", Arc::new(passthrough)),
        ("streams", Arc::new(streams.with_retry_timeout(LONG))),
    ]
}

fn take(memory: &Arc<dyn Allocator>, bytes: u64) -> Allocation {
    Allocation::new(memory, &Request::new(bytes)).unwrap()
}

/// Returns the report of a request that must fail.
fn fails(memory: &Arc<dyn Allocator>, bytes: u64) -> OomReport {
    match Allocation::new(memory, &Request::new(bytes)) {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => panic!("{bytes} bytes should not fit: {other:?}"),
    }
}

/// Runs the closure on a thread that has ended when this function returns.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // The join also waits for the thread's local values.
    scope(|scope| scope.spawn(work).join().unwrap())
}

fn await_waiters(memory: &Arc<dyn Allocator>, count: u64) {
    let start = Instant::now();
    while memory.stats().retry.waiting < count {
        assert!(start.elapsed() < LONG, "nobody waits");
        yield_now();
    }
}

#[test]
fn a_thread_that_ended_and_left_nothing_is_not_waited_for() {
    for (name, memory) in allocators() {
        let _held = take(&memory, ALL / 2);
        on_a_thread(|| drop(take(&memory, 256)));
        assert!(fails(&memory, ALL).waited.is_zero(), "{name}");
        assert_eq!(memory.stats().retry.waits, 0, "{name}");
    }
}

#[test]
fn what_an_ended_thread_left_is_waited_for_whoever_has_it() {
    for (name, memory) in allocators() {
        let left = on_a_thread(|| take(&memory, ALL));
        scope(|scope| {
            // This thread has not called yet, so the pool does not know it.
            let holder = scope.spawn(|| {
                await_waiters(&memory, 1);
                drop(left);
            });
            assert_eq!(take(&memory, ALL).block().bytes, ALL, "{name}");
            holder.join().unwrap();
        });
        let retry = memory.stats().retry;
        assert!(retry.waits == 1 && retry.waited < LONG, "{name}: {retry:?}");
    }
}

/// The thread freed as much as it took, but not the same blocks.
#[test]
fn freeing_a_foreign_block_does_not_offset_a_left_block() {
    for (name, memory) in allocators() {
        let others = take(&memory, ALL / 2);
        let left = on_a_thread(|| {
            let own = take(&memory, ALL / 2);
            drop(others);
            own
        });
        scope(|scope| {
            let holder = scope.spawn(|| {
                await_waiters(&memory, 1);
                drop(left);
            });
            assert_eq!(take(&memory, ALL).block().bytes, ALL, "{name}");
            holder.join().unwrap();
        });
        assert!(memory.stats().retry.waited < LONG, "{name}");
    }
}

#[test]
fn an_ended_thread_without_blocks_is_not_waited_for() {
    for (name, memory) in allocators() {
        let held = take(&memory, ALL / 4);
        let left = on_a_thread(|| take(&memory, ALL / 2));
        drop(left);
        assert!(fails(&memory, ALL).waited.is_zero(), "{name}");
        assert_eq!(memory.stats().retry.waits, 0, "{name}");
        drop(held);
    }
}

#[test]
fn those_who_wait_learn_that_the_last_who_could_free_has_ended() {
    for (name, memory) in allocators() {
        let _held = take(&memory, ALL / 2);
        let (met, other) = mpsc::channel();
        scope(|scope| {
            scope.spawn(|| {
                drop(take(&memory, 256));
                met.send(()).unwrap();
                await_waiters(&memory, 1);
            });
            other.recv().unwrap();
            let waited = fails(&memory, ALL).waited;
            assert!(waited > Duration::ZERO && waited < LONG, "{name}: {waited:?}");
        });
        assert_eq!(memory.stats().retry.waits, 1, "{name}");
    }
}

/// The other thread ends during the wait, and a third thread owns its block and frees it later.
#[test]
fn waiting_requests_continue_after_a_sender_thread_ends() {
    for (name, memory) in allocators() {
        let (sender, blocks) = mpsc::channel::<Allocation>();
        let taken = std::sync::Barrier::new(2);
        scope(|scope| {
            let first = scope.spawn(|| {
                let block = take(&memory, ALL);
                taken.wait();
                await_waiters(&memory, 1);
                sender.send(block).unwrap();
            });
            scope.spawn(move || {
                let block = blocks.recv().unwrap();
                first.join().unwrap();
                // The pause gives the waiter time to give up, if it would.
                std::thread::sleep(Duration::from_millis(50));
                drop(block);
            });
            taken.wait();
            assert_eq!(take(&memory, ALL).block().bytes, ALL, "{name}");
        });
        let retry = memory.stats().retry;
        assert!(retry.waits == 1 && retry.waited < LONG, "{name}: {retry:?}");
    }
}

/// The allocator distinguishes the present threads, however many come and go.
#[test]
fn of_threads_that_come_and_go_none_is_waited_for() {
    for (name, memory) in allocators() {
        let _held = take(&memory, ALL / 2);
        for _ in 0..200 {
            on_a_thread(|| drop(take(&memory, 256)));
        }
        assert!(fails(&memory, ALL).waited.is_zero(), "{name}");
    }
}

#[test]
fn what_one_of_many_ended_threads_left_is_waited_for() {
    // Around the number of threads that the allocator distinguishes: it might confuse the waiter with the
    // ended owner.
    for threads in [61, 62, 63, 64, 65, 200] {
        for (name, memory) in allocators() {
            let left = on_a_thread(|| take(&memory, ALL / 2));
            for _ in 0..threads {
                on_a_thread(|| drop(take(&memory, 256)));
            }
            scope(|scope| {
                let holder = scope.spawn(|| {
                    await_waiters(&memory, 1);
                    drop(left);
                });
                assert_eq!(take(&memory, ALL).block().bytes, ALL, "{name}, {threads} threads");
                holder.join().unwrap();
            });
            assert!(memory.stats().retry.waited < LONG, "{name}, {threads} threads");
        }
    }
}

/// With too many threads to distinguish, any thread may hold memory.
#[test]
fn of_a_crowd_everybody_is_waited_for() {
    const CROWD: usize = 100;
    for (name, memory) in allocators() {
        let (all_met, all_gone) = (std::sync::Barrier::new(CROWD + 1), std::sync::Barrier::new(CROWD + 1));
        scope(|scope| {
            for _ in 0..CROWD {
                scope.spawn(|| {
                    drop(take(&memory, 16));
                    all_met.wait();
                    all_gone.wait();
                });
            }
            all_met.wait();
            let held = take(&memory, ALL);
            let holder = scope.spawn(|| {
                await_waiters(&memory, 1);
                drop(held);
            });
            assert_eq!(take(&memory, ALL).block().bytes, ALL, "{name}");
            holder.join().unwrap();
            all_gone.wait();
        });
        assert!(memory.stats().retry.waited < LONG, "{name}");
    }
}
