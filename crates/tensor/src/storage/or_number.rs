//! A handle or a number, in one word.
//!
//! With a word more for which of them it is, a tensor would be too large to be handed on in registers: it would be written to
//! memory wherever it goes, and read there before all of it has arrived.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};

use super::shared::{Counted, Shareable, Shared};

/// See the module's text.
#[repr(transparent)]
pub(crate) struct SharedOrNumber<T: Shareable> {
    /// That of a [`Shared`], which is even as what it points to is aligned; or an odd number, twice the one that it stands for.
    word: NonNull<Counted<T>>,
    owns: PhantomData<Shared<T>>,
}

/// What it is.
#[derive(Debug)]
pub(crate) enum Either<H> {
    Shared(H),
    Number(u64),
}

// SAFETY: it is a handle, of which this holds, or a number.
unsafe impl<T: Shareable> Send for SharedOrNumber<T> where Shared<T>: Send {}
// SAFETY: as before.
unsafe impl<T: Shareable> Sync for SharedOrNumber<T> where Shared<T>: Sync {}

impl<T: Shareable> SharedOrNumber<T> {
    /// How many bits a number has.
    pub(crate) const BITS: u32 = 63;

    pub(crate) const fn shared(handle: Shared<T>) -> Self {
        const { assert!(align_of::<Counted<T>>() > 1, "addresses are even") };
        let word = handle.counted;
        // The word has it.
        std::mem::forget(handle);
        Self { word, owns: PhantomData }
    }

    /// A number, less what it has of more bits.
    pub(crate) const fn number(number: u64) -> Self {
        const { assert!(usize::BITS > Self::BITS, "numbers fit into addresses") };
        let odd = NonZeroUsize::MIN.get() | (number as usize) << 1;
        let odd = NonZeroUsize::new(odd).expect("no odd number is 0");
        Self { word: NonNull::without_provenance(odd), owns: PhantomData }
    }

    #[inline(always)]
    fn as_number(&self) -> Option<u64> {
        let word = self.word.addr().get();
        (word % 2 == 1).then_some((word >> 1) as u64)
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Either<&Shared<T>> {
        match self.as_number() {
            Some(number) => Either::Number(number),
            // SAFETY: both are nothing but the same pointer, and this one is that of a handle, which is there as long as the word.
            None => Either::Shared(unsafe { &*ptr::from_ref(self).cast::<Shared<T>>() }),
        }
    }

    #[inline(always)]
    pub(crate) fn take(self) -> Either<Shared<T>> {
        let this = ManuallyDrop::new(self);
        match this.as_number() {
            Some(number) => Either::Number(number),
            None => Either::Shared(Shared { counted: this.word, owns: PhantomData }),
        }
    }
}

impl<T: Shareable> Clone for SharedOrNumber<T> {
    #[inline]
    fn clone(&self) -> Self {
        match self.get() {
            Either::Shared(handle) => Self::shared(handle.clone()),
            Either::Number(number) => Self::number(number),
        }
    }
}

impl<T: Shareable> Drop for SharedOrNumber<T> {
    #[inline]
    fn drop(&mut self) {
        if self.as_number().is_none() {
            drop(Shared { counted: self.word, owns: PhantomData });
        }
    }
}

impl<T: Shareable + fmt::Debug> fmt::Debug for SharedOrNumber<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
