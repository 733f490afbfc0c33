//! Data sets in host memory: rows of features with labels or targets.

use std::sync::Arc;

use highwater_tensor::{DType, Error, IntoShape, MAX_RANK, Place, Result, Shape};

use super::answers::Answers;
use super::batches::Batches;
use super::csv::{Column, Encoding};
use super::dataset::Dataset;
use super::sample::{Sample, batch_shape};
use super::shuffle;
use super::texts::{self, TextColumn};
use crate::io::Array;

/// A data set in host memory: rows of features, each with a label (a class index) or with [targets](Self::with_targets)
/// (any values). No device pool accounts for this memory. Clones share it.
///
/// ```
/// use highwater::data::ArrayDataset;
/// use highwater::Device;
/// let data = ArrayDataset::new(vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1], vec![0, 1, 2], 2)?;
/// let (train, test) = data.split(0.34, 7)?;
/// assert_eq!((train.rows(), test.rows()), (2, 1));
/// for batch in train.batches(2, &Device::cpu()?)?.shuffled(7, 0) {
///     let (x, y) = batch?;
///     assert_eq!((x.dims(), y.dims()), (&[2, 2][..], &[2][..]));
/// }
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayDataset {
    /// Row after row, `shape` elements each.
    features: Arc<Vec<f32>>,
    answers: Arc<Answers>,
    rows: usize,
    /// The shape of a row.
    shape: Shape,
    encoding: Option<Encoding>,
    texts: Arc<Vec<TextColumn>>,
}

