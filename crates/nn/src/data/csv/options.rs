//! Options and limits of the CSV reader.

use highwater_files::gzip;

use super::encoding::Encoding;
use crate::data::ArrayDataset;

/// A column, by its index or its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// The column with this index, from 0.
    Index(usize),
    /// The column with this name in the header.
    Name(String),
}

impl From<usize> for Column {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl From<&str> for Column {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for Column {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

/// The column of the label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LabelColumn {
    /// The first column.
    First,
    /// The last column.
    #[default]
    Last,
    /// The column with this index, from 0.
    Index(usize),
    /// The column with this name in the header.
    Name(String),
    /// No label: every column is a feature.
    None,
}

impl From<usize> for LabelColumn {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl From<&str> for LabelColumn {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for LabelColumn {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

/// The meaning of the label column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClassNames {
    /// Labels are whole numbers.
    #[default]
    Numbers,
    /// Labels are text. The classes are the different texts: those of whole numbers sorted by value, then the others
    /// sorted by their bytes.
    Sorted,
    /// Labels are text. The classes are these names in this order; other texts are errors.
    Fixed(Vec<String>),
}

/// The treatment of missing features: empty fields, and the fields of [`missing_marks`](CsvOptions::missing_marks). A
/// missing label or target is always an error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Missing {
    /// A missing value is an error.
    #[default]
    Error,
    /// The mean of the other values of the column. All features of a one-hot column are 0.
    Mean,
    /// This value. All features of a one-hot column are 0.
    Constant(f32),
}

/// The columns of the targets, which are finite numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetColumns {
    /// The first columns, this many.
    First(usize),
    /// The last columns, this many.
    Last(usize),
    /// The columns with these indices, from 0, in this order.
    Indices(Vec<usize>),
    /// The columns with these names in the header, in this order.
    Names(Vec<String>),
}

impl<S: Into<String>, const N: usize> From<[S; N]> for TargetColumns {
    fn from(names: [S; N]) -> Self {
        Self::Names(names.map(Into::into).to_vec())
    }
}

impl TargetColumns {
    /// Returns the column indices of targets without names, for lines of `columns` columns. The error is an index out of
    /// range.
    pub(super) fn indices(&self, columns: usize) -> Result<Vec<usize>, usize> {
        match self {
            Self::First(count) | Self::Last(count) if *count > columns => Err(count - 1),
            Self::First(count) => Ok((0..*count).collect()),
            Self::Last(count) => Ok((columns - count..columns).collect()),
            Self::Indices(indices) => match indices.iter().find(|&&index| index >= columns) {
                Some(&index) => Err(index),
                None => Ok(indices.clone()),
            },
            Self::Names(_) => Ok(Vec::new()),
        }
    }
}

/// Options and limits of the CSV reader. It skips blank lines, spaces around fields and a byte-order mark.
///
/// Columns have names or indices. Options that name columns expect a header.
///
/// ```
/// use highwater::data::{CsvOptions, Missing, read_csv_from};
/// let text = "id,species,island,mass\n1,Gentoo,Biscoe,5000\n2,Adelie,Dream,\n3,Adelie,Biscoe,3600\n";
/// let options = CsvOptions::default()
///     .with_classes("species")
///     .with_ignored(["id"])
///     .with_one_hot(["island"])
///     .with_missing(Missing::Mean);
/// let data = read_csv_from(text.as_bytes(), "penguins.csv", &options)?;
/// assert_eq!((data.class_names(), data.labels()), (&["Adelie".to_owned(), "Gentoo".to_owned()][..], &[1, 0, 0][..]));
/// assert_eq!(data.features(), [1.0, 0.0, 5000.0, 0.0, 1.0, 4300.0, 1.0, 0.0, 3600.0]);
///
/// // Another file with the same classes, categories and means.
/// let text = "id,species,island,mass\n4,Gentoo,Dream,\n";
/// let test = read_csv_from(text.as_bytes(), "test.csv", &options.with_encoding_of(&data))?;
/// assert_eq!((test.labels(), test.features()), (&[1][..], &[0.0, 1.0, 4300.0][..]));
/// # Ok::<(), highwater::data::DataError>(())
/// ```
///
/// For regression, set targets in place of a label: one or more columns of finite numbers.
///
/// ```
/// use highwater::data::{CsvOptions, read_csv_from};
/// let text = "rooms;area;price;rent\n3; 70.5; 210.0; 0.9\n5; 120; 395.5; 1.6\n";
/// let options = CsvOptions::default().with_targets(["price", "rent"]);
/// let data = read_csv_from(text.as_bytes(), "homes.csv", &options)?;
/// assert_eq!((data.width(), data.targets()), (2, &[210.0, 0.9, 395.5, 1.6][..]));
/// # Ok::<(), highwater::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CsvOptions {
    /// The column of the label. All other columns are features: finite numbers, at least one per row unless there is text.
    pub label: LabelColumn,
    /// The meaning of the label: a whole number, which may be written as a float (`1.0`), or text.
    pub class_names: ClassNames,
    /// The columns of the targets. If set, no column is a label.
    pub targets: Option<TargetColumns>,
    /// The columns of the features, in this order. If not set, all columns that have no other role.
    pub features: Option<Vec<Column>>,
    /// Columns of text that [`ArrayDataset::texts`] returns. They are not features.
    pub text: Vec<Column>,
    /// Columns that the reader skips.
    pub ignored: Vec<Column>,
    /// Features of text. Each category becomes a feature that is 1 in the rows of this category, and 0 otherwise.
    pub one_hot: Vec<Column>,
    /// The treatment of missing features.
    pub missing: Missing,
    /// Texts that stand for a missing value, in addition to empty fields.
    pub missing_marks: Vec<String>,
    /// The classes, categories and means of another data set.
    pub encoding: Option<Encoding>,
    /// Whether the first line contains column names.
    pub header: bool,
    /// The byte between fields. If not set, the most frequent one of comma, semicolon, tab and `|` in the first line.
    pub delimiter: Option<u8>,
    /// Maximum number of data rows.
    pub max_rows: usize,
    /// Maximum number of columns.
    pub max_columns: usize,
    /// Maximum number of classes, and of categories of a one-hot column.
    pub max_categories: usize,
    /// Maximum number of values in all rows, after one-hot columns became several. It bounds the memory, at 4 bytes per
    /// value. A text counts as 6 values and one more for every 4 bytes.
    pub max_values: usize,
    /// Maximum number of bytes of a line, or of a row whose quoted fields span several lines, including blank lines
    /// before it.
    pub max_line_bytes: usize,
    /// Maximum number of lines without a row: blank lines, the header, and the additional lines of multi-line rows.
    pub max_idle_lines: usize,
    /// Maximum number of decompressed bytes per byte of a compressed file. 64 MiB are always allowed.
    pub max_ratio: u64,
}

impl Default for CsvOptions {
    /// A number as the label in the last column, no header, the most frequent delimiter, no missing values.
    ///
    /// Limits: 2²⁸ values (1 GiB), 65,536 columns, 65,536 classes, 1 MiB per line, 2²⁰ lines without a row, and a
    /// compression ratio of 256.
    fn default() -> Self {
        Self {
            label: LabelColumn::Last,
            class_names: ClassNames::Numbers,
            targets: None,
            features: None,
            text: Vec::new(),
            ignored: Vec::new(),
            one_hot: Vec::new(),
            missing: Missing::Error,
            missing_marks: Vec::new(),
            encoding: None,
            header: false,
            delimiter: None,
            max_rows: 1 << 28,
            max_columns: 1 << 16,
            max_categories: 1 << 16,
            max_values: 1 << 28,
            max_line_bytes: 1 << 20,
            max_idle_lines: 1 << 20,
            max_ratio: gzip::RATIO,
        }
    }
}

impl CsvOptions {
    /// Sets the column of the label, whose values are whole numbers. Removes the targets.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<LabelColumn>) -> Self {
        (self.label, self.class_names, self.targets) = (label.into(), ClassNames::Numbers, None);
        self
    }

