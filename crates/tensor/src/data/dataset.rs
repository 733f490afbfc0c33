//! Rows of numbers with labels, in memory.

use super::batches::Batches;
use super::shuffle::permutation;
use crate::device::Place;
use crate::error::{Error, Result};

/// Rows of features, each with a label, in ordinary host memory that no device pool accounts for.
///
/// ```
/// use highwater_tensor::{Device, data::Dataset};
/// let data = Dataset::new(vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1], vec![0, 1, 2], 2)?;
/// let (train, test) = data.split(0.34, 7)?;
/// assert_eq!((train.rows(), test.rows()), (2, 1));
/// for batch in train.batches(2, &Device::cpu()?)?.shuffled(7, 0) {
///     let (x, y) = batch?;
///     assert_eq!((x.dims(), y.dims()), (&[2, 2][..], &[2][..]));
/// }
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Row after row, `width` numbers each.
    features: Vec<f32>,
    /// One per row, or none at all.
    labels: Vec<i64>,
    rows: usize,
    width: usize,
}

impl Dataset {
    /// Data from rows of `width` features, one after the other, and one label per row; or no labels at all.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if `features` is no whole number of rows, or `labels` not one for each.
    pub fn new(features: Vec<f32>, labels: Vec<i64>, width: usize) -> Result<Self> {
        let bad = |argument, expected, got| Error::BadArgument { op: "dataset", argument, expected, got };
        let rows = features.len().checked_div(width).unwrap_or(labels.len());
        if rows * width != features.len() {
            let got = format!("{} features of width {width}", features.len());
            return Err(bad("features", "a whole number of rows", got));
        }
        if !labels.is_empty() && labels.len() != rows {
            return Err(bad("labels", "one per row, or none", format!("{} for {rows} rows", labels.len())));
        }
        Ok(Self { features, labels, rows, width })
    }

    /// Data whose parts are known to fit together.
    pub(super) const fn from_rows(features: Vec<f32>, labels: Vec<i64>, rows: usize, width: usize) -> Self {
        Self { features, labels, rows, width }
    }

    /// How many rows there are.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// How many features a row has.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// All features, row after row.
    #[must_use]
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    pub(super) fn features_mut(&mut self) -> &mut [f32] {
        &mut self.features
    }

    /// The labels, one per row; empty if there are none.
    #[must_use]
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The same data with every feature multiplied by `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f32) -> Self {
        for feature in &mut self.features {
            *feature *= factor;
        }
        self
    }

    /// The rows in two parts, of which the second has the share `test_fraction` of them (rounded). The seed alone
    /// decides which.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ `test_fraction` ≤ 1.
    pub fn split(&self, test_fraction: f64, seed: u64) -> Result<(Self, Self)> {
        if !(0.0..=1.0).contains(&test_fraction) {
            return Err(Error::BadArgument {
                op: "split",
                argument: "test_fraction",
                expected: "from 0 to 1",
                got: test_fraction.to_string(),
            });
        }
        let order = permutation(self.rows, seed, 0);
        let test_rows = (self.rows as f64 * test_fraction).round() as usize;
        let (test, train) = order.split_at(test_rows);
        Ok((self.select(train), self.select(test)))
    }

    /// The rows in batches of `batch_size`, in order unless [shuffled](Batches::shuffled), the last one smaller if
    /// they do not come out even.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for batches of no rows.
    pub fn batches<'a, P: Place>(&'a self, batch_size: usize, place: &'a P) -> Result<Batches<'a, P>> {
        Batches::new(self, batch_size, place)
    }

    /// The given rows, in the order given.
    fn select(&self, rows: &[usize]) -> Self {
        let mut features = Vec::with_capacity(rows.len() * self.width);
        let mut labels = Vec::with_capacity(if self.labels.is_empty() { 0 } else { rows.len() });
        self.gather(rows, &mut features, &mut labels);
        Self { features, labels, rows: rows.len(), width: self.width }
    }

    /// Puts the features and labels of the given rows at the end of `features` and `labels`.
    pub(super) fn gather(&self, rows: &[usize], features: &mut Vec<f32>, labels: &mut Vec<i64>) {
        for &row in rows {
            features.extend_from_slice(&self.features[row * self.width..][..self.width]);
            labels.extend(self.labels.get(row));
        }
    }
}
