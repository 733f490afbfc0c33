//! Size classes: finer than bins, so that a class seldom holds more than one free chunk.
//!
//! Each power of two is a row of 64 classes of equal width. So up to 128 granules (32 KiB) every size has a class of its
//! own, and above a class spans at most a 64th of its sizes. Source of the division: Masmano, Ripoll, Crespo and Real,
//! "TLSF: a new dynamic memory allocator for real-time systems", 2004.

/// How many classes a row has: as many as a word of the bitmap has bits.
pub(crate) const COLUMNS: usize = 64;

/// How many rows there are: one for each power of two, so that no index needs a correction. Those of sizes below a
/// granule stay empty.
pub(crate) const ROWS: usize = 64;

/// A size class. Larger chunks never have a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeClass {
    /// Below [`ROWS`]: the binary logarithm of its sizes in bytes.
    pub(super) row: u32,
    /// Below [`COLUMNS`].
    pub(super) column: u32,
}

impl SizeClass {
    /// The class of chunks of `bytes` bytes, at least 1.
    #[inline]
    pub(crate) const fn of(bytes: u64) -> Self {
        let row = bytes.ilog2();
        // The six bits that follow the leading one.
        let column = (bytes << (63 - row) >> 57) as u32 % COLUMNS as u32;
        Self { row, column }
    }

    /// The class's place in a table of all.
    #[inline]
    pub(super) const fn index(self) -> usize {
        (self.row as usize % ROWS) * COLUMNS + self.column as usize % COLUMNS
    }

    /// The class above, or `None` if this is the highest.
    pub(super) const fn next(self) -> Option<Self> {
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
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let rows = 0..ROWS as u32;
        rows.flat_map(|row| (0..COLUMNS as u32).map(move |column| Self { row, column }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::chunk::GRANULE;
    use super::*;

    #[test]
    fn small_sizes_have_a_class_each_and_larger_ones_share_one_with_at_most_a_64th_more() {
        let class = |granules| SizeClass::of(granules * GRANULE).index();
        for granules in 1..128 {
            assert!(class(granules) < class(granules + 1));
        }
        assert_eq!(class(128), class(129));
        assert_eq!(class(130), class(129) + 1);
        assert_eq!(class(255) + 1, class(256));
        for bytes in [1 << 20, 1 << 30, 1 << 63] {
            let class = |bytes| SizeClass::of(bytes).index();
            assert_eq!(class(bytes), class(bytes + bytes / 64 - GRANULE));
            assert_eq!(class(bytes) + 1, class(bytes + bytes / 64));
            assert_eq!(class(bytes), class(bytes - GRANULE) + 1);
        }
        assert_eq!(SizeClass::of(u64::MAX).index(), ROWS * COLUMNS - 1);
    }

    #[test]
    fn the_order_of_classes_is_that_of_their_indices() {
        assert!(SizeClass::all().map(SizeClass::index).eq(0..ROWS * COLUMNS));
        assert!(SizeClass::all().is_sorted());
    }
}
