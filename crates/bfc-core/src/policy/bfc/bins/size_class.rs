//! Size classes: finer than bins, so that a class seldom holds more than one free chunk.
//!
//! The sizes, counted in granules and 64 added, are divided by powers of two into rows of 64 classes each. So up to 16 KiB
//! every size has a class of its own, and all of those share one row, as most requests want; above, a class spans
//! between a 32nd and a 96th of its sizes. Source of the division: Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic
//! memory allocator for real-time systems", 2004, whose correction for small sizes is the addition here.

use super::super::chunk::GRANULE;

/// How many classes a row has: as many as a word of the bitmap has bits.
pub(crate) const COLUMNS: usize = 64;

/// How many rows there are: one for each power of two, so that no index needs a correction. The first six stay empty.
pub(crate) const ROWS: usize = 64;

/// A size class. Larger chunks never have a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeClass {
    /// Below [`ROWS`].
    pub(super) row: u32,
    /// Below [`COLUMNS`].
    pub(super) column: u32,
}

impl SizeClass {
    /// The class of chunks of `bytes` bytes.
    #[inline]
    pub(crate) const fn of(bytes: u64) -> Self {
        let shifted = bytes / GRANULE + COLUMNS as u64;
        let row = shifted.ilog2();
        // The six bits that follow the leading one, which is shifted out: it is none of the six lowest.
        let column = (shifted << (64 - row) >> 58) as u32;
        Self { row, column }
    }

    /// The class's place in a table of all.
    #[inline]
    pub(super) const fn index(self) -> usize {
        (self.row as usize % ROWS) * COLUMNS + self.column as usize % COLUMNS
    }

    /// The class above, or `None` if this is the highest.
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

    /// All classes from the lowest to the highest.
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
