//! Values with counted handles, put together where they stay.
//!
//! What is built first and moved afterwards is moved in larger pieces than it was just written in, for which processors wait until
//! all is written. Of what every op makes that is a good part of the time of a small step.

use std::mem::MaybeUninit;

use triomphe::UniqueArc;

/// The value in a place that was made for it by [`UniqueArc::new_uninit`].
#[inline(always)]
pub(crate) fn fill<T>(mut place: UniqueArc<MaybeUninit<T>>, value: T) -> UniqueArc<T> {
    place.write(value);
    // SAFETY: it was written in the line before.
    unsafe { UniqueArc::assume_init(place) }
}
