//! How to read a CSV file, and how much of it.

use highwater_tracking::gzip;

/// Which column is the label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelColumn {
    /// The first.
    First,
    /// The last.
    #[default]
    Last,
    /// The one with this index, from 0.
    Index(usize),
    /// None: every column is a feature, and the data has no labels.
    None,
}

/// Which columns are targets: finite numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetColumns {
    /// So many, from the first on.
    First(usize),
    /// So many, up to the last.
    Last(usize),
    /// Those with these indices, from 0, in this order.
    Indices(Vec<usize>),
}

impl TargetColumns {
    /// The indices of the targets in lines of `columns` columns; an index that is not there where they do not fit.
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

/// How to read a CSV file, and how much of it to accept. Blank lines are skipped, spaces around fields and the mark that
/// spreadsheets put before UTF-8 too.
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
/// For a regression, targets take the label's place: one column or several of any numbers.
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
#[non_exhaustive]
pub struct CsvOptions {
    /// Which column is the label: a whole number, which may be written as a float (`1.0`). The others are features: finite numbers, of
    /// which a row has one or more.
    pub label: LabelColumn,
    /// Which columns are targets. Where this is set, no column is a label.
    pub targets: Option<TargetColumns>,
    /// Whether the first line names the columns.
    pub header: bool,
    /// The byte between fields.
    pub delimiter: u8,
    /// The most rows of data.
    pub max_rows: usize,
    /// The most columns.
    pub max_columns: usize,
    /// The most numbers in all rows together: the bound of the memory taken, at 4 bytes each.
    pub max_values: usize,
    /// The most bytes in a line, or in a row whose quoted fields span several, blank lines before it included.
    pub max_line_bytes: usize,
    /// The most lines that are no rows: blank ones, the header, all but one of a row whose quoted fields span several.
    pub max_idle_lines: usize,
    /// The most decompressed bytes for each byte of a compressed file. Up to 64 MiB are always read.
    pub max_ratio: u64,
}

impl Default for CsvOptions {
    /// The label last, no header, commas; at most 2²⁸ numbers (1 GiB), 65,536 columns, 1 MiB a line, 2²⁰ lines that are no rows, and a
    /// ratio of 256.
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
    /// The same with another column as the label, and no targets.
    #[must_use]
    pub fn with_label(mut self, label: LabelColumn) -> Self {
        (self.label, self.targets) = (label, None);
        self
    }

    /// The same with columns as targets, and no label.
    #[must_use]
    pub fn with_targets(mut self, targets: TargetColumns) -> Self {
        (self.label, self.targets) = (LabelColumn::None, Some(targets));
        self
    }

    /// The same with or without a first line that names the columns.
    #[must_use]
    pub const fn with_header(mut self, header: bool) -> Self {
        self.header = header;
        self
    }

    /// The same with another byte between fields.
    #[must_use]
    pub const fn with_delimiter(mut self, delimiter: u8) -> Self {
        self.delimiter = delimiter;
        self
    }

    /// The same with at most `max_rows` rows of data.
    #[must_use]
    pub const fn with_max_rows(mut self, max_rows: usize) -> Self {
        self.max_rows = max_rows;
        self
    }

    /// The same with at most `max_columns` columns.
    #[must_use]
    pub const fn with_max_columns(mut self, max_columns: usize) -> Self {
        self.max_columns = max_columns;
        self
    }

    /// The same with at most `max_values` numbers in all.
    #[must_use]
    pub const fn with_max_values(mut self, max_values: usize) -> Self {
        self.max_values = max_values;
        self
    }

    /// The same with at most `max_line_bytes` bytes in a line.
    #[must_use]
    pub const fn with_max_line_bytes(mut self, max_line_bytes: usize) -> Self {
        self.max_line_bytes = max_line_bytes;
        self
    }

    /// The same with at most `max_idle_lines` lines that are no rows.
    #[must_use]
    pub const fn with_max_idle_lines(mut self, max_idle_lines: usize) -> Self {
        self.max_idle_lines = max_idle_lines;
        self
    }

    /// The same with at most `max_ratio` decompressed bytes for each byte of a compressed file.
    #[must_use]
    pub const fn with_max_ratio(mut self, max_ratio: u64) -> Self {
        self.max_ratio = max_ratio;
        self
    }
}
