//! Shapes: the sizes of a tensor's axes, held inline so that making one costs no heap allocation.

use std::fmt;
use std::ops::Index;

use crate::error::{Error, Result};

/// The most axes a tensor can have.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's axes, outermost first. A scalar has none.
///
/// ```
/// use highwater_tensor::{IntoShape, Shape};
/// let shape: Shape = [64, 784].into_shape()?;
/// assert_eq!((shape.rank(), shape[1], shape.to_string()), (2, 784, "[64, 784]".to_string()));
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Default, Eq, Hash)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "what equality does not look at is 0")]
pub struct Shape {
    /// The first `rank` entries count; the rest stay 0, so that hashes may be derived.
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl PartialEq for Shape {
    /// Most shapes have few axes: to compare these is quicker than the call that compares all there is room for.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank && self.dims().iter().zip(other.dims()).all(|(ours, theirs)| ours == theirs)
    }
}

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Self = Self { dims: [0; MAX_RANK], rank: 0 };

    /// A shape from its axes' sizes.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`] past [`MAX_RANK`] axes.
    #[inline]
    pub fn new(dims: &[usize]) -> Result<Self> {
        if dims.len() > MAX_RANK {
            return Err(Error::RankTooLarge { op: "", rank: dims.len() });
        }
        let mut shape = Self { dims: [0; MAX_RANK], rank: dims.len() };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// The axes' sizes.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The number of axes.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Rows and columns of a matrix.
    #[inline(always)]
    pub(crate) const fn as_matrix(&self) -> Option<[usize; 2]> {
        if self.rank == 2 { Some([self.dims[0], self.dims[1]]) } else { None }
    }

    /// The number of elements, or `None` if it cannot be counted in an `isize`.
    #[must_use]
    pub fn checked_elements(&self) -> Option<usize> {
        // Vectors and matrices, by far the most common, take no loop.
        match *self.dims() {
            [size] if size <= isize::MAX as usize => return Some(size),
            [rows, columns] => {
                let product = rows.checked_mul(columns);
                return product.filter(|&count| count <= isize::MAX as usize);
            }
            _ => {}
        }
        let (mut count, mut overflows) = (1usize, false);
        for &dim in self.dims() {
            // A size of 0 makes any shape empty, also one whose other sizes overflow.
            if dim == 0 {
                return Some(0);
            }
            let (product, overflow) = count.overflowing_mul(dim);
            count = product;
            overflows |= overflow;
        }
        (!overflows && count <= isize::MAX as usize).then_some(count)
    }

    /// The number of elements of a shape known to be countable, as every tensor's is.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.checked_elements().unwrap_or(usize::MAX)
    }

    /// `axis` as an index from the front; negative axes count from the back, -1 being the last.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`] if there is no such axis.
    pub fn axis(&self, op: &'static str, axis: isize) -> Result<usize> {
        let rank = self.rank as isize;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            Ok(index as usize)
        } else {
            Err(Error::AxisOutOfRange { op, axis, shape: *self })
        }
    }

    /// The same shape with the size of one axis changed.
    #[must_use]
    pub fn with_dim(mut self, axis: usize, size: usize) -> Self {
        if axis < self.rank {
            self.dims[axis] = size;
        }
        self
    }

    /// That of a matrix.
    #[inline(always)]
    pub(crate) const fn matrix(rows: usize, columns: usize) -> Self {
        Self { dims: [rows, columns, 0, 0, 0, 0, 0, 0], rank: 2 }
    }

    /// That of a row of so many elements.
    pub(crate) const fn row(elements: usize) -> Self {
        let mut shape = Self { dims: [0; MAX_RANK], rank: 1 };
        shape.dims[0] = elements;
        shape
    }

    /// The same sizes with the first two exchanged, where there are so many.
    #[inline]
    pub(crate) const fn transposed(mut self) -> Self {
        if self.rank >= 2 {
            self.dims.swap(0, 1);
        }
        self
    }

    /// The same shape without one axis.
    #[must_use]
    pub fn without(self, axis: usize) -> Self {
        if axis >= self.rank {
            return self;
        }
        let mut shape = Self { dims: [0; MAX_RANK], rank: self.rank - 1 };
        shape.dims[..axis].copy_from_slice(&self.dims[..axis]);
        shape.dims[axis..self.rank - 1].copy_from_slice(&self.dims[axis + 1..self.rank]);
        shape
    }

    /// The shape that both broadcast to, by NumPy's rule: aligned at the last axis, sizes equal or one of them 1.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if there is none.
    pub fn broadcast(op: &'static str, lhs: &Self, rhs: &Self) -> Result<Self> {
        let mut out = if lhs.rank >= rhs.rank { *lhs } else { *rhs };
        for back in 1..=lhs.rank.min(rhs.rank) {
            let (l, r) = (lhs.dims[lhs.rank - back], rhs.dims[rhs.rank - back]);
            let axis = out.rank - back;
            out.dims[axis] = match (l, r) {
                (l, r) if l == r => l,
                (1, other) | (other, 1) => other,
                _ => return Err(Error::ShapeMismatch { op, lhs: *lhs, rhs: *rhs }),
            };
        }
        Ok(out)
    }
}

