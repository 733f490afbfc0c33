//! Upstream's cases for waiting, `gpu_allocator_retry_test.cc`, with shorter times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use bfc_core::{AllocError, AllocatorRetry, Block, Refusal};

/// An allocator of interchangeable units.
#[derive(Debug)]
struct Units {
    free: Mutex<u64>,
    retry: AllocatorRetry,
    timeout: Duration,
}

impl Units {
    fn new(capacity: u64, timeout: Duration) -> Self {
        Self { free: Mutex::new(capacity), retry: AllocatorRetry::new(), timeout }
    }

    fn take(&self) -> Result<Block, AllocError> {
        self.retry.allocate(1, self.timeout, |_last| {
            let mut free = self.free.lock().unwrap();
            if *free == 0 {
                return Err(refusal(true));
            }
            *free -= 1;
            Ok(Block { bytes: 1, ..Block::EMPTY })
        })
    }

    fn give(&self) {
        *self.free.lock().unwrap() += 1;
        self.retry.notify();
    }
}

/// Some error: these tests check only whether an error occurs.
fn refusal(wait: bool) -> Refusal {
    Refusal { error: AllocError::Reentrant { allocator: "units".to_owned() }, wait }
}

/// Runs three consumers that each take `units` units, hold them for a moment and free them. They stop when
/// one fails, or after `time` once each has finished a round and one has waited. Returns the rounds of each,
/// and whether one failed.
fn consume(allocator: &Arc<Units>, units: usize, time: Duration) -> (Vec<u64>, bool) {
    let failed = AtomicBool::new(false);
    let rounds: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    let start = Barrier::new(3);
    let deadline = Instant::now() + time;
    // A slow machine may take longer than `time` to start the threads.
    let is_done = || {
        let has_rounds = rounds.iter().all(|rounds| rounds.load(Ordering::SeqCst) > 0);
        Instant::now() >= deadline && has_rounds && allocator.retry.stats().waits > 0
    };
    std::thread::scope(|scope| {
        for round in &rounds {
            scope.spawn(|| {
                start.wait();
                while !failed.load(Ordering::SeqCst) && !is_done() {
                    let mut held = 0;
                    for _ in 0..units {
                        match allocator.take() {
                            Ok(_) => held += 1,
                            Err(_) => failed.store(true, Ordering::SeqCst),
                        }
                        // Lets the others take their first unit before this one takes its second.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    if held == units {
                        round.fetch_add(1, Ordering::SeqCst);
                    }
                    for _ in 0..held {
                        allocator.give();
                    }
                }
            });
        }
    });
    (rounds.iter().map(|round| round.load(Ordering::SeqCst)).collect(), failed.load(Ordering::SeqCst))
}

#[test]
fn retry_success() {
    let allocator = Arc::new(Units::new(2, Duration::from_secs(10)));
    let (rounds, failed) = consume(&allocator, 1, Duration::from_millis(50));
    assert!(!failed && rounds.iter().all(|&rounds| rounds > 0), "{rounds:?}");
    let stats = allocator.retry.stats();
    assert_eq!((stats.waiting, stats.timeouts), (0, 0));
    assert!(stats.waits > 0 && stats.waited > Duration::ZERO);
}

#[test]
fn no_retry_fail() {
    let allocator = Arc::new(Units::new(2, Duration::ZERO));
    let (_, failed) = consume(&allocator, 1, Duration::from_secs(10));
    assert!(failed);
    assert_eq!(allocator.retry.stats().waits, 0);
}

/// Each of the three may hold one of two units and wait for another: only the deadline ends that.
#[test]
fn retry_insufficient_fail() {
    let allocator = Arc::new(Units::new(2, Duration::from_millis(50)));
    let (_, failed) = consume(&allocator, 2, Duration::from_secs(10));
    assert!(failed);
    assert!(allocator.retry.stats().timeouts > 0);
}

#[test]
fn zero_bytes_never_ask() {
    let block = AllocatorRetry::new().allocate(0, Duration::ZERO, |_| panic!("asked for nothing"));
    assert_eq!(block, Ok(Block::EMPTY));
}

#[test]
fn a_request_without_a_timeout_has_two_attempts() {
    let mut attempts = Vec::new();
    let answer = AllocatorRetry::new().allocate(1, Duration::ZERO, |last| {
        attempts.push(last);
        Err(refusal(true))
    });
    assert!(answer.is_err());
    assert_eq!(attempts, [false, true]);
}

#[test]
fn a_refusal_without_hope_is_final() {
    let retry = AllocatorRetry::new();
    let mut attempts = 0;
    let answer = retry.allocate(1, Duration::from_secs(10), |_| {
        attempts += 1;
        Err(refusal(false))
    });
    assert!(answer.is_err());
    assert_eq!((attempts, retry.stats().waits), (1, 0));
}

/// A free between the failed attempt and the sleep: upstream's waiter sleeps on.
#[test]
fn a_free_during_the_attempt_is_not_missed() {
    let retry = AllocatorRetry::new();
    let mut attempts = 0;
    let answer = retry.allocate(1, Duration::from_secs(60), |_| {
        attempts += 1;
        if attempts < 3 {
            retry.notify();
            return Err(refusal(true));
        }
        Ok(Block::EMPTY)
    });
    assert!(answer.is_ok());
    assert_eq!((attempts, retry.stats().waits, retry.stats().timeouts), (3, 1, 0));
}

#[test]
fn frees_that_never_end_do_not_postpone_the_deadline() {
    let retry = AllocatorRetry::new();
    let mut attempts = Vec::new();
    let answer = retry.allocate(1, Duration::from_millis(20), |last| {
        attempts.push(last);
        retry.notify();
        Err(refusal(true))
    });
    assert!(answer.is_err());
    assert_eq!(attempts.iter().filter(|&&last| last).count(), 1);
    assert_eq!(attempts.last(), Some(&true));
    assert_eq!((retry.stats().timeouts, retry.stats().waiting), (1, 0));
}

#[test]
fn an_attempt_that_panics_is_not_counted_as_waiting_for_ever() {
    let retry = AllocatorRetry::new();
    let mut attempts = 0;
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = retry.allocate(1, Duration::from_millis(1), |_| {
            attempts += 1;
            if attempts > 1 {
                std::panic::resume_unwind(Box::new("attempt"));
            }
            Err(refusal(true))
        });
    }));
    assert!(unwound.is_err());
    assert_eq!(retry.stats().waiting, 0);
    retry.clear_stats();
    assert_eq!(retry.stats(), Default::default());
}
