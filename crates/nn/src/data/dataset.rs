//! Data sets in host memory: rows of features with labels or targets.

use highwater_tensor::{Error, Place, Result};

use super::answers::Answers;
use super::batches::Batches;
use super::shuffle::permutation;

/// A data set in host memory: rows of features, each with a label (a class index) or with [targets](Self::with_targets)
/// (any values). No device pool accounts for this memory.
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
    /// Row after row, `width` values each.
    features: Vec<f32>,
    answers: Answers,
    rows: usize,
    width: usize,
}

impl Dataset {
    /// Creates a data set from features, row after row, and one label per row. Without labels, pass an empty vector.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if `features` does not consist of whole rows, or the number of labels differs from the
    /// number of rows.
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

    /// Replaces the labels by targets: `width` values per row, row after row. Batches return them as `[n, width]`.
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
    /// [`Error::BadArgument`] for a `width` of 0, and unless there are `width` targets per row.
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

    /// Creates a data set from parts that fit together.
    pub(super) const fn from_rows(features: Vec<f32>, answers: Answers, rows: usize, width: usize) -> Self {
        Self { features, answers, rows, width }
    }

    /// Returns the number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of features per row.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Returns all features, row after row.
    #[must_use]
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    pub(super) fn features_mut(&mut self) -> &mut [f32] {
        &mut self.features
    }

    /// Returns the labels, one per row; empty without labels.
    #[must_use]
    pub fn labels(&self) -> &[i64] {
        if let Answers::Labels(labels) = &self.answers { labels } else { &[] }
    }

    /// Returns the targets, row after row; empty without targets.
    #[must_use]
    pub fn targets(&self) -> &[f32] {
        if let Answers::Targets { values, .. } = &self.answers { values } else { &[] }
    }

    /// Returns the number of targets per row; 0 without targets.
    #[must_use]
    pub const fn target_width(&self) -> usize {
        if let Answers::Targets { width, .. } = &self.answers { *width } else { 0 }
    }

    /// Multiplies every feature by `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f32) -> Self {
        for feature in &mut self.features {
            *feature *= factor;
        }
        self
    }

    /// Splits the rows at random into a training and a test set. The test set has the share `test_fraction` of the
    /// rows, rounded. The split depends only on the seed. Neither part is empty.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < `test_fraction` < 1, and if the rounded share leaves a part without rows.
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

    /// Returns an iterator over batches of `batch_size` rows, in order unless [shuffled](Batches::shuffled). The last
    /// batch may be smaller.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a batch size of 0.
    pub fn batches<'a, P: Place>(&'a self, batch_size: usize, place: &'a P) -> Result<Batches<'a, P>> {
        Batches::new(self, batch_size, place)
    }

    /// Copies the given rows, in the given order.
    fn select(&self, rows: &[usize]) -> Self {
        let (mut features, mut answers) = (Vec::with_capacity(rows.len() * self.width), Answers::default());
        self.gather(rows, &mut features, &mut answers);
        Self { features, answers, rows: rows.len(), width: self.width }
    }

    /// Copies the given rows into `features` and `answers`, and reuses their memory.
    pub(super) fn gather(&self, rows: &[usize], features: &mut Vec<f32>, answers: &mut Answers) {
        features.clear();
        for &row in rows {
            features.extend_from_slice(&self.features[row * self.width..][..self.width]);
        }
        answers.select(&self.answers, rows);
    }
}
