//! The complete map as a grid: the dominant category of each cell, and how much of the cell was in use.
//!
//! The area of a rectangle in a cell is a product: its share of the column's time, times its share of the row's
//! addresses. Each factor is a step up and a step down along its axis, with partial cells at both ends. Its differences
//! between cells are at most four numbers; those of the product are sixteen. Adding these and summing along both axes
//! at the end takes the same time for a rectangle of any size.

use bfc_core::Category;

use super::blocks::Rectangle;

/// The use of each cell by each category.
#[derive(Debug)]
pub(super) struct Raster {
    columns: usize,
    rows: usize,
    time: f64,
    bytes: f64,
    /// By category, row and column: the difference from the previous cell, on both axes.
    differences: Vec<f64>,
}

/// The number of fill levels of a cell, besides empty.
const LEVELS: u8 = 15;

impl Raster {
    pub(super) fn new(columns: usize, rows: usize, end_ns: u64, bytes: u64) -> Self {
        let cells = (columns + 2) * (rows + 2);
        let (time, bytes) = (end_ns.max(1) as f64, bytes.max(1) as f64);
        Self { columns, rows, time, bytes, differences: vec![0.0; cells * Category::COUNT] }
    }

    pub(super) fn add(&mut self, rectangle: &Rectangle) {
        let column = |ns: u64| (ns as f64 / self.time).min(1.0) * self.columns as f64;
        let row = |byte: u64| (byte as f64 / self.bytes).min(1.0) * self.rows as f64;
        let across = steps(column(rectangle.from_ns), column(rectangle.to_ns));
        let down = steps(row(rectangle.at), row(rectangle.at.saturating_add(rectangle.bytes)));
        for (row, height) in down {
            let start = (rectangle.category.index() * (self.rows + 2) + row) * (self.columns + 2);
            for (column, width) in across {
                self.differences[start + column] += height * width;
            }
        }
    }

    /// Returns the cells row by row from the lowest address, as `16 · (category + 1) + level`, 0 for an empty one.
    pub(super) fn cells(mut self) -> Vec<u8> {
        let (wide, high) = (self.columns + 2, self.rows + 2);
        for plane in self.differences.chunks_mut(wide * high) {
            for index in 0..plane.len() {
                let left = if index % wide == 0 { 0.0 } else { plane[index - 1] };
                plane[index] += left;
            }
            for index in wide..plane.len() {
                plane[index] += plane[index - wide];
            }
        }
        let cell = |row: usize, column: usize| {
            let taken = |category: usize| self.differences[(category * high + row) * wide + column];
            let (mut sum, mut most) = (0.0, 0);
            for category in 0..Category::COUNT {
                sum += taken(category);
                if taken(category) > taken(most) {
                    most = category;
                }
            }
            // Rounding leaves sums of about 1e-9 in empty cells.
            if sum < 1e-6 {
                return 0;
            }
            let level = (sum.min(1.0) * f64::from(LEVELS)).ceil() as u8;
            (most as u8 + 1) * 16 + level.min(LEVELS)
        };
        (0..self.rows)
            .flat_map(|row| (0..self.columns).map(move |column| (row, column)))
            .map(|(row, column)| cell(row, column))
            .collect()
    }
}

/// Returns the differences between cells of the covered shares.
fn steps(from: f64, to: f64) -> [(usize, f64); 4] {
    let (first, last) = (from.floor(), to.floor());
    // The integral of a step up at `from` rises by the uncovered part of its cell, and by the rest in the next.
    let (into_first, into_last) = (from - first, to - last);
    let (first, last) = (first as usize, last as usize);
    [(first, 1.0 - into_first), (first + 1, into_first), (last, into_last - 1.0), (last + 1, -into_last)]
}

/// Runs of equal cells: value, length, value, length, …
pub(super) fn runs(cells: &[u8]) -> Vec<u32> {
    let mut runs = Vec::new();
    for run in cells.chunk_by(|a, b| a == b) {
        runs.extend([u32::from(run[0]), run.len() as u32]);
    }
    runs
}
