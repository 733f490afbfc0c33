//! Shapes as arguments: arrays, slices, vectors and tuples of sizes.

use crate::error::{Error, Result};
use crate::shape::{MAX_RANK, Shape};

/// A shape argument: an array, slice, vector or tuple of sizes, a single size, or `()` for a scalar.
///
/// Sizes are of type `usize`, `isize`, `i32` or `i64`. A tuple can mix them: `(batch, -1)`. Only
/// [`Tensor::reshape`](crate::Tensor::reshape) infers a size of -1.
///
/// A literal without another type is an `i32`. Write shifts beyond its range with a type: `[1usize << 40]`.
pub trait IntoShape: Sized {
    /// Converts the argument to a shape.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`] above [`MAX_RANK`](crate::MAX_RANK) axes, [`Error::BadArgument`] for a negative size.
    fn into_shape(self) -> Result<Shape>;

    /// Converts the argument to the shape of a tensor with `elements` elements. Infers a size of -1 from that number. If
    /// no size is -1, the shape may have another number of elements.
    ///
    /// # Errors
    /// See [`into_shape`](Self::into_shape); [`Error::BadArgument`] also for several sizes of -1, and if the other sizes do
    /// not divide the number of elements.
    fn into_shape_of(self, elements: usize) -> Result<Shape> {
        let _ = elements;
        self.into_shape()
    }
}

/// The size of an axis as an argument; -1 stands for a size to infer.
pub trait AxisSize: Copy {
    /// Returns the size, or the negative number in its place.
    ///
    /// # Errors
    /// The negative number.
    fn size(self) -> Result<usize, i64>;
}

impl AxisSize for usize {
    #[inline(always)]
    fn size(self) -> Result<usize, i64> {
        Ok(self)
    }
}

macro_rules! signed_axis_size {
    ($($number:ty),*) => {$(
        impl AxisSize for $number {
            #[inline]
            fn size(self) -> Result<usize, i64> {
                usize::try_from(self).map_err(|_| self as i64)
            }
        }
    )*};
}

signed_axis_size!(i32, i64, isize);

/// Converts sizes to a shape. Infers a size of -1 if the number of elements is given.
#[inline]
fn shape_of(
    sizes: impl ExactSizeIterator<Item = Result<usize, i64>> + Clone,
    elements: Option<usize>,
) -> Result<Shape> {
    let (mut dims, rank, mut inferred) = ([0; MAX_RANK], sizes.len(), None);
    let Some(dims) = dims.get_mut(..rank) else { return Err(Error::RankTooLarge { op: "", rank }) };
    for (axis, (dim, size)) in dims.iter_mut().zip(sizes.clone()).enumerate() {
        *dim = match size {
            Ok(size) => size,
            Err(-1) if elements.is_some() && inferred.is_none() => {
                inferred = Some(axis);
                1
            }
            Err(_) => return Err(bad_sizes(sizes, elements)),
        };
    }
    let shape = Shape::new(dims)?;
    let (Some(axis), Some(elements)) = (inferred, elements) else { return Ok(shape) };
    match shape.checked_elements().and_then(|others| elements.checked_rem(others).map(|rest| (others, rest)))
    {
        Some((others, 0)) => Ok(shape.with_dim(axis, elements / others)),
        _ => Err(not_divisible(sizes, elements)),
    }
}

#[cold]
fn bad_sizes(sizes: impl Iterator<Item = Result<usize, i64>>, elements: Option<usize>) -> Error {
    let expected = match elements {
        Some(_) => "sizes of at least 0, and at most one of -1",
        None => "sizes of at least 0, as only reshape infers a size of -1",
    };
    Error::BadArgument { op: "", argument: "shape", expected, got: listed(sizes) }
}

#[cold]
fn not_divisible(sizes: impl Iterator<Item = Result<usize, i64>>, elements: usize) -> Error {
    let (expected, got) = (
        "sizes whose product divides the number of elements",
        format!("{} for {elements} elements", listed(sizes)),
    );
    Error::BadArgument { op: "", argument: "shape", expected, got }
}

