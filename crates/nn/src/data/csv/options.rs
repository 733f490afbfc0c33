//! Options and limits of the CSV reader.

use highwater_tracking::gzip;

/// The column of the label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelColumn {
    /// The first column.
    First,
    /// The last column.
    #[default]
    Last,
    /// The column with this index, from 0.
    Index(usize),
    /// No label: every column is a feature.
    None,
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
}

impl TargetColumns {
    /// Returns the column indices of the targets for lines of `columns` columns. The error is an index out of range.
    pub(super) fn indices(&self, columns: usize) -> Result<Vec<usize>, usize> {
        match self {
            Self::First(count) | Self::Last(count) if *count > columns => Err(count - 1),
            Self::First(count) => Ok((0..*count).collect()),
            Self::Last(count) => Ok((columns - count..columns).collect()),
            Self::Indices(indices) => match indices.iter().find(|&&index| index >= columns) {
                Some(&index) => Err(index),
                None => Ok(indices.clone()),
            },
        }
    }
}

/// Options and limits of the CSV reader. It skips blank lines, spaces around fields and a byte-order mark.
///
/// ```
/// use highwater::data::{CsvOptions, LabelColumn, read_csv_from};
/// let text = "label,width,height\n1, 0.5, 2\n0, 1.5, 3\n";
/// let options = CsvOptions::default().with_header(true).with_label(LabelColumn::First);
/// let data = read_csv_from(text.as_bytes(), "leaves.csv", &options)?;
/// assert_eq!((data.rows(), data.width(), data.labels()), (2, 2, &[1, 0][..]));
/// # Ok::<(), highwater::data::DataError>(())
/// ```
///
/// For regression, set targets in place of a label: one or more columns of finite numbers.
///
/// ```
/// use highwater::data::{CsvOptions, TargetColumns, read_csv_from};
/// let text = "rooms,area,price,rent\n3, 70.5, 210.0, 0.9\n5, 120, 395.5, 1.6\n";
/// let options = CsvOptions::default().with_header(true).with_targets(TargetColumns::Last(2));
/// let data = read_csv_from(text.as_bytes(), "homes.csv", &options)?;
/// assert_eq!((data.width(), data.targets()), (2, &[210.0, 0.9, 395.5, 1.6][..]));
/// # Ok::<(), highwater::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// The column of the label: a whole number, which may be written as a float (`1.0`). All other columns are
    /// features: finite numbers, at least one per row.
    pub label: LabelColumn,
    /// The columns of the targets. If set, no column is a label.
    pub targets: Option<TargetColumns>,
    /// Whether the first line contains column names.
    pub header: bool,
    /// The byte between fields.
    pub delimiter: u8,
    /// Maximum number of data rows.
    pub max_rows: usize,
    /// Maximum number of columns.
    pub max_columns: usize,
    /// Maximum number of values in all rows. It bounds the memory, at 4 bytes per value.
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
    /// Label in the last column, no header, commas; at most 2²⁸ values (1 GiB), 65,536 columns, 1 MiB per line, 2²⁰
    /// lines without a row, and a ratio of 256.
    fn default() -> Self {
        Self {
            label: LabelColumn::Last,
            targets: None,
            header: false,
            delimiter: b',',
            max_rows: 1 << 28,
            max_columns: 1 << 16,
            max_values: 1 << 28,
            max_line_bytes: 1 << 20,
            max_idle_lines: 1 << 20,
            max_ratio: gzip::RATIO,
        }
    }
}

impl CsvOptions {
    /// Sets the column of the label, and removes the targets.
    #[must_use]
    pub fn with_label(mut self, label: LabelColumn) -> Self {
        (self.label, self.targets) = (label, None);
        self
    }

    /// Sets the columns of the targets, which replace the label.
    #[must_use]
    pub fn with_targets(mut self, targets: TargetColumns) -> Self {
        (self.label, self.targets) = (LabelColumn::None, Some(targets));
        self
    }

    /// Sets whether the first line contains column names.
    #[must_use]
    pub const fn with_header(mut self, header: bool) -> Self {
        self.header = header;
        self
    }
}
