//! Indexing by integers and ranges, one per axis: `x.at((1..5, .., -1))`.
//!
//! The result is a view; the op allocates and saves nothing. ∂L/∂x is ∂L/∂y at the selected positions, 0 elsewhere.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "at";

/// The selection along one axis. Made from an index or a range of `i32`, `isize` or `usize`; negative numbers count
/// from the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisIndex(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A single element. The axis vanishes.
    Index(isize),
    /// Every `step`-th element from `start` to before `end`, or to the last element.
    Range { start: isize, end: Option<isize>, step: usize },
}

/// An index, a range, or a range with a step, for one axis.
pub trait IntoAxisIndex {
    /// Converts the value to a part.
    fn into_axis_index(self) -> AxisIndex;

    /// Selects every `step`-th element of a range, starting with the first.
    ///
    /// ```
    /// use highwater::{Device, IntoAxisIndex, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 10)?;
    /// assert_eq!(x.at((1..8).every(3))?.to_vec::<i64>()?, [1, 4, 7]);
    /// assert_eq!(x.at((..).every(4))?.to_vec::<i64>()?, [0, 4, 8]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    fn every(self, step: usize) -> AxisIndex
    where
        Self: Sized,
    {
        match self.into_axis_index() {
            AxisIndex(Kind::Range { start, end, .. }) => AxisIndex(Kind::Range { start, end, step }),
            index => index,
        }
    }

    /// Sets an exclusive end, possibly counted from the back: `(1..).before(-1)` omits the first and the last element.
    /// `1..-1` has the same meaning, but Clippy reports such literals as empty ranges.
    ///
    /// ```
    /// use highwater::{Device, IntoAxisIndex, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 5)?;
    /// assert_eq!(x.at((1..).before(-1))?.to_vec::<i64>()?, [1, 2, 3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    fn before(self, end: isize) -> AxisIndex
    where
        Self: Sized,
    {
        match self.into_axis_index() {
            AxisIndex(Kind::Range { start, step, .. }) => {
                AxisIndex(Kind::Range { start, end: Some(end), step })
            }
            index => index,
        }
    }
}

/// An argument of [`Tensor::at`]: a part for the first axis, or a tuple, array or slice of parts for the first axes.
pub trait IntoAxisIndices {
    /// Returns the parts, first axis first.
    fn into_axis_indices(self) -> Vec<AxisIndex>;
}

impl IntoAxisIndex for AxisIndex {
    fn into_axis_index(self) -> AxisIndex {
        self
    }
}

impl IntoAxisIndex for RangeFull {
    fn into_axis_index(self) -> AxisIndex {
        AxisIndex(Kind::Range { start: 0, end: None, step: 1 })
    }
}

/// Returns the part from `start` to before `end`.
const fn range(start: isize, end: isize) -> AxisIndex {
    AxisIndex(Kind::Range { start, end: Some(end), step: 1 })
}

/// Returns the exclusive end after the element `last`. -1 is the last element of the axis, so it has no successor.
const fn end_after(last: isize) -> Option<isize> {
    if last == -1 { None } else { Some(last.saturating_add(1)) }
}

macro_rules! parts_from {
    ($($number:ty),*) => {$(
        impl IntoAxisIndex for $number {
            fn into_axis_index(self) -> AxisIndex {
                AxisIndex(Kind::Index(to_isize(self)))
            }
        }

        impl IntoAxisIndex for Range<$number> {
            fn into_axis_index(self) -> AxisIndex {
                range(to_isize(self.start), to_isize(self.end))
            }
        }

        impl IntoAxisIndex for RangeFrom<$number> {
            fn into_axis_index(self) -> AxisIndex {
                AxisIndex(Kind::Range { start: to_isize(self.start), end: None, step: 1 })
            }
        }

        impl IntoAxisIndex for RangeTo<$number> {
            fn into_axis_index(self) -> AxisIndex {
                range(0, to_isize(self.end))
            }
        }

        impl IntoAxisIndex for RangeInclusive<$number> {
            fn into_axis_index(self) -> AxisIndex {
                AxisIndex(Kind::Range { start: to_isize(*self.start()), end: end_after(to_isize(*self.end())), step: 1 })
            }
        }

        impl IntoAxisIndex for RangeToInclusive<$number> {
            fn into_axis_index(self) -> AxisIndex {
                AxisIndex(Kind::Range { start: 0, end: end_after(to_isize(self.end)), step: 1 })
            }
        }
    )*};
}

/// Converts the number to `isize`. Larger numbers saturate, which is out of bounds on every machine.
fn to_isize(number: impl TryInto<isize>) -> isize {
    number.try_into().unwrap_or(isize::MAX)
}

parts_from!(i32, isize, usize);

impl<P: IntoAxisIndex> IntoAxisIndices for P {
    fn into_axis_indices(self) -> Vec<AxisIndex> {
        vec![self.into_axis_index()]
    }
}

