//! Waiting under the `shuttle` checker, which runs the threads in many orders. It has no clock: a request that misses
//! its wake-up sleeps for ever, and the checker reports a deadlock.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p bfc-core --test retry_shuttle`

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]
#![cfg(shuttle)]

mod common;

use std::time::Duration;

use bfc_core::sync::{Arc, Mutex, lock, thread};
use bfc_core::{AllocError, Allocator, AllocatorRetry, BfcAllocator, BfcConfig, Block, Bytes, Refusal};

use common::source::{FakeSource, Nature};
use common::{allocate, free};

/// Far more real time than any one schedule takes.
const LONG: Duration = Duration::from_secs(3600);

const SCHEDULES: usize = 2000;

/// Units behind a lock, as in upstream's test.
struct Units {
    free: Mutex<u64>,
    retry: AllocatorRetry,
}

impl Units {
    fn new(free: u64) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(free), retry: AllocatorRetry::new() })
    }

    fn take(&self) -> Result<Block, AllocError> {
        self.retry.allocate(1, LONG, |_last| {
            let mut free = lock(&self.free);
            if *free == 0 {
                let error = AllocError::Reentrant { allocator: "units".to_owned() };
                return Err(Refusal { error, wait: true });
            }
            *free -= 1;
            Ok(Block { bytes: 1, ..Block::EMPTY })
        })
    }

    fn give(&self) {
        *lock(&self.free) += 1;
        self.retry.notify();
    }
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn no_free_is_missed_between_the_attempt_and_the_sleep() {
    let scenario = || {
        let units = Units::new(0);
        let taker = {
            let units = Arc::clone(&units);
            thread::spawn(move || {
                units.take().unwrap();
            })
        };
        units.give();
        taker.join().unwrap();
        assert_eq!(units.retry.stats().waiting, 0);
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn three_consumers_share_two_units() {
    let scenario = || {
        let units = Units::new(2);
        let consumer = |units: Arc<Units>| {
            thread::spawn(move || {
                for _ in 0..3 {
                    units.take().unwrap();
                    units.give();
                }
            })
        };
        join((0..3).map(|_| consumer(Arc::clone(&units))).collect());
        assert_eq!(*lock(&units.free), 2);
        let stats = units.retry.stats();
        assert_eq!((stats.waiting, stats.timeouts), (0, 0));
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn wake_ups_without_memory_are_harmless() {
    let scenario = || {
        let units = Units::new(0);
        let noise = {
            let units = Arc::clone(&units);
            thread::spawn(move || {
                for _ in 0..3 {
                    units.retry.notify();
                }
            })
        };
        let taker = {
            let units = Arc::clone(&units);
            thread::spawn(move || {
                units.take().unwrap();
            })
        };
        units.give();
        join(vec![noise, taker]);
        assert_eq!(*lock(&units.free), 0);
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

/// The pool itself: each of three threads wants all of it, so all but one wait.
#[test]
fn threads_that_want_the_whole_pool_take_turns() {
    let scenario = || {
        let config = BfcConfig::new(Bytes(1024)).with_retry_timeout(LONG);
        let pool = Arc::new(BfcAllocator::new("shuttle", FakeSource::new(Nature::default()), config));
        // Known to two threads before the race, so that nobody fails for being alone.
        let warm = allocate(&pool, 1024);
        free(&pool, warm);
        {
            let pool = Arc::clone(&pool);
            let second = thread::spawn(move || {
                let block = allocate(&pool, 1024);
                free(&pool, block);
            });
            second.join().unwrap();
        }
        let user = |pool: Arc<BfcAllocator>| {
            thread::spawn(move || {
                for _ in 0..2 {
                    let block = allocate(&pool, 1024);
                    free(&pool, block);
                }
            })
        };
        join((0..3).map(|_| user(Arc::clone(&pool))).collect());
        pool.check_invariants().unwrap();
        assert_eq!(pool.stats().bytes_in_use, 0);
    };
    shuttle::check_random(scenario, SCHEDULES / 4);
    shuttle::check_pct(scenario, SCHEDULES / 4, 3);
}

/// The frontier is raised outside the pool's lock, and still no waiter misses it.
#[test]
fn a_rising_frontier_is_not_missed() {
    use bfc_core::{AllocationAttributes, Request, TimingCounter};
    let scenario = || {
        let counter = std::sync::Arc::new(TimingCounter::default());
        let config = BfcConfig::new(Bytes(1024)).with_retry_timeout(LONG).with_timing_counter(counter);
        let pool = Arc::new(BfcAllocator::new("shuttle", FakeSource::new(Nature::default()), config));
        let block = allocate(&pool, 1024);
        free(&pool, block);
        let waiter = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let before = || 0;
                let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
                pool.allocate(&Request::new(1024).with_attributes(attributes)).unwrap();
            })
        };
        pool.set_safe_frontier(2);
        waiter.join().unwrap();
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}
