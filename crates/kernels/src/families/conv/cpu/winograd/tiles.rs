//! The order of tiles: all tiles of an image row by row, then those of the next image.

/// Consecutive tiles of one image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) image: usize,
    /// The number of the first tile within the image.
    first: usize,
    len: usize,
    /// The position of the first tile in its block.
    start: usize,
    /// The number of tiles in a row of the image.
    columns: usize,
}

/// Consecutive tiles of one row of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileRun {
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) len: usize,
    /// The position of the first tile in its block.
    pub(super) lane: usize,
}

/// The parts of a block of tiles, for images of `[rows, columns]` tiles.
#[inline(always)]
pub(super) fn parts(
    [rows, columns]: [usize; 2],
    [start, len]: [usize; 2],
) -> impl Iterator<Item = Part> + Clone {
    let per_image = rows * columns;
    let (mut image, mut first, mut start) = (start / per_image, start % per_image, 0);
    std::iter::from_fn(move || {
        let count = (per_image - first).min(len - start);
        let part = Part { image, first, len: count, start, columns };
        (image, first, start) = (image + 1, 0, start + count);
        (count > 0).then_some(part)
    })
}

impl Part {
    /// The first row of tiles, and the number of rows.
    #[inline(always)]
    pub(super) fn rows(&self) -> [usize; 2] {
        let first = self.first / self.columns;
        [first, (self.first + self.len).div_ceil(self.columns) - first]
    }

    #[inline(always)]
    pub(super) fn runs(&self) -> impl Iterator<Item = TileRun> {
        let Self { columns, start, len, .. } = *self;
        let (mut row, mut column, mut done) = (self.first / columns, self.first % columns, 0);
        std::iter::from_fn(move || {
            let count = (columns - column).min(len - done);
            let run = TileRun { row, column, len: count, lane: start + done };
            done += count;
            column += count;
            if column == columns {
                (row, column) = (row + 1, 0);
            }
            (count > 0).then_some(run)
        })
    }
}
