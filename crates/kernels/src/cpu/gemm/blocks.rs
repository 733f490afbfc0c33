//! Disjoint rectangular blocks of a row-major matrix, for threads that each write one.

use std::marker::PhantomData;
use std::ops::Range;

/// A rectangular block of a matrix that is borrowed exclusively. Other blocks of the same matrix do not overlap with it.
#[derive(Debug)]
pub(crate) struct Block<'a, T> {
    /// The element at `first`.
    matrix: *mut T,
    /// The row and the column of that element.
    first: [usize; 2],
    /// Elements from one row of the matrix to the next.
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a block is an exclusive borrow of its elements.
unsafe impl<T: Send> Send for Block<'_, T> {}

impl<'a, T> Block<'a, T> {
    /// The block that is a whole matrix with rows of `columns` elements.
    pub(crate) fn new(matrix: &'a mut [T], columns: usize) -> Self {
        let rows = matrix.len().checked_div(columns).unwrap_or(0);
        Self {
            matrix: matrix.as_mut_ptr(),
            first: [0; 2],
            stride: columns,
            rows: 0..rows,
            columns: 0..columns,
            borrow: PhantomData,
        }
    }

    /// A block at the given rows and columns of a larger matrix. `elements` holds only the block, row by row.
    pub(crate) fn at(elements: &'a mut [T], [rows, columns]: [Range<usize>; 2]) -> Self {
        assert!(elements.len() == rows.len() * columns.len());
        Self {
            matrix: elements.as_mut_ptr(),
            stride: columns.len(),
            first: [rows.start, columns.start],
            rows,
            columns,
            borrow: PhantomData,
        }
    }

    /// The rows of the matrix in this block.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The columns of the matrix in this block.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The elements of a row in a range of columns.
    #[inline]
    pub(crate) fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [T] {
        let inside = self.columns.start <= columns.start && columns.end <= self.columns.end;
        assert!(self.rows.contains(&row) && inside && columns.start <= columns.end);
        // SAFETY: the assertion checks that the elements are in the block, which is a part of the matrix.
        let first =
            unsafe { self.matrix.add((row - self.first[0]) * self.stride + columns.start - self.first[1]) };
        // SAFETY: as above, and `self` borrows them exclusively.
        unsafe { std::slice::from_raw_parts_mut(first, columns.len()) }
    }

    /// Loads the elements into the cache, for writes that follow.
    pub(crate) fn prefetch(&mut self, rows: Range<usize>, columns: Range<usize>) {
        rows.for_each(|row| prefetch(self.row(row, columns.clone())));
    }

    /// Splits the block into blocks of at most `rows` × `columns` elements.
    pub(crate) fn split(self, [rows, columns]: [usize; 2]) -> impl Iterator<Item = Self> {
        pieces(&self.rows, rows).flat_map(move |rows| {
            pieces(&self.columns, columns).map(move |columns| Self {
                matrix: self.matrix,
                first: self.first,
                stride: self.stride,
                rows: rows.clone(),
                columns,
                // `self` is consumed, and each iteration selects other elements.
                borrow: PhantomData,
            })
        })
    }
}

/// Splits a range into pieces of `size` elements and a rest.
pub(crate) fn pieces(range: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(size).map(move |start| start..end.min(start + size))
}

/// Loads the cache lines of the elements, for a write that follows. Does nothing on processors without such an instruction.
#[inline]
fn prefetch<T>(elements: &mut [T]) {
    #[cfg(target_arch = "x86_64")]
    for part in elements.chunks(LINE / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: prefetching has no effect but on caches.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(part.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}

/// The bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
