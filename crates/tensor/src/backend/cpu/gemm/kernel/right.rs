//! Where a micro-kernel reads the rows of the right operand.

use super::COLUMNS;

/// The columns of one part of a row.
pub(in super::super::super) const HALF: usize = COLUMNS / 2;

/// The rows of a panel of the right operand, each in two halves.
pub(in super::super::super) trait Right<P>: Copy {
    /// The number of rows.
    fn len(&self) -> usize;

    /// A row. Implementations are `inline(always)`.
    fn row(&self, number: usize) -> [&[P; HALF]; 2];
}

/// A packed panel.
impl<P> Right<P> for &[[P; COLUMNS]] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }

    #[inline(always)]
    fn row(&self, number: usize) -> [&[P; HALF]; 2] {
        let (halves, _) = self[number].as_chunks::<HALF>();
        [&halves[0], &halves[1]]
    }
}

/// A panel of an operand that is read where it is stored. So it needs no packing, which would take longer than the products
/// of a few rows.
#[derive(Clone, Copy, Debug)]
pub(in super::super::super) struct Stored<'a, P> {
    pub(in super::super::super) data: &'a [P],
    /// The offset of each row.
    pub(in super::super::super) rows: &'a [usize],
    /// The offsets of the halves of a row.
    pub(in super::super::super) halves: [usize; 2],
}

impl<P> Stored<'_, P> {
    /// Whether all elements of all rows exist.
    pub(in super::super::super) fn is_inside(&self) -> bool {
        let (row, half) = (self.rows.iter().max(), self.halves[0].max(self.halves[1]));
        row.is_none_or(|row| row + half + HALF <= self.data.len())
    }
}

impl<P: Copy> Right<P> for Stored<'_, P> {
    fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline(always)]
    fn row(&self, number: usize) -> [&[P; HALF]; 2] {
        let row = self.rows[number];
        let at = |half: usize| -> &[P; HALF] {
            self.data[row + half..].first_chunk().unwrap_or_else(|| outside())
        };
        [at(self.halves[0]), at(self.halves[1])]
    }
}

#[cold]
fn outside() -> ! {
    unreachable!("the operand has checked its rows");
}
