//! Reading CSV files, plain or compressed, in bounded memory.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, ReaderBuilder, Trim};
use flate2::read::MultiGzDecoder;

use super::dataset::Dataset;
use super::error::DataError;
use super::lines::{LineTooLong, Lines};

/// The most characters of a bad field that an error repeats.
const MAX_FOUND: usize = 40;

/// The first bytes of every gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What spreadsheets put before UTF-8. The parser leaves it out by itself where it is read together with what follows.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

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

/// How to read a CSV file, and how much of it to accept. Blank lines are skipped, spaces around fields and the mark that
/// spreadsheets put before UTF-8 too.
///
/// ```
/// use highwater_tensor::data::{CsvOptions, LabelColumn, read_csv_from};
/// let text = "label,width,height\n1, 0.5, 2\n0, 1.5, 3\n";
/// let options = CsvOptions::default().with_header(true).with_label(LabelColumn::First);
/// let data = read_csv_from(text.as_bytes(), "leaves.csv", &options)?;
/// assert_eq!((data.rows(), data.width(), data.labels()), (2, 2, &[1, 0][..]));
/// # Ok::<(), highwater_tensor::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CsvOptions {
    /// Which column is the label: a whole number. The others are features: finite numbers.
    pub label: LabelColumn,
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
}

impl Default for CsvOptions {
    /// The label last, no header, commas; at most 2²⁸ numbers (1 GiB), 65,536 columns, 1 MiB a line and 2²⁰ lines that are no
    /// rows.
    fn default() -> Self {
        Self {
            label: LabelColumn::Last,
            header: false,
            delimiter: b',',
            max_rows: 1 << 28,
            max_columns: 1 << 16,
            max_values: 1 << 28,
            max_line_bytes: 1 << 20,
            max_idle_lines: 1 << 20,
        }
    }
}

impl CsvOptions {
    /// The same with another column as the label.
    #[must_use]
    pub const fn with_label(mut self, label: LabelColumn) -> Self {
        self.label = label;
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
}

/// Reads a CSV file. One compressed with gzip is recognised by its first bytes, whatever its name.
///
/// # Errors
/// [`DataError`] says what is wrong and where. Truncated and damaged compressed files are errors, not shorter data.
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Dataset, DataError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| io_error(path, &error))?;
    read_csv_from(file, path, options)
}

/// Reads CSV data from anywhere. `name` stands for the file in errors.
///
/// # Errors
/// As [`read_csv`].
pub fn read_csv_from(
    mut source: impl Read,
    name: impl AsRef<Path>,
    options: &CsvOptions,
) -> Result<Dataset, DataError> {
    let path = name.as_ref();
    let mut head = Vec::with_capacity(BYTE_ORDER_MARK.len());
    let read = source.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut head);
    read.map_err(|error| io_error(path, &error))?;
    if head == BYTE_ORDER_MARK {
        head.clear();
    }
    let is_compressed = head.starts_with(&GZIP_MAGIC);
    let source = Cursor::new(head).chain(source);
    if is_compressed {
        // A file may consist of several compressed members; each one's length and checksum are verified.
        Table::read(MultiGzDecoder::new(source), path, options, true)
    } else {
        Table::read(source, path, options, false)
    }
}

/// The data as far as it has been read.
struct Table<'a> {
    path: &'a Path,
    options: &'a CsvOptions,
    /// Columns and the label's place among them, known from the first line on.
    columns: Option<(usize, Option<usize>)>,
    rows: usize,
    features: Vec<f32>,
    labels: Vec<i64>,
}

impl<'a> Table<'a> {
    fn read(
        source: impl Read,
        path: &'a Path,
        options: &'a CsvOptions,
        is_compressed: bool,
    ) -> Result<Dataset, DataError> {
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .delimiter(options.delimiter)
            .from_reader(Lines::new(source));
        let mut table =
            Self { path, options, columns: None, rows: 0, features: Vec::new(), labels: Vec::new() };
        let mut record = ByteRecord::new();
        let mut header = options.header;
        loop {
            reader.get_mut().renew(options.max_line_bytes);
            let more = reader.read_byte_record(&mut record);
            // Lines are handed out one at a time, so the last one read is the one that the record ends in.
            let line = reader.get_ref().line();
            let more = more.map_err(|error| table.read_error(error, line, is_compressed))?;
            table.check_idle(line, more)?;
            if !more {
                return table.finish();
            }
            table.check_columns(record.len(), line)?;
            if !std::mem::take(&mut header) {
                table.push(&record, line)?;
            }
        }
    }