impl ArrayDataset {
    /// Creates a data set from features, row after row, and one label per row. Without labels, pass an empty vector.
    /// Batches have the shape `[n, width]`; see [`with_shape`](Self::with_shape).
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
        Ok(Self::from_rows(features, Answers::Labels(labels), rows, Shape::new(&[width])?))
    }

    /// Sets the shape of the rows, for example `[channels, height, width]` of images. Batches have the shape
    /// `[n, …shape]`.
    ///
    /// ```
    /// use highwater::data::ArrayDataset;
    /// use highwater::Device;
    /// let images = ArrayDataset::new(vec![0.5; 10 * 64], vec![3; 10], 64)?.with_shape([1, 8, 8])?;
    /// let (x, _) = images.batches(5, &Device::cpu()?)?.next().unwrap()?;
    /// assert_eq!(x.dims(), [5, 1, 8, 8]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] unless the sizes multiply to the width of a row, [`Error::RankTooLarge`] if batches would
    /// have too many axes.
    pub fn with_shape(self, shape: impl IntoShape) -> Result<Self> {
        const OP: &str = "with_shape";
        let shape = shape.into_shape().map_err(|error| error.in_op(OP))?;
        if shape.checked_elements() != Some(self.width()) {
            return Err(Error::ElementCount { op: OP, elements: self.width(), shape });
        }
        if shape.rank() == MAX_RANK {
            return Err(Error::RankTooLarge { op: OP, rank: MAX_RANK + 1 });
        }
        Ok(Self { shape, ..self })
    }

    /// Replaces the labels by targets: `width` values per row, row after row. Batches return them as `[n, width]`.
    ///
    /// ```
    /// use highwater::data::ArrayDataset;
    /// use highwater::{Device, Rng};
    /// use highwater::nn::{Linear, Module};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let prices = ArrayDataset::new(vec![0.0, 1.0, 2.0, 3.0], vec![], 1)?.with_targets(vec![0.5, 1.5, 2.5, 3.5], 1)?;
    /// let model = Linear::new(&device, 1, 1, &rng)?;
    /// for batch in prices.batches(2, &device)?.shuffled(7, 0) {
    ///     let (x, y) = batch?;
    ///     assert_eq!((x.dims(), y.dims()), (&[2, 1][..], &[2, 1][..]));
    ///     let _gradients = model.forward(&x)?.mse_loss(&y)?.backward()?;
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
        Ok(Self { answers: Arc::new(Answers::Targets { values: targets, width }), ..self })
    }

    /// Creates a data set from parts that fit together.
    pub(super) fn from_rows(features: Vec<f32>, answers: Answers, rows: usize, shape: Shape) -> Self {
        let (features, answers) = (Arc::new(features), Arc::new(answers));
        Self { features, answers, rows, shape, encoding: None, texts: Arc::default() }
    }

    /// Adds what a table has beside numbers: the encoding of its text, and its columns of text.
    pub(super) fn with_table(self, encoding: Encoding, texts: Vec<TextColumn>) -> Self {
        Self { encoding: Some(encoding), texts: Arc::new(texts), ..self }
    }

    /// Returns the number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of features per row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.shape.elements()
    }

    /// Returns the shape of a row: `[width]` unless [`with_shape`](Self::with_shape) or the file states another.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns all features, row after row.
    #[must_use]
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// Returns the features for changes; copies them if a clone shares them.
    pub(super) fn features_mut(&mut self) -> &mut [f32] {
        Arc::<Vec<f32>>::make_mut(&mut self.features)
    }

    /// Returns the labels, one per row; empty without labels.
    #[must_use]
    pub fn labels(&self) -> &[i64] {
        if let Answers::Labels(labels) = &*self.answers { labels } else { &[] }
    }

    /// Returns the targets, row after row; empty without targets.
    #[must_use]
    pub fn targets(&self) -> &[f32] {
        if let Answers::Targets { values, .. } = &*self.answers { values } else { &[] }
    }

    /// Returns the number of targets per row; 0 without targets.
    #[must_use]
    pub fn target_width(&self) -> usize {
        if let Answers::Targets { width, .. } = &*self.answers { *width } else { 0 }
    }

    /// Returns how the text of a table became numbers; `None` unless the data set comes from
    /// [`read_csv`](super::read_csv).
    #[must_use]
    pub const fn encoding(&self) -> Option<&Encoding> {
        self.encoding.as_ref()
    }

    /// Returns the names of the classes; label `i` is the class `class_names()[i]`. Empty for labels that are numbers.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        self.encoding.as_ref().map_or(&[], Encoding::class_names)
    }

    /// Returns the texts of a column, one per row. The column has the name of the header or an index of the file, from 0.
    ///
    /// ```
    /// use highwater::data::{CsvOptions, read_csv_from};
    /// let csv = "stars,review\n5,\"Good, and cheap\"\n1,Never again\n";
    /// let options = CsvOptions::default().with_text(["review"]).with_label("stars");
    /// let data = read_csv_from(csv.as_bytes(), "reviews.csv", &options)?;
    /// assert_eq!(data.texts("review")?, ["Good, and cheap", "Never again"]);
    /// assert_eq!(data.labels(), [5, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the file was read with this column as [text](super::CsvOptions::with_text).
    pub fn texts(&self, column: impl Into<Column>) -> Result<&[String]> {
        texts::find(&self.texts, &column.into()).map(|column| &column.rows[..])
    }

    /// Multiplies every feature by `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f32) -> Self {
        for feature in self.features_mut() {
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
        let (train, test) = shuffle::split(self.rows, test_fraction, seed)?;
        Ok((self.select(&train), self.select(&test)))
    }

    /// Returns an iterator over batches of `batch_size` rows, in order unless [shuffled](Batches::shuffled). The last
    /// batch may be smaller.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a batch size of 0.
    pub fn batches<'a, P: Place>(&self, batch_size: usize, place: &'a P) -> Result<Batches<'a, P>> {
        Batches::new(Arc::new(self.clone()), batch_size, place)
    }

    /// Copies the given rows, in the given order.
    fn select(&self, rows: &[usize]) -> Self {
        let mut features = Vec::with_capacity(rows.len() * self.width());
        rows.iter().for_each(|&row| features.extend_from_slice(self.row(row)));
        let selected = Self::from_rows(features, self.answers.select(rows), rows.len(), self.shape);
        let texts = self.texts.iter().map(|column| column.select(rows)).collect();
        Self { encoding: self.encoding.clone(), texts: Arc::new(texts), ..selected }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.features[row * self.width()..][..self.width()]
    }

    fn check(&self, index: usize) -> Result<()> {
        if index < self.rows {
            return Ok(());
        }
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        Err(Error::IndexOutOfRange { op: "get", index, len: self.rows })
    }
}

impl Dataset for ArrayDataset {
    fn len(&self) -> usize {
        self.rows
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.check(index)?;
        Ok(Sample {
            input: Array::from_slice(self.row(index), self.shape)?,
            target: self.answers.get(index)?,
        })
    }

    fn sample_shape(&self) -> Option<Shape> {
        Some(self.shape)
    }

    /// Copies the rows at once.
    fn get_batch(&self, indices: &[usize]) -> Result<Sample> {
        indices.iter().try_for_each(|&index| self.check(index))?;
        let mut input = Array::zeros("batches", DType::F32, batch_shape(indices.len(), &self.shape)?)?;
        let width = self.width();
        if width > 0 {
            let rows: &mut [f32] = bytemuck::cast_slice_mut(input.bytes_mut());
            for (to, &row) in rows.chunks_exact_mut(width).zip(indices) {
                to.copy_from_slice(self.row(row));
            }
        }
        Ok(Sample { input, target: self.answers.select(indices).to_array()? })
    }
}
