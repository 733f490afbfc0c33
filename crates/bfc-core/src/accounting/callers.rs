//! The threads that call an allocator, and the detection of calls back into it.

use std::collections::HashSet;

use super::accounts::Accounts;
use super::number::MAX_THREADS;
use crate::accounting::retry::AllocatorRetry;
use crate::allocator::stats::Stats;
use crate::base::memory::Block;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, ThreadNumber, is_living, lock};

/// The threads that have taken one lock. The retry hears of each thread once instead of with each call, and the accounts
/// behind the lock record which thread allocates.
#[derive(Debug, Default)]
pub(crate) struct ThreadRegistry {
    latest: u64,
    /// Boxed, so that the fields that every event reads lie together.
    indexed: Box<IndexedThreads>,
}

/// Threads by the index that their allocation numbers carry.
#[derive(Debug, Default)]
struct IndexedThreads {
    /// 0 marks a free index.
    threads: Vec<u64>,
    /// There were too many threads at a time for the indices.
    is_crowded: bool,
}

impl ThreadRegistry {
    /// Whether the latest call came from another thread: only then this call must be noted.
    #[inline]
    pub(crate) fn is_other(&self, thread: ThreadNumber) -> bool {
        self.latest != thread.get()
    }

    /// Notes that a thread allocates, before it has memory: waiting requests must know that it may free.
    #[inline]
    pub(crate) fn note(&mut self, thread: ThreadNumber, accounts: &mut Accounts, retry: &AllocatorRetry) {
        if self.is_other(thread) {
            self.change(thread.get(), accounts, retry, AllocatorRetry::note_allocating_thread);
        }
    }

    /// Notes that a thread frees.
    #[inline]
    pub(crate) fn note_free(
        &mut self,
        thread: ThreadNumber,
        accounts: &mut Accounts,
        retry: &AllocatorRetry,
    ) {
        if self.is_other(thread) {
            self.change(thread.get(), accounts, retry, AllocatorRetry::note_freeing_thread);
        }
    }

    // Out of line: called only when the thread changes.
    #[cold]
    #[inline(never)]
    fn change(
        &mut self,
        thread: u64,
        accounts: &mut Accounts,
        retry: &AllocatorRetry,
        register: fn(&AllocatorRetry, u64),
    ) {
        self.latest = thread;
        let mut index = self.indexed.threads.iter().position(|&number| number == thread);
        if index.is_none() && !self.indexed.is_crowded {
            register(retry, thread);
            index = self.indexed.add(thread, accounts);
            if index.is_none() {
                retry.note_unknown_threads();
            }
        }
        // With too many threads to track, any thread may free any block.
        accounts.set_thread_index(index.unwrap_or(0) as u32);
    }

    /// Whether a live block of these accounts, other than `besides`, was allocated by a thread that has ended. Another thread
    /// may free such a block. Takes time in proportion to the slots.
    pub(crate) fn has_orphaned_blocks(&self, accounts: &Accounts, besides: &[Block]) -> bool {
        let ended: Vec<usize> = self.indexed.indices(|thread| !is_living(thread)).collect();
        if ended.is_empty() {
            return false;
        }
        let thread_indices = accounts.thread_indices(&besides.iter().map(|block| block.id).collect());
        ended.into_iter().any(|index| thread_indices >> index & 1 == 1)
    }
}

impl IndexedThreads {
    /// The indices of the threads that match.
    fn indices(&self, matches: impl Fn(u64) -> bool) -> impl Iterator<Item = usize> {
        let threads = self.threads.iter().enumerate();
        threads.filter(move |(_, thread)| **thread != 0 && matches(**thread)).map(|(index, _)| index)
    }

    /// Assigns an index to a thread, if one is free or can be freed.
    fn add(&mut self, thread: u64, accounts: &Accounts) -> Option<usize> {
        if self.threads.len() < MAX_THREADS {
            self.threads.push(thread);
            return Some(self.threads.len() - 1);
        }
        if !self.threads.contains(&0) {
            self.forget(accounts);
        }
        let index = self.threads.iter().position(|&number| number == 0);
        match index {
            Some(index) => self.threads[index] = thread,
            None => self.is_crowded = true,
        }
        index
    }

    /// Frees the indices of threads that have ended and left no block.
    fn forget(&mut self, accounts: &Accounts) {
        let thread_indices = accounts.thread_indices(&HashSet::new());
        let ended: Vec<usize> = self.indices(|thread| !is_living(thread)).collect();
        for index in ended.into_iter().filter(|index| thread_indices >> index & 1 == 0) {
            self.threads[index] = 0;
        }
    }
}

/// Detects calls from a source or visitor back into the allocator that is calling it under its lock.
#[derive(Debug, Default)]
pub(crate) struct ReentrancyGuard {
    /// The thread that is in a call, or 0. A thread that finds its own number here comes from its own call. The number
    /// cannot be stale, because the thread itself wrote it.
    thread: AtomicU64,
    /// The figures before the call, for questions from within it.
    stats: Mutex<Stats>,
}

/// Ends a call into the source, also if the source panics.
struct EndOfCall<'a>(&'a ReentrancyGuard);

impl Drop for EndOfCall<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Relaxed);
    }
}

impl ReentrancyGuard {
    /// The calling thread's number; `None` if it calls back from its own call.
    #[inline]
    pub(crate) fn enter(&self) -> Option<ThreadNumber> {
        let thread = ThreadNumber::current();
        (self.thread.load(Ordering::Relaxed) != thread.get()).then_some(thread)
    }

    /// Calls a source while calls back are detected. The caller holds the allocator's lock and passes its figures.
    pub(crate) fn call<R>(&self, stats: Stats, call: impl FnOnce() -> R) -> R {
        *lock(&self.stats) = stats;
        self.thread.store(ThreadNumber::current().get(), Ordering::Relaxed);
        let _end = EndOfCall(self);
        call()
    }

    /// The figures before the call that is under way.
    pub(crate) fn stats(&self) -> Stats {
        lock(&self.stats).clone()
    }
}
