//! Element types and shapes.
//!
//! [`DType`] is the element type at run time; [`Element`] is the trait of the corresponding Rust types. A
//! [`Shape`] stores the axis sizes inline, so creating one allocates nothing.

mod dtype;

use std::fmt;
use std::ops::Index;

pub use self::dtype::{DType, Element, RawElement, Scalar};

/// The maximum number of axes.
pub const MAX_RANK: usize = 8;

/// The axis sizes of a tensor, outermost first. A scalar has no axes.
///
/// ```
/// use highwater_kernels::shape::Shape;
/// let shape = Shape::new(&[64, 784])?;
/// assert_eq!((shape.rank(), shape[1], shape.to_string()), (2, 784, "[64, 784]".to_string()));
/// # Ok::<(), highwater_kernels::error::KernelError>(())
/// ```
#[derive(Clone, Copy, Default, Eq, Hash)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "the sizes that equality skips are 0")]
pub struct Shape {
    /// The first `rank` entries are used. The rest stay 0, so that the derived hash is correct.
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl PartialEq for Shape {
    /// Compares the axes one by one, which is faster for few axes than a comparison of the whole array.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank && self.dims().iter().zip(other.dims()).all(|(size, other)| size == other)
    }
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Self = Self { dims: [0; MAX_RANK], rank: 0 };

    /// Returns the shape with these sizes; `None` above [`MAX_RANK`] axes.
    #[inline]
    pub(crate) fn from_dims(dims: &[usize]) -> Option<Self> {
        let mut shape = Self { dims: [0; MAX_RANK], rank: dims.len() };
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(shape)
    }

    /// Returns the axis sizes.
    #[must_use]
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Returns the number of axes.
    #[must_use]
    #[inline]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns whether both are the same shape of at most two axes.
    #[inline(always)]
    pub(crate) const fn is_same_matrix(&self, other: &Self) -> bool {
        // Sizes past the rank are 0.
        self.rank <= 2
            && self.rank == other.rank
            && self.dims[0] == other.dims[0]
            && self.dims[1] == other.dims[1]
    }

    /// Returns whether this is the shape of a vector of this length.
    #[inline(always)]
    pub(crate) const fn is_row_of(&self, elements: usize) -> bool {
        self.rank == 1 && self.dims[0] == elements
    }

    /// Returns the rows and columns of a matrix.
    #[inline(always)]
    #[must_use]
    pub const fn as_matrix(&self) -> Option<[usize; 2]> {
        if self.rank == 2 { Some([self.dims[0], self.dims[1]]) } else { None }
    }

    /// Returns the number of elements; `None` if it exceeds `isize::MAX`.
    #[must_use]
    #[inline]
    pub fn checked_elements(&self) -> Option<usize> {
        // Fast path for vectors and matrices, the most common shapes.
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
            // A size of 0 makes a shape empty, even if the other sizes overflow.
            if dim == 0 {
                return Some(0);
            }
            let (product, overflow) = count.overflowing_mul(dim);
            count = product;
            overflows |= overflow;
        }
        (!overflows && count <= isize::MAX as usize).then_some(count)
    }

    /// Returns the number of elements. Saturates on overflow, which shapes of tensors exclude.
    #[must_use]
    #[inline]
    pub fn elements(&self) -> usize {
        self.checked_elements().unwrap_or(usize::MAX)
    }

    /// Returns the shape with another size of one axis.
    #[must_use]
    #[inline]
    pub fn with_dim(mut self, axis: usize, size: usize) -> Self {
        if axis < self.rank {
            self.dims[axis] = size;
        }
        self
    }

    /// Returns the shape of a matrix.
    #[inline(always)]
    #[must_use]
    pub const fn matrix(rows: usize, columns: usize) -> Self {
        Self { dims: [rows, columns, 0, 0, 0, 0, 0, 0], rank: 2 }
    }

    /// Returns the shape of a vector.
    #[must_use]
    #[inline]
    pub const fn row(elements: usize) -> Self {
        let mut shape = Self { dims: [0; MAX_RANK], rank: 1 };
        shape.dims[0] = elements;
        shape
    }

    /// Returns the shape with the first two sizes exchanged; unchanged below two axes.
    #[inline]
    pub(crate) const fn transposed(mut self) -> Self {
        if self.rank >= 2 {
            self.dims.swap(0, 1);
        }
        self
    }

    /// Returns the shape without one axis.
    #[must_use]
    #[inline]
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

    #[inline]
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
