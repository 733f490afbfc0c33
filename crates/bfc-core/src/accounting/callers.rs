//! Who calls an allocator, and when the allocator calls others.

use std::collections::HashSet;

use super::accounts::Accounts;
use super::number::TAKERS;
use crate::accounting::retry::AllocatorRetry;
use crate::allocator::stats::Stats;
use crate::base::memory::Block;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Mutex, ThreadNumber, is_living, lock};

/// Which threads have come to one lock, so that the retry hears of each thread once and not with each call, and so that the
/// accounts behind the lock know who takes.
#[derive(Debug, Default)]
pub(crate) struct ThreadRegistry {
    latest: u64,
    /// Elsewhere, so that what every event needs lies together.
    met: Box<IndexedThreads>,
}

/// The threads that have come, by the indices that the numbers of their allocations bear.
#[derive(Debug, Default)]
struct IndexedThreads {
    /// 0 where there is none any more.
    threads: Vec<u64>,
    /// There were too many at a time to be told apart.
    crowded: bool,
}

impl ThreadRegistry {
    /// Whether the latest call came from another thread: only then need this one be noted.
    #[inline]
    pub(crate) fn is_other(&self, thread: ThreadNumber) -> bool {
        self.latest != thread.get()
    }

    /// Notes that a thread takes memory, before it has any: whoever waits must know that it may come from there.
    #[inline]
    pub(crate) fn note(&mut self, thread: ThreadNumber, accounts: &mut Accounts, retry: &AllocatorRetry) {
        if self.is_other(thread) {
            self.change(thread.get(), accounts, retry, AllocatorRetry::meet);
        }
    }

    /// Notes that a thread gives memory back.
    #[inline]
    pub(crate) fn note_free(
        &mut self,
        thread: ThreadNumber,
        accounts: &mut Accounts,
        retry: &AllocatorRetry,
    ) {
        if self.is_other(thread) {
            self.change(thread.get(), accounts, retry, AllocatorRetry::meet_freeing);
        }
    }

    // Called at every change of threads, but not to be in the way where there is none.
    #[cold]
    #[inline(never)]
    fn change(
        &mut self,
        thread: u64,
        accounts: &mut Accounts,
        retry: &AllocatorRetry,
        meet: fn(&AllocatorRetry, u64),
    ) {
        self.latest = thread;
        let mut index = self.met.threads.iter().position(|&met| met == thread);
        if index.is_none() && !self.met.crowded {
            meet(retry, thread);
            index = self.met.add(thread, accounts);
            if index.is_none() {
                retry.meet_anybody();
            }
        }
        // Whose the blocks of others are does not matter: from then on anybody may have any.
        accounts.set_taker(index.unwrap_or(0) as u32);
    }

    /// Whether a block of these accounts is live, other than these, that a thread took which has ended: whoever has it now may
    /// free it. Takes time in proportion to the slots.
    pub(crate) fn has_orphaned_blocks(&self, accounts: &Accounts, besides: &[Block]) -> bool {
        let gone: Vec<usize> = self.met.indices(|thread| !is_living(thread)).collect();
        if gone.is_empty() {
            return false;
        }
        let takers = accounts.takers(&besides.iter().map(|block| block.id).collect());
        gone.into_iter().any(|index| takers >> index & 1 == 1)
    }
}

impl IndexedThreads {
    /// The indices of such threads.
    fn indices(&self, such: impl Fn(u64) -> bool) -> impl Iterator<Item = usize> {
        let threads = self.threads.iter().enumerate();
        threads.filter(move |(_, thread)| **thread != 0 && such(**thread)).map(|(index, _)| index)
    }

    /// Gives a thread an index, if there is one left or could be again.
    fn add(&mut self, thread: u64, accounts: &Accounts) -> Option<usize> {
        if self.threads.len() < TAKERS {
            self.threads.push(thread);
            return Some(self.threads.len() - 1);
        }
        if !self.threads.contains(&0) {
            self.forget(accounts);
        }
        let index = self.threads.iter().position(|&met| met == 0);
        match index {
            Some(index) => self.threads[index] = thread,
            None => self.crowded = true,
        }
        index
    }

    /// Lets go of the threads that have ended and left no block.
    fn forget(&mut self, accounts: &Accounts) {
        let takers = accounts.takers(&HashSet::new());
        let gone: Vec<usize> = self.indices(|thread| !is_living(thread)).collect();
        for index in gone.into_iter().filter(|index| takers >> index & 1 == 0) {
            self.threads[index] = 0;
        }
    }
}

/// The call into the source that an allocator is making under its lock.
#[derive(Debug, Default)]
pub(crate) struct ReentrancyGuard {
    /// The thread that makes it, or 0. A thread that finds its own number here has come back from its own call; it
    /// cannot find it stale, for it wrote it itself.
    thread: AtomicU64,
    /// The figures before the call, for those who ask from within it.
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
    /// The calling thread's number, unless it comes from a call that is under way.
    #[inline]
    pub(crate) fn enter(&self) -> Option<ThreadNumber> {
        let thread = ThreadNumber::current();
        (self.thread.load(Ordering::Relaxed) != thread.get()).then_some(thread)
    }

    /// Makes a call, marked so that a call back is recognised. The allocator's lock is held; `stats` are its figures.
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
