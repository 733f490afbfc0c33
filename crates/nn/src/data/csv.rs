//! A CSV reader for plain and compressed files, in bounded memory.

mod options;

use std::collections::TryReserveError;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, ReaderBuilder, Trim};
use highwater_tensor::error::DataError;

pub use self::options::{CsvOptions, LabelColumn, TargetColumns};
use super::answers::Answers;
use super::dataset::Dataset;
use super::lines::{LineTooLong, Lines};
use crate::file_kind;
use highwater_tracking::gzip::{self, Gzip, RatioExceeded};

/// Maximum number of characters of an invalid field that an error repeats.
const MAX_FOUND: usize = 40;

/// The byte-order mark that spreadsheets write before UTF-8. The parser skips it only if one read returns it together
/// with the following bytes.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a CSV file into a data set. Recognizes gzip compression by the first bytes.
///
/// # Errors
/// [`DataError`] names the problem and its position. Missing values and truncated or damaged compressed files are
/// errors.
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Dataset, DataError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| io_error(path, &error))?;
    read_csv_from(file, path, options)
}

/// Reads CSV data from any reader. Errors show `name` as the file.
///
/// # Errors
/// See [`read_csv`].
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
    let is_compressed = head.starts_with(&gzip::MAGIC);
    let source = Cursor::new(head).chain(source);
    if is_compressed {
        Table::read(Gzip::new(source, options.max_ratio), path, options, true)
    } else {
        Table::read(source, path, options, false)
    }
}

/// The data that was read so far.
struct Table<'a> {
    path: &'a Path,
    options: &'a CsvOptions,
    /// Set by the first line.
    columns: Option<Columns>,
    rows: usize,
    features: Vec<f32>,
    answers: Answers,
}

/// The role of each column.
struct Columns {
    count: usize,
    features: Vec<usize>,
    /// The column of the label, or the columns of the targets in the requested order.
    answers: Vec<usize>,
}

impl Columns {
    /// Returns the number of values per row. It exceeds the number of fields if a column is a target twice.
    const fn total(&self) -> usize {
        self.features.len() + self.answers.len()
    }
}

/// A field and its position.
struct Field<'a> {
    bytes: &'a [u8],
    path: &'a Path,
    line: u64,
    /// The number of the data row, from 1.
    row: usize,
    index: usize,
}

