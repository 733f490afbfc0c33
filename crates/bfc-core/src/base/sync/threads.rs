//! Thread numbers, and detection of ended threads.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::thread_local;

/// A unique positive number of a thread, which the process never reuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNumber(u64, PhantomData<*const ()>);

thread_local! {
    /// The number of the thread; 0 if it has none so far. A property of the thread.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// Its destructor reports the end of the thread.
    static END: End = const { End { number: Cell::new(0), process: Cell::new(0) } };
}

/// Reports the end of its thread when the thread-locals are dropped.
struct End {
    /// 0 if there is nothing to report.
    number: Cell<u64>,
    /// The process of the thread. A child of `fork` has a copy of this value, and locks that no thread releases.
    process: Cell<u32>,
}

impl ThreadNumber {
    /// Returns the number of the calling thread.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let number = NUMBER.with(Cell::get);
        Self(if number == 0 { Self::give() } else { number }, PhantomData)
    }

    /// Returns the plain number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Assigns a number to the calling thread.
    #[cold]
    #[inline(never)]
    fn give() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.with(|own| own.set(number));
        with_threads(|threads| threads.living.insert(number));
        // A thread that asks first while its thread-locals are dropped cannot report its end later.
        let process = std::process::id();
        let set = |end: &End| {
            end.number.set(number);
            end.process.set(process);
        };
        if END.try_with(set).is_err() {
            End { number: Cell::new(number), process: Cell::new(process) }.tell();
        }
        number
    }
}

impl End {
    fn tell(&self) {
        let number = self.number.take();
        if number == 0 || self.process.get() != std::process::id() {
            return;
        }
        let watchers: Vec<Arc<dyn ThreadEndListener>> = with_threads(|threads| {
            threads.living.remove(&number);
            ENDS.fetch_add(1, Ordering::SeqCst);
            threads.watchers.iter().filter_map(Weak::upgrade).collect()
        });
        watchers.iter().for_each(|watcher| watcher.on_thread_end());
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.tell();
    }
}

/// The number of threads with a number that have ended.
static ENDS: AtomicU64 = AtomicU64::new(0);

/// The live threads with numbers, and their watchers.
struct Threads {
    living: BTreeSet<u64>,
    watchers: Vec<Weak<dyn ThreadEndListener>>,
}

impl Threads {
    const NONE: Self = Self { living: BTreeSet::new(), watchers: Vec::new() };
}

/// Serializes the calls of watchers.
#[cfg(not(shuttle))]
fn with_threads<R>(work: impl FnOnce(&mut Threads) -> R) -> R {
    static THREADS: std::sync::Mutex<Threads> = std::sync::Mutex::new(Threads::NONE);
    work(&mut super::lock(&THREADS))
}

/// The checker runs all threads of an execution on one thread, and parallel executions on others.
#[cfg(shuttle)]
fn with_threads<R>(work: impl FnOnce(&mut Threads) -> R) -> R {
    std::thread_local!(static THREADS: std::cell::RefCell<Threads> = const { std::cell::RefCell::new(Threads::NONE) });
    THREADS.with_borrow_mut(work)
}

/// Whether the thread of that number has not ended. A thread that drops its thread-locals counts as ended.
pub(crate) fn is_living(number: u64) -> bool {
    with_threads(|threads| threads.living.contains(&number))
}

/// Removes the numbers of ended threads.
pub(crate) fn retain_living(numbers: &mut Vec<u64>) {
    with_threads(|threads| numbers.retain(|number| threads.living.contains(number)));
}

/// Returns how many threads have ended. While this number is unchanged, [`is_living`] gives the same answers.
pub(crate) fn ends() -> u64 {
    ENDS.load(Ordering::SeqCst)
}

/// A callback for the end of threads.
pub(crate) trait ThreadEndListener: Send + Sync {
    /// Called after a thread has [ended](is_living), on that thread, without locks.
    fn on_thread_end(&self);
}

/// Registers a watcher while it lives.
pub(crate) struct ThreadEndWatch(Weak<dyn ThreadEndListener>);

impl ThreadEndWatch {
    /// Registers a watcher for ends from now on.
    pub(crate) fn new(watcher: Weak<dyn ThreadEndListener>) -> Self {
        with_threads(|threads| threads.watchers.push(Weak::clone(&watcher)));
        Self(watcher)
    }
}

impl Drop for ThreadEndWatch {
    fn drop(&mut self) {
        with_threads(|threads| {
            let place = threads.watchers.iter().position(|watcher| Weak::ptr_eq(watcher, &self.0));
            if let Some(place) = place {
                threads.watchers.swap_remove(place);
            }
        });
    }
}

impl std::fmt::Debug for ThreadEndWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadEndWatch").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::base::sync::lock;

    /// For each reported end: whether the thread was still considered live.
    #[derive(Default)]
    struct Witness {
        of: AtomicU64,
        observed: Mutex<Vec<bool>>,
    }

    impl ThreadEndListener for Witness {
        fn on_thread_end(&self) {
            lock(&self.observed).push(is_living(self.of.load(Ordering::SeqCst)));
        }
    }

    #[test]
    fn a_thread_lives_from_its_number_to_its_end_and_watchers_hear() {
        let witness = Arc::new(Witness::default());
        let watcher: Weak<dyn ThreadEndListener> = Arc::downgrade(&witness) as _;
        let watch = ThreadEndWatch::new(watcher);
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
        // Threads of other tests may have ended before.
        assert_eq!(lock(&witness.observed).last(), Some(&false));

        drop(watch);
        while Arc::strong_count(&witness) > 1 {
            std::thread::yield_now();
        }
        let observed = lock(&witness.observed).len();
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        assert_eq!(lock(&witness.observed).len(), observed);
    }
}
