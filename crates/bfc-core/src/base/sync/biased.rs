//! A mutex that costs next to nothing as long as one thread uses it.
//!
//! Most pools are used by one thread for as long as they live, yet two atomic exchanges are a fifth of what an event on a
//! pool costs. So the mutex is *biased* to a thread: that one only writes that it is inside, and looks whether the bias
//! still holds. Another thread ends the bias first: it says so, makes both see what the other wrote
//! ([`barrier`]), and waits until the favoured thread is outside. From then on all queue at an ordinary mutex, until
//! one thread has come often enough in a row to be worth a bias again. Where there is no such barrier, nobody is ever
//! favoured.
//!
//! Sources: Kawachiya, Koseki and Onodera, "Lock reservation", 2002 (the favoured thread); Dice, Huang and Yang,
//! "Asymmetric Dekker synchronization", 2001 (the barrier in two halves).

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::cold_path;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, AtomicU64, Ordering};
use super::{Mutex, MutexGuard, ThreadNumber, barrier, lock, thread};

/// The owner while there is none.
const NOBODY: Owner = Owner(0);

/// How many threads a mutex can favour, one at a time. Each needs a [place](Owner::place) for as long as the mutex lives.
const PLACES: usize = 1 << Owner::BITS;

/// How often in a row a thread has to come before the mutex is biased to it again. Ending a bias costs some
/// microseconds, coming without one some ten nanoseconds, so what is lost stays below what is gained.
const TURNS: u32 = if cfg!(shuttle) { 2 } else { 4096 };

/// See the module's text.
// In this order: the favoured thread reads the first two and then the value, whose beginning is thus beside them, and never the queue.
#[repr(C)]
pub struct BiasedMutex<T> {
    /// The [owner](Owner). Only changed by who is first in the queue: the thread that is to be favoured writes its
    /// number, another one takes it away.
    owner: AtomicU64,
    /// By place: whether the thread of that place is inside by bias, or was about to enter. Nobody else writes it: a
    /// thread that looks too late whether it is still favoured must not disturb the next one.
    inside: [AtomicBool; PLACES],
    value: UnsafeCell<T>,
    queue: Mutex<Turns>,
}

/// The thread that may enter without the queue, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner(u64);

impl Owner {
    /// Bits that the place takes. There are not 2^60 threads.
    const BITS: u32 = 2;

    const fn new(thread: ThreadNumber, place: usize) -> Self {
        Self(thread.get() << Self::BITS | place as u64)
    }

    /// The place of this thread, if it is the owner.
    #[inline]
    const fn place_of(self, thread: ThreadNumber) -> Option<usize> {
        let place = self.0.wrapping_sub(thread.get() << Self::BITS);
        if place < PLACES as u64 { Some(place as usize) } else { None }
    }

    const fn place(self) -> usize {
        self.0 as usize % PLACES
    }
}

/// Who came through the queue.
#[derive(Debug, Default)]
struct Turns {
    /// The number of the thread that came last.
    last: u64,
    /// How many more times it has to come.
    missing: u32,
    /// The threads that were ever favoured, by place; 0 where there is none.
    places: [u64; PLACES],
}

/// How the mutex was entered.
enum Entry<'a> {
    /// By bias: what to clear.
    Bias(&'a AtomicBool),
    Queue(#[expect(dead_code, reason = "held, not read")] MutexGuard<'a, Turns>),
}

/// The value, while it is locked.
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    entry: Entry<'a>,
    /// Neither sent nor shared, whatever the value allows: a bias is a thread's own.
    here: PhantomData<*mut T>,
}

// SAFETY: the value is only reached through a guard, and there is at most one at a time: see `BiasedGuard::deref`.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

impl<T> BiasedMutex<T> {
    /// A mutex that the first thread to come is favoured by.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(NOBODY.0),
            inside: std::array::from_fn(|_| AtomicBool::new(false)),
            value: UnsafeCell::new(value),
            queue: Mutex::new(Turns::default()),
        }
    }

    #[inline]
    fn owner(&self) -> Owner {
        Owner(self.owner.load(Ordering::Relaxed))
    }

    /// Waits until nobody else is inside. A thread that is inside already is found out and panics, or waits forever.
    #[inline]
    pub fn lock(&self, thread: ThreadNumber) -> BiasedGuard<'_, T> {
        let entry = match self.enter_by_bias(thread) {
            Some(inside) => Entry::Bias(inside),
            None => {
                cold_path();
                self.enter_in_turn(thread)
            }
        };
        BiasedGuard { mutex: self, entry, here: PhantomData }
    }

    /// The value, which nobody else can reach.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Enters if the thread is favoured. What is to be cleared when it leaves.
    #[inline]
    fn enter_by_bias(&self, thread: ThreadNumber) -> Option<&AtomicBool> {
        let owner = self.owner();
        let inside = &self.inside[owner.place_of(thread)?];
        assert!(!inside.load(Ordering::Relaxed), "a thread locks what it has locked");
        inside.store(true, Ordering::Relaxed);
        barrier::light();
        if self.owner() != owner {
            // The bias has just ended.
            inside.store(false, Ordering::Release);
            return None;
        }
        Some(inside)
    }

    /// Enters through the queue, which it stays first in, unless the mutex is biased to the thread from now on.
    #[inline(never)]
    fn enter_in_turn(&self, thread: ThreadNumber) -> Entry<'_> {
        let mut turns = lock(&self.queue);
        if self.owner() != NOBODY {
            self.end_bias();
            turns.missing = TURNS;
            turns.last = thread.get();
        }
        let Some(place) = turns.note(thread) else { return Entry::Queue(turns) };
        // It leaves the queue, but is inside: nobody passes in between.
        let inside = &self.inside[place];
        inside.store(true, Ordering::Relaxed);
        self.owner.store(Owner::new(thread, place).0, Ordering::Relaxed);
        Entry::Bias(inside)
    }

    /// Takes the bias away from its owner. The caller is first in the queue, and not the owner.
    #[cold]
    fn end_bias(&self) {
        let inside = &self.inside[self.owner().place()];
        self.owner.store(NOBODY.0, Ordering::Relaxed);
        // Now the owner sees that, or it was inside before and we see that.
        barrier::heavy();
        let mut looks = 0_u32;
        while inside.load(Ordering::Acquire) {
            // It may be in a call to the system that takes milliseconds.
            looks = looks.saturating_add(1);
            if looks < 100 || cfg!(shuttle) {
                thread::yield_now();
            } else {
                thread::sleep(std::time::Duration::from_micros(50));
            }
        }
    }
}

