//! Fallible operations on shapes: construction, negative axes and broadcasting.
//!
//! They are separate from [`Shape`] because they return a [`KernelError`], which contains shapes.

use crate::error::{KernelError, Result, ShapeRule};
use crate::shape::Shape;

impl Shape {
    /// Returns the shape with these axis sizes.
    ///
    /// # Errors
    /// [`KernelError::RankTooLarge`] above [`MAX_RANK`](crate::shape::MAX_RANK) axes.
    #[inline]
    pub fn new(dims: &[usize]) -> Result<Self> {
        Self::from_dims(dims).ok_or(KernelError::RankTooLarge { op: "", rank: dims.len() })
    }

    /// Converts `axis` to an index from the front. Negative axes count from the last one, which is -1.
    ///
    /// # Errors
    /// [`KernelError::AxisOutOfRange`] if the axis does not exist.
    #[inline]
    pub fn axis(&self, op: &'static str, axis: isize) -> Result<usize> {
        let rank = self.rank() as isize;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            Ok(index as usize)
        } else {
            Err(KernelError::AxisOutOfRange { op, axis, shape: *self })
        }
    }

    /// Returns the shape to which both shapes broadcast. As in NumPy, shapes align at the last axis; sizes
    /// are equal or one of them is 1.
    ///
    /// # Errors
    /// [`KernelError::ShapeMismatch`] if the shapes do not broadcast.
    pub fn broadcast(op: &'static str, lhs: &Self, rhs: &Self) -> Result<Self> {
        let mut out = if lhs.rank() >= rhs.rank() { *lhs } else { *rhs };
        for back in 1..=lhs.rank().min(rhs.rank()) {
            let size = match (lhs[lhs.rank() - back], rhs[rhs.rank() - back]) {
                (l, r) if l == r => l,
                (1, other) | (other, 1) => other,
                _ => {
                    return Err(KernelError::ShapeMismatch {
                        op,
                        lhs: *lhs,
                        rhs: *rhs,
                        rule: &ShapeRule::Broadcast,
                    });
                }
            };
            out = out.with_dim(out.rank() - back, size);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::MAX_RANK;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn shapes_broadcast_from_the_last_axis() {
        let cases: &[(&[usize], &[usize], &[usize])] = &[
            (&[2, 3], &[3], &[2, 3]),
            (&[2, 1], &[1, 5], &[2, 5]),
            (&[], &[4], &[4]),
            (&[0, 3], &[1], &[0, 3]),
            (&[1], &[0], &[0]),
        ];
        for &(lhs, rhs, out) in cases {
            assert_eq!(Shape::broadcast("add", &shape(lhs), &shape(rhs)).unwrap(), shape(out));
            assert_eq!(Shape::broadcast("add", &shape(rhs), &shape(lhs)).unwrap(), shape(out));
        }
    }

    #[test]
    fn shapes_that_do_not_broadcast_are_named_with_the_op() {
        let error = Shape::broadcast("add", &shape(&[2, 3]), &shape(&[2])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "add: shapes [2, 3] and [2] do not match: axis -1 has sizes 3 and 2, which must be equal, or one of them 1"
        );
    }

    #[test]
    fn overflowing_element_counts_are_none() {
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
        assert!(matches!(Shape::new(&[1; MAX_RANK + 1]), Err(KernelError::RankTooLarge { rank: 9, .. })));
    }
}
