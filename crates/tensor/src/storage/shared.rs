//! Values with counted handles: like `Arc`, for what ops make and drop all the time.
//!
//! Three things set these handles apart from those of `Arc`, each worth some hundredths of a small step. The [memory](Shareable) that a
//! value stood in is kept for the next one. Whoever drops the last handle sees that it is the last by looking, without an atomic
//! exchange. And a value is put together where it stays: what is built first and moved afterwards is moved in larger pieces than
//! it was just written in, for which processors wait until all is written.

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread::LocalKey;

pub(crate) use super::or_number::{Either, SharedOrNumber};

use crate::storage::spare::{self, Spare};

/// A value and how many handles it has.
// In this order, whether the value is there yet or not.
#[repr(C)]
pub(crate) struct Counted<T> {
    handles: AtomicUsize,
    value: T,
}

/// Memory for a value with handles.
pub(crate) type Piece<T> = Box<Counted<MaybeUninit<T>>>;

/// What handles are made to.
pub(crate) trait Shareable: Sized + 'static {
    /// The calling thread's spare memory for such values.
    fn pieces() -> &'static LocalKey<Spare<Piece<Self>>>;
}

/// More handles than anybody can have who does not lose them all the time: beyond, the count could overflow.
const MOST_HANDLES: usize = isize::MAX as usize;

/// A handle to a value, which is dropped with the last one.
#[repr(transparent)]
pub(crate) struct Shared<T: Shareable> {
    /// A [`Piece`] with a value in it, both there until the last handle is dropped.
    pub(super) counted: NonNull<Counted<T>>,
    /// What the last handle drops.
    pub(super) owns: PhantomData<Counted<T>>,
}

/// The only handle to a value.
pub(crate) struct Unique<T: Shareable>(Shared<T>);

/// Where a value will be put together.
pub(crate) struct Room<T>(Piece<T>);

// SAFETY: as for `Arc`: handles on several threads give all of them references to the value, and any of them may drop it.
unsafe impl<T: Shareable + Send + Sync> Send for Shared<T> {}
// SAFETY: as before; a handle can be made of a reference to one.
unsafe impl<T: Shareable + Send + Sync> Sync for Shared<T> {}

impl<T: Shareable> Room<T> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let new = || Box::new(Counted { handles: AtomicUsize::new(0), value: MaybeUninit::uninit() });
        Self(spare::take(T::pieces()).unwrap_or_else(new))
    }

    /// The value, put here.
    #[inline(always)]
    pub(crate) fn fill(mut self, value: T) -> Unique<T> {
        self.0.value.write(value);
        *self.0.handles.get_mut() = 1;
        // With its value it lies as without.
        let counted = NonNull::from(Box::leak(self.0)).cast::<Counted<T>>();
        Unique(Shared { counted, owns: PhantomData })
    }
}

impl<T: Shareable> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Room::new().fill(value).shareable()
    }

    /// Whether there is no other handle to the value. All that others did with theirs is seen then.
    #[inline]
    pub(crate) fn is_unique(this: &Self) -> bool {
        this.counted().handles.load(Ordering::Acquire) == 1
    }

    /// The value, if there is no other handle to it.
    #[inline]
    pub(crate) fn get_mut(this: &mut Self) -> Option<&mut T> {
        if !Self::is_unique(this) {
            return None;
        }
        // SAFETY: it is there as long as this handle, which is borrowed. There is no other one, and none can be made meanwhile.
        Some(unsafe { &mut this.counted.as_mut().value })
    }

    #[inline]
    const fn counted(&self) -> &Counted<T> {
        // SAFETY: it is there as long as this handle, and is written through none while there are several.
        unsafe { self.counted.as_ref() }
    }

    /// Drops the value, and keeps its memory.
    ///
    /// # Safety
    /// This was the last handle, and nothing is done with it any more.
    #[inline(never)]
    unsafe fn end(&mut self) {
        // SAFETY: it is the piece that the value was put into, and nobody else has it.
        let mut piece: Piece<T> = unsafe { Box::from_raw(self.counted.as_ptr().cast()) };
        // SAFETY: the value is there, and nobody will look at it again.
        unsafe { piece.value.assume_init_drop() };
        spare::keep(T::pieces(), piece);
    }
}

impl<T: Shareable> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        if self.counted().handles.fetch_add(1, Ordering::Relaxed) > MOST_HANDLES {
            // As `Arc` does it: no error can be told where a handle is cloned.
            std::process::abort();
        }
        Self { counted: self.counted, owns: PhantomData }
    }
}

impl<T: Shareable> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // Who has the last handle has no rivals, and need not change the count.
        if !Self::is_unique(self) {
            if self.counted().handles.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            // Another one was dropped in between: what was done with it comes first.
            fence(Ordering::Acquire);
        }
        // SAFETY: it is being dropped, and was the only one that the count was still of.
        unsafe { self.end() }
    }
}

