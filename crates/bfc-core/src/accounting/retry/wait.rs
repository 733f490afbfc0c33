//! One waiting request: its sleep, its turns and its end.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::AllocatorRetry;
use crate::allocator::request::WaitKey;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::{Arc, Condvar, ThreadEndListener, ThreadEndWatch, lock, wait};

/// Counts one interested request while it lives, also if an attempt panics.
#[derive(Debug)]
pub(super) struct Interest<'a>(&'a AtomicUsize);

impl<'a> Interest<'a> {
    pub(super) fn new(interested: &'a AtomicUsize) -> Self {
        interested.fetch_add(1, Ordering::SeqCst);
        Self(interested)
    }
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A waiting request, from its first sleep to its end. Its drop passes the turn on, also after a panic.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    retry: &'a AllocatorRetry,
    ticket: u64,
    /// Signals this request's turn.
    bell: Arc<Condvar>,
    pub(super) started: Instant,
    /// `None` if the clock cannot represent the deadline.
    deadline: Option<Instant>,
    pub(super) successful: bool,
}

impl<'a> Wait<'a> {
    /// Queues a request whose failed first attempt began at epoch `tried`.
    pub(super) fn start(retry: &'a AllocatorRetry, key: WaitKey, tried: u64, timeout: Duration) -> Self {
        let bell = Arc::new(Condvar::new());
        let mut ticket = 0;
        retry.shared.update(|state| {
            state.stats.waits += 1;
            state.stats.waiting += 1;
            state.watch.get_or_insert_with(|| {
                let watcher: Weak<dyn ThreadEndListener> = std::sync::Arc::downgrade(&retry.shared) as _;
                ThreadEndWatch::new(watcher)
            });
            let turn;
            (ticket, turn) = state.queue.enter(key, tried, Arc::clone(&bell));
            // Includes threads that ended between the attempt and the watch.
            turn.or(state.note_ends())
        });
        let started = Instant::now();
        Self { retry, ticket, bell, started, deadline: started.checked_add(timeout), successful: false }
    }

    /// Records another failed attempt, which began at epoch `tried`.
    pub(super) fn failed(&self, key: WaitKey, tried: u64) {
        self.retry.shared.update(|state| state.queue.failed(self.ticket, key, tried));
    }

    /// Sleeps until this request's turn. Returns whether the next attempt is the last: after the
    /// deadline.
    pub(super) fn sleep(&self) -> bool {
        let mut state = lock(&self.retry.shared.state);
        loop {
            let time = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if time == Some(Duration::ZERO) {
                return true;
            }
            if state.queue.has_turn(self.ticket) {
                return false;
            }
            state = wait(&self.bell, state, time);
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.retry.shared.update(|state| {
            state.stats.waiting -= 1;
            state.stats.waited += self.started.elapsed();
            if !self.successful {
                state.stats.timeouts += 1;
            }
            if state.stats.waiting == 0 {
                state.watch = None;
            }
            state.queue.leave(self.ticket)
        });
    }
}