impl Index<usize> for Shape {
    type Output = usize;

    fn index(&self, axis: usize) -> &usize {
        &self.dims()[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.dims()).finish()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What may be given where a shape is asked for: arrays, slices and vectors of sizes, a lone size, `()` for a scalar.
pub trait IntoShape {
    /// The shape.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`] past [`MAX_RANK`] axes.
    fn into_shape(self) -> Result<Shape>;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(self)
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(*self)
    }
}

impl IntoShape for () {
    fn into_shape(self) -> Result<Shape> {
        Ok(Shape::SCALAR)
    }
}

impl IntoShape for usize {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&[self])
    }
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}

impl IntoShape for &[usize] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}

impl IntoShape for Vec<usize> {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn shapes_broadcast_from_the_last_axis() {
        let cases: [(&[usize], &[usize], &[usize]); 5] = [
            (&[2, 3], &[3], &[2, 3]),
            (&[2, 1], &[1, 5], &[2, 5]),
            (&[], &[4], &[4]),
            (&[0, 3], &[1], &[0, 3]),
            (&[1], &[0], &[0]),
        ];
        for (lhs, rhs, out) in cases {
            assert_eq!(Shape::broadcast("add", &shape(lhs), &shape(rhs)).unwrap(), shape(out));
            assert_eq!(Shape::broadcast("add", &shape(rhs), &shape(lhs)).unwrap(), shape(out));
        }
    }

    #[test]
    fn shapes_that_do_not_broadcast_are_named_with_the_op() {
        let error = Shape::broadcast("add", &shape(&[2, 3]), &shape(&[2])).unwrap_err();
        assert_eq!(error.to_string(), "add: shapes [2, 3] and [2] do not match");
    }

    #[test]
    fn element_counts_that_overflow_are_no_number() {
        assert_eq!(shape(&[usize::MAX, 2]).checked_elements(), None);
        assert_eq!(shape(&[usize::MAX, 0]).checked_elements(), Some(0));
        assert_eq!(Shape::SCALAR.checked_elements(), Some(1));
    }

    #[test]
    fn negative_axes_count_from_the_back() {
        let matrix = shape(&[2, 3]);
        assert_eq!(matrix.axis("sum", -1).unwrap(), 1);
        assert!(matrix.axis("sum", 2).is_err());
        assert!(matrix.axis("sum", -3).is_err());
        assert!(Shape::SCALAR.axis("sum", 0).is_err());
    }

    #[test]
    fn more_axes_than_the_maximum_are_an_error() {
        assert!(matches!(Shape::new(&[1; MAX_RANK + 1]), Err(Error::RankTooLarge { rank: 9, .. })));
    }
}
