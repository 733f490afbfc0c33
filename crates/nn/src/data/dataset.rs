//! Rows of numbers with labels or targets, in memory.

use highwater_tensor::{Error, Place, Result};

use super::answers::Answers;
use super::batches::Batches;
use super::shuffle::permutation;

/// Rows of features, each with what a model shall say of it, in ordinary host memory that no device pool accounts for: a
/// label, which is the number of a class, or [targets](Self::with_targets), which are any numbers.
///
/// ```
/// use highwater::data::Dataset;
/// use highwater::Device;
/// let data = Dataset::new(vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1], vec![0, 1, 2], 2)?;
/// let (train, test) = data.split(0.34, 7)?;
/// assert_eq!((train.rows(), test.rows()), (2, 1));
/// for batch in train.batches(2, &Device::cpu()?)?.shuffled(7, 0) {
///     let (x, y) = batch?;
///     assert_eq!((x.dims(), y.dims()), (&[2, 2][..], &[2][..]));
/// }
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Row after row, `width` numbers each.
    features: Vec<f32>,
    answers: Answers,
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
        Ok(Self { features, answers: Answers::Labels(labels), rows, width })
    }

    /// The same with targets in place of labels: `width` numbers for each row, one row after the other. Batches have them as
    /// `[n, width]`, the shape of what a network with `width` outputs says.
    ///
    /// ```
    /// use highwater::data::Dataset;
    /// use highwater::{Device, Reduction, Rng};
    /// use highwater::nn::{Linear, Module};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let prices = Dataset::new(vec![0.0, 1.0, 2.0, 3.0], vec![], 1)?.with_targets(vec![0.5, 1.5, 2.5, 3.5], 1)?;
    /// let model = Linear::new(&device, 1, 1, &rng)?;
    /// for batch in prices.batches(2, &device)?.shuffled(7, 0) {
    ///     let (x, y) = batch?;
    ///     assert_eq!((x.dims(), y.dims()), (&[2, 1][..], &[2, 1][..]));
    ///     let _gradients = model.forward(&x)?.mse_loss(&y, Reduction::Mean)?.backward()?;
    /// }
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a `width` of 0, and unless there are as many targets for each row.
    pub fn with_targets(self, targets: Vec<f32>, width: usize) -> Result<Self> {
        let bad = |argument, expected, got| Error::BadArgument { op: "dataset", argument, expected, got };
        if width == 0 {
            return Err(bad("width", "at least 1", "0".to_owned()));
        }
        if self.rows.checked_mul(width) != Some(targets.len()) {
            let got = format!("{} targets of width {width} for {} rows", targets.len(), self.rows);
            return Err(bad("targets", "`width` numbers for each row", got));
        }
        Ok(Self { answers: Answers::Targets { values: targets, width }, ..self })
    }

    /// Data whose parts are known to fit together.
    pub(super) const fn from_rows(features: Vec<f32>, answers: Answers, rows: usize, width: usize) -> Self {
        Self { features, answers, rows, width }
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
        if let Answers::Labels(labels) = &self.answers { labels } else { &[] }
    }

    /// The targets, row after row; empty if there are none.
    #[must_use]
    pub fn targets(&self) -> &[f32] {
        if let Answers::Targets { values, .. } = &self.answers { values } else { &[] }
    }

    /// How many targets a row has: 0 if there are none.
    #[must_use]
    pub const fn target_width(&self) -> usize {
        if let Answers::Targets { width, .. } = &self.answers { *width } else { 0 }
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
    /// decides which. Neither part is empty.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < `test_fraction` < 1, and if the rounded share leaves one part without rows, as it always
    /// does with fewer than two rows.
    pub fn split(&self, test_fraction: f64, seed: u64) -> Result<(Self, Self)> {
        let bad =
            |expected, got| Error::BadArgument { op: "split", argument: "test_fraction", expected, got };
        if !(test_fraction > 0.0 && test_fraction < 1.0) {
            return Err(bad("above 0 and below 1", test_fraction.to_string()));
        }
        let test_rows = (self.rows as f64 * test_fraction).round() as usize;
        if test_rows == 0 || test_rows >= self.rows {
            let got = format!("{test_fraction}, which takes {test_rows} of {} rows", self.rows);
            return Err(bad("a share that leaves rows in both parts", got));
        }
        let order = permutation(self.rows, seed, 0);
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
        let (mut features, mut answers) = (Vec::with_capacity(rows.len() * self.width), Answers::default());
        self.gather(rows, &mut features, &mut answers);
        Self { features, answers, rows: rows.len(), width: self.width }
    }

    /// Makes `features` and `answers` those of the given rows, in the room that they have.
    pub(super) fn gather(&self, rows: &[usize], features: &mut Vec<f32>, answers: &mut Answers) {
        features.clear();
        for &row in rows {
            features.extend_from_slice(&self.features[row * self.width..][..self.width]);
        }
        answers.select(&self.answers, rows);
    }
}
