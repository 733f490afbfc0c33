//! Arguments that name axes, and the set of axes of one shape.

use crate::error::{Error, Result};
use crate::shape::{MAX_RANK, Shape};

/// One axis, or an array, slice or vector of axes. Negative axes count from the back.
pub trait Axes {
    /// Returns the axes in the given order.
    fn axes(&self) -> &[isize];
}

impl Axes for isize {
    fn axes(&self) -> &[isize] {
        std::slice::from_ref(self)
    }
}

impl<const N: usize> Axes for [isize; N] {
    fn axes(&self) -> &[isize] {
        self
    }
}

impl Axes for [isize] {
    fn axes(&self) -> &[isize] {
        self
    }
}

impl Axes for Vec<isize> {
    fn axes(&self) -> &[isize] {
        self
    }
}

impl<A: Axes + ?Sized> Axes for &A {
    fn axes(&self) -> &[isize] {
        (**self).axes()
    }
}

/// A set of axes of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSet {
    /// One flag per axis; only the first `rank` flags are used.
    folded: [bool; MAX_RANK],
    rank: usize,
}

impl AxisSet {
    /// Returns the empty set for a shape of this rank.
    pub(super) const fn none(rank: usize) -> Self {
        Self { folded: [false; MAX_RANK], rank }
    }

    /// Returns the set of all axes of a shape of this rank.
    pub(super) const fn all(rank: usize) -> Self {
        Self { folded: [true; MAX_RANK], rank }
    }

    /// Converts axes to a set.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], and [`Error::BadArgument`] for a repeated axis.
    pub(super) fn of(op: &'static str, shape: &Shape, axes: &impl Axes) -> Result<Self> {
        let mut set = Self::none(shape.rank());
        for &axis in axes.axes() {
            let index = shape.axis(op, axis)?;
            if set.folded[index] {
                let got = format!("{:?} for shape {shape}", axes.axes());
                return Err(Error::BadArgument { op, argument: "axes", expected: "different axes", got });
            }
            set.insert(index);
        }
        Ok(set)
    }

    /// Adds an axis of the shape to the set.
    pub(super) const fn insert(&mut self, axis: usize) {
        self.folded[axis] = true;
    }

    /// Returns one flag per axis: whether the set contains it.
    pub(super) fn as_slice(&self) -> &[bool] {
        &self.folded[..self.rank]
    }

    /// Returns the axes of the set in ascending order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.rank).filter(|&axis| self.folded[axis])
    }

    /// Returns the shape with size 1 along the axes of the set.
    pub(super) fn folded_shape(&self, shape: &Shape) -> Shape {
        self.iter().fold(*shape, |shape, axis| shape.with_dim(axis, 1))
    }

    /// Returns the shape without the axes of the set.
    pub(super) fn remaining_shape(&self, shape: &Shape) -> Shape {
        self.iter().rev().fold(*shape, Shape::without)
    }

    /// Returns the number of elements that a reduction folds into one.
    pub(super) fn count(&self, shape: &Shape) -> usize {
        // The product of an empty tensor's other sizes may overflow. Saturating is safe, because there are no elements.
        self.iter().map(|axis| shape[axis]).fold(1, usize::saturating_mul)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_folds_or_drops_its_axes() {
        let shape = Shape::new(&[2, 3, 4]).unwrap();
        let set = AxisSet::of("sum", &shape, &[0, -1]).unwrap();
        assert_eq!(set.as_slice(), [true, false, true]);
        assert_eq!(set.folded_shape(&shape).dims(), [1, 3, 1]);
        assert_eq!(set.remaining_shape(&shape).dims(), [3]);
        assert_eq!(set.count(&shape), 8);
    }

    #[test]
    fn a_repeated_axis_is_an_error() {
        let shape = Shape::new(&[2, 3]).unwrap();
        let error = AxisSet::of("sum", &shape, &[1, -1]).unwrap_err();
        assert_eq!(error.to_string(), "sum: axes must be different axes, got [1, -1] for shape [2, 3]");
        assert!(matches!(
            AxisSet::of("sum", &shape, &2),
            Err(Error::AxisOutOfRange { op: "sum", axis: 2, .. })
        ));
    }
}
