//! Element types and shapes: what a tensor is made of, without its memory.
//!
//! [`DType`] is the element type at run time; [`Element`] are the Rust types that stand for it. A [`Shape`] holds the sizes of
//! the axes inline, so that making one costs no heap allocation.

mod dtype;

use std::fmt;
use std::ops::Index;

pub use self::dtype::{DType, Element, RawElement, Scalar};

/// The most axes a tensor can have.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's axes, outermost first. A scalar has none.
///
/// ```
/// use highwater::{IntoShape, Shape};
/// let shape: Shape = [64, 784].into_shape()?;
/// assert_eq!((shape.rank(), shape[1], shape.to_string()), (2, 784, "[64, 784]".to_string()));
/// # Ok::<(), highwater::Error>(())
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

    /// Returns the shape with these sizes; `None` past [`MAX_RANK`] axes.
    #[inline]
    pub(crate) fn from_dims(dims: &[usize]) -> Option<Self> {
        let mut shape = Self { dims: [0; MAX_RANK], rank: dims.len() };
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(shape)
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

    /// Whether both are the same shape of at most two axes.
    #[inline(always)]
    pub(crate) const fn is_same_matrix(&self, other: &Self) -> bool {
        // Sizes past the rank are 0.
        self.rank <= 2
            && self.rank == other.rank
            && self.dims[0] == other.dims[0]
            && self.dims[1] == other.dims[1]
    }

    /// Whether this is the shape of a vector of so many elements.
    #[inline(always)]
    pub(crate) const fn is_row_of(&self, elements: usize) -> bool {
        self.rank == 1 && self.dims[0] == elements
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
