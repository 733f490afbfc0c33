//! A matrix product as libraries for devices take it.

use crate::kernels::ElementType;

/// out = lhs · rhs for `batch` matrices. Half-precision products are summed in 32 bits and rounded at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The element type of the factors: a float.
    pub element: ElementType,
    /// The element type of the product: that of the factors, or f32 for half-precision factors.
    pub out_element: ElementType,
    /// Rows of the left factor and of the product.
    pub rows: i32,
    /// Columns of the right factor and of the product.
    pub columns: i32,
    /// Columns of the left factor and rows of the right one.
    pub depth: i32,
    /// The number of products.
    pub batch: i32,
    /// The left factor.
    pub lhs: Factor,
    /// The right factor.
    pub rhs: Factor,
    /// The address of the first product. All products are contiguous.
    pub out: u64,
    /// Whether to add to the existing values.
    pub accumulate: bool,
    /// The address and size of the library's workspace; the address is a multiple of 256.
    pub workspace: (u64, u64),
}

/// A factor in a layout that libraries support: its rows or its columns are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// The address of the first element.
    pub address: u64,
    /// Elements from one row to the next, or from one column to the next.
    pub leading: i32,
    /// Whether the columns are contiguous.
    pub by_columns: bool,
    /// Elements from one matrix of the batch to the next; 0 if all use one matrix.
    pub step: i64,
}

impl Factor {
    /// Creates a factor from rows and columns, with strides in elements. Returns `None` if neither rows nor columns are
    /// contiguous, or a number is too large for libraries.
    ///
    /// ```
    /// use bfc_cuda::Factor;
    /// let by_rows = Factor::new(4096, [2, 3], [3, 1], 6).unwrap();
    /// assert_eq!((by_rows.leading, by_rows.by_columns), (3, false));
    /// let transposed = Factor::new(4096, [3, 2], [1, 3], 6).unwrap();
    /// assert_eq!((transposed.leading, transposed.by_columns), (3, true));
    /// assert_eq!(Factor::new(4096, [2, 3], [6, 2], 12), None);
    /// ```
    #[must_use]
    pub fn new(address: u64, sizes: [usize; 2], strides: [usize; 2], step: usize) -> Option<Self> {
        let [rows, columns] = sizes;
        let along = |inner: usize, outer: usize| {
            // The stride of an axis of one element is arbitrary.
            let lies_along = sizes[inner] <= 1 || strides[inner] == 1;
            let least = sizes[inner].max(1);
            let leading = if sizes[outer] <= 1 { least } else { strides[outer] };
            (lies_along && leading >= least).then_some(leading)
        };
        i32::try_from(rows.max(columns)).ok()?;
        let (leading, by_columns) = match (along(1, 0), along(0, 1)) {
            (Some(leading), _) => (leading, false),
            (None, Some(leading)) => (leading, true),
            (None, None) => return None,
        };
        let (leading, step) = (i32::try_from(leading).ok()?, i64::try_from(step).ok()?);
        Some(Self { address, leading, by_columns, step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lies(sizes: [usize; 2], strides: [usize; 2]) -> Option<(i32, bool)> {
        Factor::new(0, sizes, strides, 0).map(|factor| (factor.leading, factor.by_columns))
    }

    #[test]
    fn a_part_of_a_larger_matrix_is_taken_as_it_lies() {
        assert_eq!(lies([4, 5], [100, 1]), Some((100, false)));
        assert_eq!(lies([4, 5], [1, 100]), Some((100, true)));
    }

    #[test]
    fn rows_that_overlap_or_are_one_repeated_are_not_taken() {
        assert_eq!(lies([4, 5], [0, 1]), None);
        assert_eq!(lies([4, 5], [3, 1]), None);
        assert_eq!(lies([4, 5], [1, 0]), None);
    }

    #[test]
    fn single_rows_and_columns_are_contiguous_with_any_stride() {
        assert_eq!(lies([1, 5], [0, 1]), Some((5, false)));
        assert_eq!(lies([5, 1], [1, 7]), Some((1, false)));
        assert_eq!(lies([5, 1], [9, 7]), Some((9, false)));
        assert_eq!(lies([1, 5], [3, 9]), Some((9, true)));
        assert_eq!(lies([1, 1], [3, 9]), Some((1, false)));
    }

    #[test]
    fn sizes_that_libraries_cannot_count_are_not_taken() {
        let large = i32::MAX as usize + 1;
        assert_eq!(lies([large, 2], [2, 1]), None);
        assert_eq!(lies([2, 2], [large, 1]), None);
        assert_eq!(Factor::new(0, [2, 2], [2, 1], usize::MAX), None);
    }
}