    /// Sets the column of the label, whose values are the names of classes. Removes the targets.
    #[must_use]
    pub fn with_classes(mut self, label: impl Into<LabelColumn>) -> Self {
        (self.label, self.targets) = (label.into(), None);
        if self.class_names == ClassNames::Numbers {
            self.class_names = ClassNames::Sorted;
        }
        self
    }

    /// Sets the names of all classes. Label `i` is the name with index `i`; other names are errors.
    #[must_use]
    pub fn with_class_names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.class_names = ClassNames::Fixed(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the columns of the targets, which replace the label.
    #[must_use]
    pub fn with_targets(mut self, targets: impl Into<TargetColumns>) -> Self {
        (self.label, self.targets) = (LabelColumn::None, Some(targets.into()));
        self
    }

    /// Sets the columns of the features, in this order.
    #[must_use]
    pub fn with_features<C: Into<Column>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.features = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Sets columns of text, for example reviews to classify. [`ArrayDataset::texts`] returns them, without the spaces
    /// around each text. An empty field is an empty text.
    #[must_use]
    pub fn with_text<C: Into<Column>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.text = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets columns that the reader skips.
    #[must_use]
    pub fn with_ignored<C: Into<Column>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.ignored = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the features that are text; each category becomes a feature that is 0 or 1.
    #[must_use]
    pub fn with_one_hot<C: Into<Column>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.one_hot = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the treatment of missing features.
    #[must_use]
    pub const fn with_missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Sets texts that stand for a missing value, for example `NA`.
    #[must_use]
    pub fn with_missing_marks<S: Into<String>>(mut self, marks: impl IntoIterator<Item = S>) -> Self {
        self.missing_marks = marks.into_iter().map(Into::into).collect();
        self
    }

    /// Reads the file with the classes, categories and means of a data set from another file. Features have the order
    /// of that data set if it has names for them. No effect for data sets that [`read_csv`](crate::data::read_csv) did
    /// not return.
    #[must_use]
    pub fn with_encoding_of(mut self, data: &ArrayDataset) -> Self {
        self.encoding = data.encoding().cloned();
        self
    }

    /// Sets whether the first line contains column names.
    #[must_use]
    pub const fn with_header(mut self, header: bool) -> Self {
        self.header = header;
        self
    }

    /// Sets the byte between fields.
    #[must_use]
    pub const fn with_delimiter(mut self, delimiter: u8) -> Self {
        self.delimiter = Some(delimiter);
        self
    }
}