impl Turns {
    /// Counts one more turn; the thread's place, if the mutex should be biased to it now.
    #[inline]
    fn note(&mut self, thread: ThreadNumber) -> Option<usize> {
        if self.last != thread.get() && self.last != 0 {
            self.missing = TURNS;
        }
        self.last = thread.get();
        self.missing = self.missing.saturating_sub(1);
        if self.missing > 0 || !barrier::is_available() {
            return None;
        }
        let place = self.places.iter().position(|&number| number == thread.get() || number == 0)?;
        self.places[place] = thread.get();
        Some(place)
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard. Guards without bias hold the queue. One with bias is inside, which only its
        // thread can be, and once; who takes the bias away waits for that, and nobody is given a bias while there is one.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Entry::Bias(inside) = &self.entry {
            inside.store(false, Ordering::Release);
        }
    }
}

impl<T> fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedMutex").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Whether the owner is that thread, for a look from outside.
    fn is_favoured<T>(mutex: &BiasedMutex<T>, thread: ThreadNumber) -> bool {
        // Where no bias is possible there is nothing to be seen.
        !barrier::is_available() || mutex.owner().place_of(thread).is_some()
    }

    #[test]
    fn the_first_thread_is_favoured_until_another_comes() {
        let mutex = BiasedMutex::new(0);
        let me = ThreadNumber::current();
        *mutex.lock(me) += 1;
        assert!(is_favoured(&mutex, me));
        *mutex.lock(me) += 1;
        std::thread::scope(|scope| {
            scope.spawn(|| *mutex.lock(ThreadNumber::current()) += 1);
        });
        assert_eq!(mutex.owner(), NOBODY);
        assert_eq!(*mutex.lock(me), 3);
    }

    #[test]
    fn a_thread_that_comes_often_enough_in_a_row_is_favoured_again() {
        let mutex = BiasedMutex::new(());
        let me = ThreadNumber::current();
        drop(mutex.lock(me));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(mutex.lock(ThreadNumber::current())));
        });
        for _ in 0..TURNS - 1 {
            drop(mutex.lock(me));
        }
        assert_eq!(mutex.owner(), NOBODY);
        drop(mutex.lock(me));
        drop(mutex.lock(me));
        assert!(is_favoured(&mutex, me));
    }

    #[test]
    fn a_panic_inside_leaves_the_mutex_usable_for_all() {
        let mutex = BiasedMutex::new(0);
        for _ in 0..2 {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _guard = mutex.lock(ThreadNumber::current());
                panic!("as planned");
            }));
            assert!(panicked.is_err());
            std::thread::scope(|scope| {
                scope.spawn(|| *mutex.lock(ThreadNumber::current()) += 1);
            });
        }
        assert_eq!(*mutex.lock(ThreadNumber::current()), 2);
    }

    #[test]
    fn a_thread_that_locks_twice_by_bias_is_told() {
        let mutex = BiasedMutex::new(());
        let me = ThreadNumber::current();
        drop(mutex.lock(me));
        if mutex.owner() == NOBODY {
            return;
        }
        let guard = mutex.lock(me);
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(mutex.lock(me))));
        assert!(again.is_err());
        drop(guard);
        drop(mutex.lock(me));
    }

    #[test]
    fn only_so_many_threads_are_ever_favoured() {
        let mutex = BiasedMutex::new(());
        let come = || {
            let me = ThreadNumber::current();
            (0..TURNS).for_each(|_| drop(mutex.lock(me)));
            is_favoured(&mutex, me)
        };
        let favoured = std::thread::scope(|scope| {
            let all: Vec<_> = (0..PLACES + 2).map(|_| scope.spawn(come).join().unwrap()).collect();
            all.iter().filter(|favoured| **favoured).count()
        });
        assert_eq!(favoured, if barrier::is_available() { PLACES } else { PLACES + 2 });
    }

    /// Every thread comes in runs that are long enough for a bias, so that biases begin and end all the time. What is
    /// protected is no atomic: a lost exclusion loses counts.
    #[test]
    fn no_two_threads_are_inside_while_biases_come_and_go() {
        const RUNS: usize = if cfg!(miri) { 2 } else { 60 };
        let mutex = Arc::new(BiasedMutex::new([0_u64; 8]));
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let mutex = mutex.clone();
                std::thread::spawn(move || {
                    let me = ThreadNumber::current();
                    for run in 0..RUNS {
                        let turns = if (run + thread) % 2 == 0 { TURNS + 500 } else { 50 };
                        for _ in 0..turns {
                            let mut counts = mutex.lock(me);
                            assert!(counts.iter().all(|count| *count == counts[0]));
                            counts.iter_mut().for_each(|count| *count += 1);
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let each = (RUNS as u64 / 2) * u64::from(TURNS + 500 + 50);
        assert_eq!(*mutex.lock(ThreadNumber::current()), [3 * each; 8]);
    }
}
