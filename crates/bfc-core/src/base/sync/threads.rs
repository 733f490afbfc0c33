//! Numbers of threads, and which of the threads have ended.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::thread_local;

/// A number of the calling thread, above 0, that no other thread of the process has or will have. It stays with its
/// thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNumber(u64, PhantomData<*const ()>);

thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });

thread_local!(static END: End = const { End(Cell::new(0)) });

/// Tells of its thread's end, when the thread's own values are dropped.
struct End(Cell<u64>);

impl ThreadNumber {
    /// That of the calling thread.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let number = NUMBER.with(Cell::get);
        Self(if number == 0 { Self::give() } else { number }, PhantomData)
    }

    /// As a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Gives the calling thread its number.
    #[cold]
    #[inline(never)]
    fn give() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.with(|own| own.set(number));
        with_threads(|threads| threads.living.insert(number));
        // A thread that comes for the first time while its own values are dropped cannot tell later.
        if END.try_with(|end| end.0.set(number)).is_err() {
            End(Cell::new(number)).tell();
        }
        number
    }
}

impl End {
    fn tell(&self) {
        let number = self.0.take();
        if number == 0 {
            return;
        }
        let watchers: Vec<Arc<dyn WatchesEnds>> = with_threads(|threads| {
            threads.living.remove(&number);
            ENDS.fetch_add(1, Ordering::SeqCst);
            threads.watchers.iter().filter_map(Weak::upgrade).collect()
        });
        watchers.iter().for_each(|watcher| watcher.a_thread_ended());
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.tell();
    }
}

/// How many threads have ended of those that had a number.
static ENDS: AtomicU64 = AtomicU64::new(0);

/// What is known of all threads that have a number.
struct Threads {
    living: BTreeSet<u64>,
    watchers: Vec<Weak<dyn WatchesEnds>>,
}

impl Threads {
    const NONE: Self = Self { living: BTreeSet::new(), watchers: Vec::new() };
}

/// Nobody else is called meanwhile.
#[cfg(not(shuttle))]
fn with_threads<R>(work: impl FnOnce(&mut Threads) -> R) -> R {
    static THREADS: std::sync::Mutex<Threads> = std::sync::Mutex::new(Threads::NONE);
    work(&mut super::lock(&THREADS))
}

/// The checker runs all threads of an execution on one, and other executions on others beside it.
#[cfg(shuttle)]
fn with_threads<R>(work: impl FnOnce(&mut Threads) -> R) -> R {
    std::thread_local!(static THREADS: std::cell::RefCell<Threads> = const { std::cell::RefCell::new(Threads::NONE) });
    THREADS.with_borrow_mut(work)
}

/// Whether the thread of that number has not ended. One that is about to end, and drops its own values, has.
pub(crate) fn is_living(number: u64) -> bool {
    with_threads(|threads| threads.living.contains(&number))
}

/// Keeps the numbers of threads that have not ended.
pub(crate) fn retain_living(numbers: &mut Vec<u64>) {
    with_threads(|threads| numbers.retain(|number| threads.living.contains(number)));
}

/// How many threads have ended so far: as long as that stays, so does what is said of them.
pub(crate) fn ends() -> u64 {
    ENDS.load(Ordering::SeqCst)
}

/// Somebody who has to know when a thread ends.
pub(crate) trait WatchesEnds: Send + Sync {
    /// A thread has ended, and is [known](is_living) to have. Called by that thread, which holds no lock.
    fn a_thread_ended(&self);
}

/// Has a watcher called for as long as this lives.
pub(crate) struct EndWatch(Weak<dyn WatchesEnds>);

impl EndWatch {
    /// From now on. What ended before is not told of.
    pub(crate) fn new(watcher: Weak<dyn WatchesEnds>) -> Self {
        with_threads(|threads| threads.watchers.push(Weak::clone(&watcher)));
        Self(watcher)
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        with_threads(|threads| {
            let place = threads.watchers.iter().position(|watcher| Weak::ptr_eq(watcher, &self.0));
            if let Some(place) = place {
                threads.watchers.swap_remove(place);
            }
        });
    }
}

impl std::fmt::Debug for EndWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndWatch").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::base::sync::lock;

    /// Of each end that it was told of: whether the thread it asks for was still said to live.
    #[derive(Default)]
    struct Witness {
        of: AtomicU64,
        told: Mutex<Vec<bool>>,
    }

    impl WatchesEnds for Witness {
        fn a_thread_ended(&self) {
            lock(&self.told).push(is_living(self.of.load(Ordering::SeqCst)));
        }
    }

    #[test]
    fn watchers_are_notified_after_a_thread_ends() {
        let witness = Arc::new(Witness::default());
        let watcher: Weak<dyn WatchesEnds> = Arc::downgrade(&witness) as _;
        let watch = EndWatch::new(watcher);
        let run = || {
            let number = ThreadNumber::current().get();
            witness.of.store(number, Ordering::SeqCst);
            assert!(is_living(number));
            number
        };
        let before = ends();
        let ended = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        let mut numbers = vec![ended, ThreadNumber::current().get()];
        retain_living(&mut numbers);
        assert!(!is_living(ended) && ends() > before);
        assert_eq!(numbers, [ThreadNumber::current().get()]);
        // Threads of other tests may have ended before it.
        assert_eq!(lock(&witness.told).last(), Some(&false));

        drop(watch);
        while Arc::strong_count(&witness) > 1 {
            std::thread::yield_now();
        }
        let told = lock(&witness.told).len();
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        assert_eq!(lock(&witness.told).len(), told);
    }
}
