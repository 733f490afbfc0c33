//! Waiting under the `shuttle` checker, which runs the threads in many orders. The checker has no clock: a
//! request that misses its wake-up sleeps forever, and the checker reports a deadlock.

mod ended;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use bfc_core::sync::{Arc, Mutex, lock, thread};
use bfc_core::{
    AllocError, Allocator, AllocatorRetry, BfcAllocator, BfcConfig, Block, Bytes, Refusal, ThreadCache,
    WaitKey,
};

use crate::common::source::{FakeSource, Nature};
use crate::common::{allocate, free};

/// Far more real time than any schedule takes.
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
        // The pool knows two threads before the race, so no request fails for being alone.
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

/// A thread raises the frontier outside the pool's lock, and no waiter misses it.
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

/// Bytes in one piece behind a lock, and whether there will ever be more.
struct Piece {
    state: Mutex<(u64, bool)>,
    retry: AllocatorRetry,
}

impl Piece {
    fn new(free: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((free, true)), retry: AllocatorRetry::new() })
    }

    fn attempt(&self, bytes: u64) -> Result<Block, Refusal> {
        let (free, hope) = &mut *lock(&self.state);
        if *free < bytes {
            let error = AllocError::Reentrant { allocator: "piece".to_owned() };
            return Err(Refusal { error, wait: *hope });
        }
        *free -= bytes;
        Ok(Block { bytes, ..Block::EMPTY })
    }

    fn take(&self, bytes: u64) -> Result<Block, AllocError> {
        let want = WaitKey { bytes, class: Some(0) };
        self.retry.allocate_as(want, LONG, |_last| self.attempt(bytes))
    }

    fn give(&self, bytes: u64) {
        let largest = {
            let (free, _) = &mut *lock(&self.state);
            *free += bytes;
            *free
        };
        self.retry.notify_up_to(largest);
    }

    /// From now on, refused requests do not wait.
    fn end(&self) {
        lock(&self.state).1 = false;
        self.retry.notify();
    }
}

fn check(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(scenario.clone(), SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

/// The pool serves two of three waiters in any order of arrival: they do not wait behind the large one.
#[test]
fn nobody_waits_beside_memory_that_fits() {
    check(|| {
        let piece = Piece::new(0);
        let taker = |bytes| {
            let piece = Arc::clone(&piece);
            thread::spawn(move || piece.take(bytes).map(drop))
        };
        let (large, small, other) = (taker(5), taker(2), taker(1));
        let givers = [1, 2].map(|bytes| {
            let piece = Arc::clone(&piece);
            thread::spawn(move || piece.give(bytes))
        });
        join(givers.into());
        small.join().unwrap().unwrap();
        other.join().unwrap().unwrap();
        piece.end();
        large.join().unwrap().unwrap_err();
        assert_eq!(lock(&piece.state).0, 0);
        assert_eq!((piece.retry.stats().waiting, piece.retry.stats().timeouts <= 1), (0, true));
    });
}

/// Threads request all sizes and free what they took: each gets its turn although others return repeatedly.
#[test]
fn takers_of_different_sizes_are_all_served() {
    check(|| {
        let piece = Piece::new(4);
        let taker = |bytes| {
            let piece = Arc::clone(&piece);
            thread::spawn(move || {
                for _ in 0..2 {
                    piece.take(bytes).unwrap();
                    piece.give(bytes);
                }
            })
        };
        join([4, 3, 2, 1].map(taker).into());
        assert_eq!(lock(&piece.state).0, 4);
    });
}

/// Either of the two may have the turn when memory arrives: if one panics, the other still wakes.
#[test]
fn a_waiter_that_panics_hands_its_turn_on() {
    check(|| {
        let piece = Piece::new(0);
        let panicking = {
            let piece = Arc::clone(&piece);
            thread::spawn(move || {
                let mut attempts = 0;
                let _panicked_or_refused = catch_unwind(AssertUnwindSafe(|| {
                    piece.retry.allocate(1, LONG, |_last| {
                        attempts += 1;
                        if attempts > 1 {
                            resume_unwind(Box::new("attempt"));
                        }
                        piece.attempt(2)
                    })
                }));
            })
        };
        let patient = {
            let piece = Arc::clone(&piece);
            thread::spawn(move || assert_eq!(piece.take(1).unwrap().bytes, 1))
        };
        piece.give(1);
        patient.join().unwrap();
        piece.end();
        panicking.join().unwrap();
        assert_eq!(piece.retry.stats().waiting, 0);
    });
}

/// All three wait when memory arrives, and each free may serve any of them.
#[test]
fn the_oldest_is_served_first() {
    check(|| {
        let piece = Piece::new(0);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let taker = |name, older| {
            while piece.retry.stats().waiting < older {
                thread::yield_now();
            }
            let (piece, taken) = (Arc::clone(&piece), Arc::clone(&taken));
            thread::spawn(move || {
                let want = WaitKey { bytes: 1, class: Some(0) };
                let attempt = |_last| {
                    let block = piece.attempt(1)?;
                    lock(&taken).push(name);
                    Ok(block)
                };
                piece.retry.allocate_as(want, LONG, attempt).unwrap();
            })
        };
        let takers = vec![taker("first", 0), taker("second", 1), taker("third", 2)];
        while piece.retry.stats().waiting < 3 {
            thread::yield_now();
        }
        for _ in 0..3 {
            piece.give(1);
        }
        join(takers);
        assert_eq!(*lock(&taken), ["first", "second", "third"]);
    });
}

/// With caches: two threads free the memory that a third awaits, each into a cache that the waiter may have
/// emptied.
#[test]
fn no_free_is_left_in_a_cache_while_a_request_waits() {
    let scenario = || {
        let config = BfcConfig::new(Bytes(1024)).with_allow_growth(false).with_retry_timeout(LONG);
        let config = config.with_thread_cache(ThreadCache::new());
        let pool = Arc::new(BfcAllocator::new("shuttle", FakeSource::new(Nature::default()), config));
        let warm = allocate(&pool, 1024);
        free(&pool, warm);
        let user = |pool: &Arc<BfcAllocator>| {
            let pool = Arc::clone(pool);
            thread::spawn(move || {
                let blocks = [allocate(&pool, 256), allocate(&pool, 256)];
                blocks.into_iter().for_each(|block| free(&pool, block));
            })
        };
        // The pool knows several threads before the race, so no request fails for being alone.
        user(&pool).join().unwrap();
        let users = [user(&pool), user(&pool)];
        let whole = allocate(&pool, 1024);
        free(&pool, whole);
        join(users.into());
        pool.check_invariants().unwrap();
        assert_eq!((pool.stats().retry.waiting, pool.stats().bytes_in_use), (0, 0));
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}