impl<T: Shareable> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T: Shareable> Unique<T> {
    /// The same handle, of which there may be more from now on.
    #[inline]
    pub(crate) fn shareable(self) -> Shared<T> {
        self.0
    }
}

impl<T: Shareable> Deref for Unique<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Shareable> DerefMut for Unique<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `Shared::get_mut`: this was the only handle from the beginning, and cannot be cloned.
        unsafe { &mut self.0.counted.as_mut().value }
    }
}

impl<T: Shareable + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Counts its drops, and may hold another one.
    #[derive(Debug, Default)]
    struct Link {
        drops: Arc<AtomicUsize>,
        seen: AtomicUsize,
        #[expect(dead_code, reason = "held, not read")]
        next: Option<Shared<Link>>,
    }

    thread_local!(static PIECES: Spare<Piece<Link>> = const { Spare::new() });

    impl Shareable for Link {
        fn pieces() -> &'static LocalKey<Spare<Piece<Self>>> {
            &PIECES
        }
    }

    impl Drop for Link {
        fn drop(&mut self) {
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn link(drops: &Arc<AtomicUsize>) -> Link {
        holding(drops, None)
    }

    fn holding(drops: &Arc<AtomicUsize>, next: Option<Shared<Link>>) -> Link {
        Link { drops: drops.clone(), seen: AtomicUsize::new(0), next }
    }

    #[test]
    fn a_value_is_dropped_with_its_last_handle_and_once() {
        let drops = Arc::default();
        let one = Shared::new(link(&drops));
        let other = one.clone();
        drop(one);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(other);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        drop(Room::<Link>::new());
        drop(Room::new().fill(link(&drops)));
        assert_eq!(drops.load(Ordering::Relaxed), 2);
        // A value that holds another one, whose memory is given back while its own is.
        drop(Shared::new(holding(&drops, Some(Shared::new(link(&drops))))));
        assert_eq!(drops.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn the_memory_of_a_value_is_that_of_the_next() {
        let drops = Arc::default();
        let first = Shared::new(link(&drops));
        let place = first.counted;
        drop(first);
        assert_eq!(Shared::new(link(&drops)).counted, place);
    }

    #[test]
    fn only_the_single_handle_can_change_the_value() {
        let mut one = Shared::new(Link::default());
        *Shared::get_mut(&mut one).unwrap().seen.get_mut() += 1;
        let other = one.clone();
        assert!(!Shared::is_unique(&one));
        assert!(Shared::get_mut(&mut one).is_none());
        drop(other);
        assert_eq!(*Shared::get_mut(&mut one).unwrap().seen.get_mut(), 1);
        let mut unique = Room::new().fill(Link::default());
        *unique.seen.get_mut() += 2;
        assert_eq!(unique.shareable().seen.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_word_is_a_handle_like_others_or_the_number_that_it_was_made_of() {
        const LARGEST: u64 = u64::MAX >> (u64::BITS - SharedOrNumber::<Link>::BITS);
        assert_eq!(size_of::<Option<SharedOrNumber<Link>>>(), size_of::<usize>());
        for number in [0, 1, 2, LARGEST - 1, LARGEST] {
            let word = SharedOrNumber::<Link>::number(number);
            let other = word.clone();
            assert!(matches!(word.get(), Either::Number(same) if same == number));
            assert!(matches!(other.take(), Either::Number(same) if same == number));
        }
        let drops = Arc::default();
        let handle = Shared::new(link(&drops));
        let word = SharedOrNumber::shared(handle.clone());
        let other = word.clone();
        assert!(matches!(word.get(), Either::Shared(same) if same.counted == handle.counted));
        assert_eq!(handle.counted().handles.load(Ordering::Relaxed), 3);
        drop(handle);
        drop(word);
        let Either::Shared(mut last) = other.take() else { panic!("a handle") };
        assert!(Shared::get_mut(&mut last).is_some());
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(SharedOrNumber::shared(last));
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    /// Whichever thread has the last handle drops the value, and sees what the others did before.
    #[test]
    fn handles_on_several_threads_drop_the_value_once_and_lose_nothing() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
        let drops = Arc::default();
        for _ in 0..ROUNDS {
            let shared = Shared::new(link(&drops));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let own = shared.clone();
                    scope.spawn(move || {
                        for _ in 0..10 {
                            own.clone().seen.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                for _ in 0..10 {
                    shared.clone().seen.fetch_add(1, Ordering::Relaxed);
                }
                drop(shared);
            });
        }
        assert_eq!(drops.load(Ordering::Relaxed), ROUNDS);
    }
}
