//! Where a micro-kernel reads the rows of the right operand.

use super::COLUMNS;

/// The columns of one part of a row, which may be stored apart from the other part.
pub(crate) const HALF: usize = COLUMNS / 2;

/// The rows of a panel of the right operand.
pub(crate) trait Right<P>: Copy {
    /// One row.
    type Row: Row<P>;

    /// The number of rows.
    fn len(&self) -> usize;

    /// All rows.
    fn rows(self) -> impl Iterator<Item = Self::Row>;
}

/// A row of the right operand.
///
/// Implementations are `inline(always)` and call only functions that the compiler inlines, which `array::map` is not. A call
/// in the loop of a kernel would store and load all sums, because callees may overwrite vector registers.
pub(crate) trait Row<P> {
    /// The `lanes` elements that start at `column`. They lie in one [`HALF`] of the row.
    fn register(&self, column: usize, lanes: usize) -> &[P];
}

/// A packed panel.
impl<'a, P> Right<P> for &'a [[P; COLUMNS]] {
    type Row = &'a [P; COLUMNS];

    fn len(&self) -> usize {
        <[_]>::len(self)
    }

    #[inline(always)]
    fn rows(self) -> impl Iterator<Item = Self::Row> {
        self.iter()
    }
}

impl<P> Row<P> for &[P; COLUMNS] {
    #[inline(always)]
    fn register(&self, column: usize, lanes: usize) -> &[P] {
        &self[column..][..lanes]
    }
}

/// A panel of an operand that is read where it is stored. So it needs no packing, which would take longer than the products
/// of a few rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a, P> {
    pub(crate) data: &'a [P],
    /// The offset of each row.
    pub(crate) rows: &'a [usize],
    /// The offset of each half of a row.
    pub(crate) halves: [usize; 2],
}

impl<P> Stored<'_, P> {
    /// Whether all elements of all rows exist. No row has a larger offset than `last`.
    pub(crate) fn is_inside(&self, last: usize) -> bool {
        last + self.halves[0].max(self.halves[1]) + HALF <= self.data.len()
    }
}

impl<'a, P: Copy> Right<P> for Stored<'a, P> {
    type Row = StoredRow<'a, P>;

    fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline(always)]
    fn rows(self) -> impl Iterator<Item = Self::Row> {
        let Self { data, rows, halves } = self;
        rows.iter().map(move |&row| StoredRow { data: &data[row..], halves })
    }
}

/// A row of [`Stored`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredRow<'a, P> {
    /// Starts with the row.
    data: &'a [P],
    halves: [usize; 2],
}

impl<P> Row<P> for StoredRow<'_, P> {
    #[inline(always)]
    fn register(&self, column: usize, lanes: usize) -> &[P] {
        &self.data[self.halves[column / HALF] + column % HALF..][..lanes]
    }
}