impl<P: IntoAxisIndex, const N: usize> IntoAxisIndices for [P; N] {
    fn into_axis_indices(self) -> Vec<AxisIndex> {
        self.into_iter().map(IntoAxisIndex::into_axis_index).collect()
    }
}

impl IntoAxisIndices for &[AxisIndex] {
    fn into_axis_indices(self) -> Vec<AxisIndex> {
        self.to_vec()
    }
}

macro_rules! tuple_of_parts {
    ($($name:ident)*) => {
        impl<$($name: IntoAxisIndex),*> IntoAxisIndices for ($($name,)*) {
            fn into_axis_indices(self) -> Vec<AxisIndex> {
                #[allow(non_snake_case, reason = "each part is called as its type")]
                let ($($name,)*) = self;
                vec![$($name.into_axis_index()),*]
            }
        }
    };
}

tuple_of_parts!(A);
tuple_of_parts!(A B);
tuple_of_parts!(A B C);
tuple_of_parts!(A B C D);
tuple_of_parts!(A B C D E);
tuple_of_parts!(A B C D E F);
tuple_of_parts!(A B C D E F G);
tuple_of_parts!(A B C D E F G H);

/// Converts an index that may count from the back to one from the front.
fn from_front(op: &'static str, number: isize, size: usize) -> Result<usize> {
    let counted = usize::try_from(number).ok().or_else(|| size.checked_sub(number.unsigned_abs()));
    counted.ok_or(Error::IndexOutOfRange { op, index: number as i64, len: size })
}

/// # Index by integers and ranges
impl Tensor {
    /// Indexes the first axes by integers and ranges, as `x[1:5, :, -1]` in NumPy. Returns a view.
    ///
    /// An integer selects one element and removes its axis. Negative numbers count from the back. [`IntoAxisIndex::every`]
    /// sets a step.
    ///
    /// [`Tensor::flip`] reverses an axis. [`Tensor::index_select`] and [`Tensor::gather`] select by tensors of indices.
    ///
    /// ```
    /// use highwater::{Device, IntoAxisIndex, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 12)?.reshape([3, 4])?;
    /// assert_eq!(x.at(1)?.to_vec::<i64>()?, [4, 5, 6, 7]);
    /// assert_eq!(x.at((.., -1))?.to_vec::<i64>()?, [3, 7, 11]);
    /// assert_eq!(x.at((1.., ..=1))?.to_vec::<i64>()?, [4, 5, 8, 9]);
    /// assert_eq!(x.at((-1, (..).every(2)))?.to_vec::<i64>()?, [8, 10]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for more parts than axes; [`Error::IndexOutOfRange`] for an index out of range, and for a
    /// bound before the front; [`Error::RangeOutOfBounds`] for a range that exceeds its axis or is reversed, and for a
    /// step of 0.
    pub fn at(&self, parts: impl IntoAxisIndices) -> Result<Self> {
        let parts = parts.into_axis_indices();
        if parts.len() > self.rank() {
            let got = format!("{} for shape {}", parts.len(), self.shape());
            return Err(Error::BadArgument {
                op: OP,
                argument: "parts",
                expected: "at most one per axis",
                got,
            });
        }
        // Goes from the last axis to the first, so that vanishing axes do not change the numbers of the others.
        parts.iter().enumerate().rev().try_fold(self.unchanged(), |part, (axis, &AxisIndex(kind))| {
            let size = self.dims()[axis];
            match kind {
                Kind::Range { start: 0, end: None, step: 1 } => Ok(part),
                Kind::Range { start, end, step } => {
                    let end = end.map_or(Ok(size), |end| from_front(OP, end, size))?;
                    part.sliced(OP, axis, from_front(OP, start, size)?..end, step)
                }
                Kind::Index(index) => part.one(OP, axis, index),
            }
        })
    }

    /// Selects one index along an axis, which vanishes, as PyTorch's `select`. Negative numbers count from the back.
    /// Returns a view.
    ///
    /// [`Tensor::at`] selects along several axes; [`Tensor::index_select`] selects by a tensor of indices.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::arange(&Device::cpu()?, 0, 6)?.reshape([2, 3])?;
    /// assert_eq!(x.select(0, 1)?.to_vec::<i64>()?, [3, 4, 5]);
    /// assert_eq!(x.select(1, -1)?.to_vec::<i64>()?, [2, 5]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`] and [`Error::IndexOutOfRange`].
    pub fn select(&self, axis: isize, index: isize) -> Result<Self> {
        const OP: &str = "select";
        self.one(OP, self.shape().axis(OP, axis)?, index)
    }

    /// Selects one index along an axis that the tensor has.
    fn one(&self, op: &'static str, axis: usize, index: isize) -> Result<Self> {
        let size = self.dims()[axis];
        let place = from_front(op, index, size)?;
        if place >= size {
            return Err(Error::IndexOutOfRange { op, index: index as i64, len: size });
        }
        self.sliced(op, axis, place..place + 1, 1)?.squeeze(axis as isize)
    }
}
