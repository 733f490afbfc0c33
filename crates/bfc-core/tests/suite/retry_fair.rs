//! Which waiters a free wakes: real threads that wait for units of memory.

#![cfg(not(shuttle))]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use bfc_core::{AllocError, AllocatorRetry, Block, Refusal, WaitKey};

/// Longer than any test may take: a request that waits this long has missed its wake-up.
const LONG: Duration = Duration::from_secs(60);

/// A contiguous range of bytes.
#[derive(Debug, Default)]
struct Piece {
    free: Mutex<u64>,
    /// The threads that got memory, in order.
    served: Mutex<Vec<u64>>,
    retry: AllocatorRetry,
}

impl Piece {
    fn attempt(&self, bytes: u64) -> Result<Block, Refusal> {
        let mut free = self.free.lock().unwrap();
        if *free < bytes {
            return Err(Refusal {
                error: AllocError::Reentrant { allocator: "piece".to_owned() },
                wait: true,
            });
        }
        *free -= bytes;
        self.served.lock().unwrap().push(bytes);
        Ok(Block { bytes, ..Block::EMPTY })
    }

    fn take(&self, bytes: u64, timeout: Duration) -> Result<Block, AllocError> {
        self.retry.allocate_as(like(bytes), timeout, |_last| self.attempt(bytes))
    }

    fn give(&self, bytes: u64) {
        let mut free = self.free.lock().unwrap();
        *free += bytes;
        let largest = *free;
        drop(free);
        self.retry.notify_up_to(largest);
    }

    fn await_waiting(&self, count: u64) {
        self.await_that(|piece| piece.retry.stats().waiting == count);
    }

    fn await_that(&self, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LONG, "it never came to pass: {self:?}");
            std::thread::yield_now();
        }
    }
}

fn like(bytes: u64) -> WaitKey {
    WaitKey { bytes, class: Some(0) }
}

/// A thread with a small stack, so that the test can start many.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().stack_size(64 * 1024).spawn_scoped(scope, work).unwrap()
}

#[test]
fn a_thousand_waiters_are_not_all_woken_by_each_free() {
    let piece = Piece::default();
    std::thread::scope(|scope| {
        for _ in 0..1000 {
            spawn(scope, || piece.take(64, LONG).unwrap());
        }
        piece.await_waiting(1000);
        piece.give(63);
        assert_eq!(piece.retry.stats().wakeups, 0, "no free of 63 bytes serves 64");
        piece.give(1);
        piece.await_waiting(999);
        for waiting in (0..999).rev() {
            piece.give(64);
            piece.await_waiting(waiting);
        }
    });
    let stats = piece.retry.stats();
    // Each free wakes at most one waiter that succeeds and one that finds too little memory.
    assert!((1000..=2000).contains(&stats.wakeups), "{stats:?}");
    assert_eq!((stats.waits, stats.timeouts), (1000, 0));
}

#[test]
fn one_free_wakes_all_whom_it_serves_and_no_more() {
    let piece = Piece::default();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..300).map(|_| spawn(scope, || piece.take(64, LONG).unwrap())).collect();
        piece.await_waiting(300);
        piece.give(64 * 200);
        piece.await_waiting(100);
        assert!(piece.retry.stats().wakeups <= 201);
        piece.give(64 * 100);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
    assert!(piece.retry.stats().wakeups <= 301);
}

#[test]
fn waiters_are_served_in_the_order_of_their_age() {
    let piece = Piece::default();
    let sizes = [7, 3, 9, 1, 5];
    std::thread::scope(|scope| {
        for (older, &bytes) in sizes.iter().enumerate() {
            piece.await_waiting(older as u64);
            let piece = &piece;
            spawn(scope, move || piece.take(bytes, LONG).unwrap());
        }
        piece.await_waiting(5);
        piece.give(sizes.iter().sum());
    });
    assert_eq!(*piece.served.lock().unwrap(), sizes);
}

/// A free too small for the oldest waiter serves another one.
#[test]
fn a_small_request_overtakes_one_that_is_too_large() {
    let piece = Piece::default();
    std::thread::scope(|scope| {
        spawn(scope, || piece.take(100, LONG).unwrap());
        piece.await_waiting(1);
        spawn(scope, || piece.take(10, LONG).unwrap());
        piece.await_waiting(2);
        piece.give(10);
        piece.await_waiting(1);
        piece.give(100);
    });
    assert_eq!(*piece.served.lock().unwrap(), [10, 100]);
    assert_eq!(piece.retry.stats().wakeups, 2);
}

#[test]
fn a_newcomer_may_take_a_fitting_block_at_once() {
    let piece = Piece::default();
    std::thread::scope(|scope| {
        spawn(scope, || piece.take(100, LONG).unwrap());
        piece.await_waiting(1);
        piece.give(50);
        assert_eq!(piece.take(50, Duration::ZERO).unwrap().bytes, 50);
        assert_eq!(piece.retry.stats().waits, 1, "it did not wait");
        piece.give(100);
    });
}

/// The first waiter panics, fails without hope, or does not retry: the second waiter gets the memory.
#[test]
fn who_ends_without_its_memory_hands_the_turn_on() {
    let panicking = |piece: &Piece| {
        let mut attempts = 0;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            piece.retry.allocate_as(like(10), LONG, |_last| {
                attempts += 1;
                if attempts > 1 {
                    resume_unwind(Box::new("attempt"));
                }
                piece.attempt(10)
            })
        }));
        assert!(unwound.is_err());
    };
    let hopeless = |piece: &Piece| {
        let mut attempts = 0;
        let answer = piece.retry.allocate_as(like(10), LONG, |_last| {
            attempts += 1;
            Err(Refusal {
                error: AllocError::Reentrant { allocator: "piece".to_owned() },
                wait: attempts == 1,
            })
        });
        assert!(answer.is_err());
    };
    let first: [&(dyn Fn(&Piece) + Sync); 2] = [&panicking, &hopeless];
    for first in first {
        let piece = Piece::default();
        std::thread::scope(|scope| {
            spawn(scope, || first(&piece));
            piece.await_waiting(1);
            spawn(scope, || piece.take(10, LONG).unwrap());
            piece.await_waiting(2);
            piece.give(10);
        });
        let stats = piece.retry.stats();
        assert_eq!((stats.waiting, stats.timeouts, stats.wakeups), (0, 1, 2));
    }
}

/// Each of a hundred waiters times out by itself, and the frees that served none of them did not postpone
/// that.
#[test]
fn deadlines_hold_for_every_waiter() {
    let piece = Piece::default();
    let timeout = Duration::from_millis(100);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..100).map(|_| spawn(scope, || piece.take(10, timeout))).collect();
        piece.await_that(|piece| piece.retry.stats().waits == 100);
        while piece.retry.stats().waiting > 0 {
            piece.retry.notify();
            std::thread::yield_now();
        }
        for waiter in waiters {
            assert!(waiter.join().unwrap().is_err());
        }
    });
    let stats = piece.retry.stats();
    assert_eq!((stats.waiting, stats.timeouts), (0, 100));
}

#[test]
fn the_last_attempt_finds_memory_that_nobody_told_of() {
    let piece = Piece::default();
    std::thread::scope(|scope| {
        let waiter = spawn(scope, || piece.take(10, Duration::from_millis(50)));
        piece.await_waiting(1);
        *piece.free.lock().unwrap() += 10;
        assert_eq!(waiter.join().unwrap().unwrap().bytes, 10);
    });
    assert_eq!((piece.retry.stats().timeouts, piece.retry.stats().wakeups), (0, 0));
}
