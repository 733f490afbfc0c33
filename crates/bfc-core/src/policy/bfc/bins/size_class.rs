//! Size classes: finer than bins, so that a class rarely holds more than one free chunk.
//!
//! Sizes in granules, plus 64, are divided by powers of two into rows of 64 classes. Up to 16 KiB every size has its
//! own class, and these classes share one row, which serves most requests. Above, a class spans between a 32nd and a
//! 96th of its sizes. Source of the division: Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator
//! for real-time systems", 2004, whose correction for small sizes is the addition of 64 here.

use super::super::chunk::GRANULE;

/// The number of classes in a row: the bits of a bitmap word.
pub(crate) const COLUMNS: usize = 64;

/// The number of rows: one for each power of two, so that no index needs a correction. The first six stay empty.
pub(crate) const ROWS: usize = 64;

/// A size class. Larger chunks never have a lower class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeClass {
    /// The row, below [`ROWS`].
    pub(super) row: u32,
    /// The column, below [`COLUMNS`].
    pub(super) column: u32,
}

impl SizeClass {
    /// Returns the class of chunks of `bytes` bytes.
    #[inline]
    pub(crate) const fn of(bytes: u64) -> Self {
        let shifted = bytes / GRANULE + COLUMNS as u64;
        let row = shifted.ilog2();
        // The six bits after the leading one. The shift removes the leading bit.
        let column = (shifted << (64 - row) >> 58) as u32;
        Self { row, column }
    }

    /// Returns the index of the class in a table of all classes.
    #[inline]
    pub(super) const fn index(self) -> usize {
        (self.row as usize % ROWS) * COLUMNS + self.column as usize % COLUMNS
    }

    /// Returns the next class, or `None` for the highest.
    pub(crate) const fn next(self) -> Option<Self> {
        let Self { row, column } = self;
        if column as usize + 1 < COLUMNS {
            Some(Self { row, column: column + 1 })
        } else if row as usize + 1 < ROWS {
            Some(Self { row: row + 1, column: 0 })
        } else {
            None
        }
    }

    /// Iterates over all classes in ascending order.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let rows = 0..ROWS as u32;
        rows.flat_map(|row| (0..COLUMNS as u32).map(move |column| Self { row, column }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_waste_at_most_one_part_in_32() {
        let class = |granules| SizeClass::of(granules * GRANULE).index();
        for granules in 1..64 {
            assert_eq!(class(granules) + 1, class(granules + 1));
        }
        assert_eq!(class(64), class(65));
        assert_eq!(class(65) + 1, class(66));
        assert_eq!(class(191) + 1, class(192));
        assert_eq!(class(192), class(195));
        for granules in (192..1 << 20).step_by(97) {
            assert!(class(granules) < class(granules + granules / 32));
            assert!(class(granules) <= class(granules + 1));
        }
        assert!(SizeClass::of(u64::MAX).index() < ROWS * COLUMNS);
    }

    #[test]
    fn the_order_of_classes_is_that_of_their_indices() {
        assert!(SizeClass::all().map(SizeClass::index).eq(0..ROWS * COLUMNS));
        assert!(SizeClass::all().is_sorted());
    }
}