impl Field<'_> {
    fn finite(&self, expected: &'static str) -> Result<f32, DataError> {
        self.parse(expected, |text| text.parse().ok().filter(|value: &f32| value.is_finite()))
    }

    /// Parses a label: a whole number, which some programs write as a float: `1.0`.
    fn label(&self) -> Result<i64, DataError> {
        self.parse("a whole number as the label", |text| {
            let of_float = || {
                let value: f64 = text.parse().ok()?;
                // A 64-bit float represents all whole numbers up to this one.
                (value.fract() == 0.0 && value.abs() <= 2_f64.powi(53)).then_some(value as i64)
            };
            text.parse().ok().or_else(of_float)
        })
    }

    fn parse<T>(&self, expected: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T, DataError> {
        let (path, line, column) = (|| self.path.to_owned(), self.line, self.index + 1);
        if self.bytes.is_empty() {
            return Err(DataError::MissingValue { path: path(), line, row: self.row, column });
        }
        let value = std::str::from_utf8(self.bytes).ok().and_then(parse);
        value.ok_or_else(|| {
            let found = String::from_utf8_lossy(self.bytes).chars().take(MAX_FOUND).collect();
            DataError::BadField { path: path(), line, column, expected, found }
        })
    }
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
        let table =
            Self { path, options, columns: None, rows: 0, features: Vec::new(), answers: Answers::default() };
        table.rows_of(&mut reader, is_compressed).map_err(|error| {
            // For a file of another kind, the text before the first comma is not informative.
            let unclear = !matches!(
                error,
                DataError::Io { .. } | DataError::Truncated { .. } | DataError::Damaged { .. }
            );
            let problem = unclear.then(|| file_kind::mistaken(reader.get_mut().start(), "a CSV file"));
            match problem.flatten() {
                Some(problem) => DataError::WrongFile { path: path.to_owned(), problem },
                None => error,
            }
        })
    }

    /// Reads all rows.
    fn rows_of(
        mut self,
        reader: &mut csv::Reader<Lines<impl Read>>,
        is_compressed: bool,
    ) -> Result<Dataset, DataError> {
        let options = self.options;
        let mut record = ByteRecord::new();
        let mut header = options.header;
        loop {
            reader.get_mut().renew(options.max_line_bytes);
            let more = reader.read_byte_record(&mut record);
            // `Lines` returns one line per read, so the last line that it returned is the one in which the record ends.
            let line = reader.get_ref().line();
            let more = more.map_err(|error| self.read_error(error, line, is_compressed))?;
            self.check_idle(line, more)?;
            if !more {
                return self.finish();
            }
            self.check_columns(record.len(), line)?;
            if !std::mem::take(&mut header) {
                self.push(&record, line)?;
            }
        }
    }

    fn finish(self) -> Result<Dataset, DataError> {
        let Self { path, columns, rows, features, answers, .. } = self;
        let empty = || DataError::Empty { path: path.to_owned() };
        let columns = columns.filter(|_| rows > 0).ok_or_else(empty)?;
        Ok(Dataset::from_rows(features, answers, rows, columns.features.len()))
    }

    /// Checks the number of lines without a row. The last line may be one of them.
    fn check_idle(&self, line: u64, last_is_row: bool) -> Result<(), DataError> {
        let limit = self.options.max_idle_lines;
        let idle = line.saturating_sub(self.rows as u64 + u64::from(last_is_row));
        let within = usize::try_from(idle).is_ok_and(|idle| idle <= limit);
        if within { Ok(()) } else { Err(self.too_large(line, "lines without a row", limit)) }
    }

    /// Checks the number of fields of a line against the limit and the previous lines.
    fn check_columns(&mut self, found: usize, line: u64) -> Result<(), DataError> {
        if let Some(&Columns { count: expected, .. }) = self.columns.as_ref() {
            if found != expected {
                return Err(DataError::Ragged { path: self.path.to_owned(), line, expected, found });
            }
            return Ok(());
        }
        if found > self.options.max_columns {
            return Err(self.too_large(line, "columns", self.options.max_columns));
        }
        let answers = self.answer_columns(found)?;
        if self.options.targets.is_some() && !answers.is_empty() {
            self.answers = Answers::Targets { values: Vec::new(), width: answers.len() };
        }
        let mut is_feature = vec![true; found];
        answers.iter().for_each(|&index| is_feature[index] = false);
        let features = (0..found).filter(|&index| is_feature[index]).collect();
        self.columns = Some(Columns { count: found, features, answers });
        Ok(())
    }

    /// Returns the label or target columns, for `count` columns.
    fn answer_columns(&self, count: usize) -> Result<Vec<usize>, DataError> {
        let missing = |what, index: usize| {
            let (path, column) = (self.path.to_owned(), index.saturating_add(1));
            DataError::NoColumn { path, what, column, columns: count }
        };
        if let Some(targets) = &self.options.targets {
            return targets.indices(count).map_err(|index| missing("a target", index));
        }
        let label = match self.options.label {
            LabelColumn::First => 0,
            LabelColumn::Last => count.saturating_sub(1),
            LabelColumn::Index(index) => index,
            LabelColumn::None => return Ok(Vec::new()),
        };
        if label < count { Ok(vec![label]) } else { Err(missing("the label", label)) }
    }

    /// Appends a row.
    fn push(&mut self, record: &ByteRecord, line: u64) -> Result<(), DataError> {
        let options = self.options;
        if self.rows == options.max_rows {
            return Err(self.too_large(line, "rows", options.max_rows));
        }
        // This line or the previous one has set the columns.
        let Some(columns) = &self.columns else { return Ok(()) };
        let (values, numbers) = match &self.answers {
            Answers::Labels(_) => (self.features.len(), columns.features.len()),
            Answers::Targets { values, .. } => (self.features.len() + values.len(), columns.total()),
        };
        if values.saturating_add(numbers) > options.max_values {
            return Err(self.too_large(line, "numbers", options.max_values));
        }
        let reserved =
            reserve(&mut self.features, columns.features.len()).and_then(|()| match &mut self.answers {
                Answers::Labels(labels) => reserve(labels, 1),
                Answers::Targets { values, width } => reserve(values, *width),
            });
        reserved.map_err(|_| DataError::NoMemory { path: self.path.to_owned(), line })?;
        let row = self.rows + 1;
        let field = |&index: &usize| Field { bytes: &record[index], path: self.path, line, row, index };

        for field in columns.features.iter().map(field) {
            self.features.push(field.finite("a finite number")?);
        }
        for field in columns.answers.iter().map(field) {
            match &mut self.answers {
                Answers::Labels(labels) => labels.push(field.label()?),
                Answers::Targets { values, .. } => values.push(field.finite("a finite number as a target")?),
            }
        }
        // Field errors come first: they show that the delimiter is wrong.
        if columns.features.is_empty() {
            return Err(DataError::NoFeatures { path: self.path.to_owned(), columns: columns.count });
        }
        self.rows += 1;
        Ok(())
    }

    fn too_large(&self, line: u64, what: &'static str, limit: usize) -> DataError {
        DataError::TooLarge { path: self.path.to_owned(), line, what, limit }
    }

    /// Converts an error of the CSV parser.
    fn read_error(&self, error: csv::Error, line: u64, is_compressed: bool) -> DataError {
        let path = || self.path.to_owned();
        let error = match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            // The parser reads bytes and accepts any number of fields, so no other error remains.
            other => return io_error(self.path, &io::Error::other(format!("{other:?}"))),
        };
        if error.get_ref().is_some_and(|inner| inner.is::<LineTooLong>()) {
            return self.too_large(line, "bytes in a line", self.options.max_line_bytes);
        }
        if let Some(RatioExceeded { ratio }) = RatioExceeded::of(&error) {
            return DataError::TooDense { path: path(), ratio };
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

/// Reserves capacity for `more` values plus half of that, so a table is never much larger than its text.
fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<(), TryReserveError> {
    if values.capacity() - values.len() >= more {
        return Ok(());
    }
    values.try_reserve_exact(more.max(values.len() / 2))
}

fn io_error(path: &Path, error: &io::Error) -> DataError {
    DataError::Io { path: PathBuf::from(path), kind: error.kind(), message: error.to_string() }
}