/// Formats sizes as the caller wrote them.
fn listed(sizes: impl Iterator<Item = Result<usize, i64>>) -> String {
    let sizes: Vec<String> = sizes
        .map(|size| size.map_or_else(|negative| negative.to_string(), |size| size.to_string()))
        .collect();
    format!("[{}]", sizes.join(", "))
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

/// Implements the conversion for a type; `$sizes` is an iterator over its sizes.
macro_rules! shape_from {
    ([$($generics:tt)*] $type:ty, $argument:pat => $sizes:expr) => {
        impl<$($generics)*> IntoShape for $type {
            #[inline]
            fn into_shape(self) -> Result<Shape> {
                let $argument = self;
                shape_of($sizes, None)
            }

            #[inline]
            fn into_shape_of(self, elements: usize) -> Result<Shape> {
                let $argument = self;
                shape_of($sizes, Some(elements))
            }
        }
    };
}

shape_from!([] usize, size => [size.size()].into_iter());
shape_from!([] isize, size => [size.size()].into_iter());
shape_from!([] i32, size => [size.size()].into_iter());
shape_from!([] i64, size => [size.size()].into_iter());
shape_from!([S: AxisSize, const N: usize] [S; N], sizes => sizes.iter().map(|size| size.size()));
shape_from!([S: AxisSize, const N: usize] &[S; N], sizes => sizes.iter().map(|size| size.size()));
shape_from!([S: AxisSize] &[S], sizes => sizes.iter().map(|size| size.size()));
shape_from!([S: AxisSize] Vec<S>, sizes => sizes.iter().map(|size| size.size()));
shape_from!([S: AxisSize] &Vec<S>, sizes => sizes.iter().map(|size| size.size()));
shape_from!([A: AxisSize] (A,), (a,) => [a.size()].into_iter());
shape_from!([A: AxisSize, B: AxisSize] (A, B), (a, b) => [a.size(), b.size()].into_iter());
shape_from!([A: AxisSize, B: AxisSize, C: AxisSize] (A, B, C), (a, b, c) => [a.size(), b.size(), c.size()].into_iter());
shape_from!(
    [A: AxisSize, B: AxisSize, C: AxisSize, D: AxisSize] (A, B, C, D),
    (a, b, c, d) => [a.size(), b.size(), c.size(), d.size()].into_iter()
);
shape_from!(
    [A: AxisSize, B: AxisSize, C: AxisSize, D: AxisSize, E: AxisSize] (A, B, C, D, E),
    (a, b, c, d, e) => [a.size(), b.size(), c.size(), d.size(), e.size()].into_iter()
);

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn sizes_of_all_number_types_make_the_same_shape() {
        let expected = shape(&[2, 3]);
        assert_eq!([2usize, 3].into_shape().unwrap(), expected);
        assert_eq!([2i64, 3].into_shape().unwrap(), expected);
        assert_eq!((&[2isize, 3][..]).into_shape().unwrap(), expected);
        assert_eq!(vec![2, 3].into_shape().unwrap(), expected);
        assert_eq!((2usize, 3).into_shape().unwrap(), expected);
        assert_eq!((1, 2, 3, 4i64, 5usize).into_shape().unwrap(), shape(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn a_size_of_minus_one_follows_from_the_elements() {
        assert_eq!((-1, 4).into_shape_of(12).unwrap(), shape(&[3, 4]));
        assert_eq!([2, -1, 3].into_shape_of(12).unwrap(), shape(&[2, 2, 3]));
        assert_eq!((-1).into_shape_of(12).unwrap(), shape(&[12]));
        assert_eq!((-1, 4).into_shape_of(0).unwrap(), shape(&[0, 4]));
        let message = |result: Result<Shape>| result.unwrap_err().in_op("reshape").to_string();
        assert_eq!(
            message((-1, 5).into_shape_of(12)),
            "reshape: shape must be sizes whose product divides the number of elements, got [-1, 5] for 12 elements"
        );
        assert_eq!(
            message([-1, -1].into_shape_of(12)),
            "reshape: shape must be sizes of at least 0, and at most one of -1, got [-1, -1]"
        );
        assert!((-1, 0).into_shape_of(0).is_err(), "any size would fit");
        assert!((-1, usize::MAX, 2).into_shape_of(12).is_err());
        assert!((-2, 6).into_shape_of(12).is_err());
        assert_eq!(
            message([-1, 6].into_shape()),
            "reshape: shape must be sizes of at least 0, as only reshape infers a size of -1, got [-1, 6]"
        );
    }
}