    fn finish(self) -> Result<Dataset, DataError> {
        let Self { path, columns, rows, features, labels, .. } = self;
        let empty = || DataError::Empty { path: path.to_owned() };
        let (columns, label) = columns.filter(|_| rows > 0).ok_or_else(empty)?;
        let width = columns - usize::from(label.is_some());
        Ok(Dataset::from_rows(features, labels, rows, width))
    }

    /// Checks the number of lines that are no rows, of which the last one read may be one.
    fn check_idle(&self, line: u64, last_is_row: bool) -> Result<(), DataError> {
        let limit = self.options.max_idle_lines;
        let idle = line.saturating_sub(self.rows as u64 + u64::from(last_is_row));
        let within = usize::try_from(idle).is_ok_and(|idle| idle <= limit);
        if within { Ok(()) } else { Err(self.too_large(line, "lines without a row", limit)) }
    }

    /// Checks the number of fields of a line against the limit and against the lines before.
    fn check_columns(&mut self, found: usize, line: u64) -> Result<(), DataError> {
        if let Some((expected, _)) = self.columns {
            if found != expected {
                return Err(DataError::Ragged { path: self.path.to_owned(), line, expected, found });
            }
            return Ok(());
        }
        if found > self.options.max_columns {
            return Err(self.too_large(line, "columns", self.options.max_columns));
        }
        let label = match self.options.label {
            LabelColumn::First => Some(0),
            LabelColumn::Last => found.checked_sub(1),
            LabelColumn::Index(index) => Some(index),
            LabelColumn::None => None,
        };
        if let Some(index) = label.filter(|&index| index >= found) {
            let (path, column) = (self.path.to_owned(), index.saturating_add(1));
            return Err(DataError::NoLabelColumn { path, column, columns: found });
        }
        self.columns = Some((found, label));
        Ok(())
    }

    /// Adds a row.
    fn push(&mut self, record: &ByteRecord, line: u64) -> Result<(), DataError> {
        let options = self.options;
        if self.rows == options.max_rows {
            return Err(self.too_large(line, "rows", options.max_rows));
        }
        let label = self.columns.and_then(|(_, label)| label);
        let width = record.len() - usize::from(label.is_some());
        if self.features.len().saturating_add(width) > options.max_values {
            return Err(self.too_large(line, "numbers", options.max_values));
        }
        let reserved = self.features.try_reserve(width).and_then(|()| self.labels.try_reserve(1));
        reserved.map_err(|_| DataError::NoMemory { path: self.path.to_owned(), line })?;
        for (index, field) in record.iter().enumerate() {
            if label == Some(index) {
                let value = self.parse(field, line, index, "a whole number as the label", |_| true)?;
                self.labels.push(value);
            } else {
                let value =
                    self.parse(field, line, index, "a finite number", |value: &f32| value.is_finite())?;
                self.features.push(value);
            }
        }
        self.rows += 1;
        Ok(())
    }

    fn parse<T: std::str::FromStr>(
        &self,
        field: &[u8],
        line: u64,
        index: usize,
        expected: &'static str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<T, DataError> {
        let value = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok()).filter(accept);
        value.ok_or_else(|| DataError::BadField {
            path: self.path.to_owned(),
            line,
            column: index + 1,
            expected,
            found: String::from_utf8_lossy(field).chars().take(MAX_FOUND).collect(),
        })
    }

    fn too_large(&self, line: u64, what: &'static str, limit: usize) -> DataError {
        DataError::TooLarge { path: self.path.to_owned(), line, what, limit }
    }

    /// What a failure to read means.
    fn read_error(&self, error: csv::Error, line: u64, is_compressed: bool) -> DataError {
        let path = || self.path.to_owned();
        let error = match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            // Lines are read as bytes and may have any number of fields, so nothing else is left to go wrong.
            other => return io_error(self.path, &io::Error::other(format!("{other:?}"))),
        };
        if error.get_ref().is_some_and(|inner| inner.is::<LineTooLong>()) {
            return self.too_large(line, "bytes in a line", self.options.max_line_bytes);
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof if is_compressed => DataError::Truncated { path: path() },
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if is_compressed => {
                DataError::Damaged { path: path(), message: error.to_string() }
            }
            _ => io_error(self.path, &error),
        }
    }
}

fn io_error(path: &Path, error: &io::Error) -> DataError {
    DataError::Io { path: PathBuf::from(path), kind: error.kind(), message: error.to_string() }
}
