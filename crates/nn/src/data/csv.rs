//! A CSV reader for plain and compressed files, in bounded memory.

mod columns;
mod delimiter;
mod encoding;
mod field;
mod options;
mod table;

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, ReaderBuilder, Trim};
use highwater_tensor::error::DataError;

pub use self::encoding::Encoding;
#[cfg(feature = "images")]
pub(super) use self::encoding::list;
pub use self::options::{ClassNames, Column, CsvOptions, LabelColumn, Missing, TargetColumns};
use self::table::Table;
use super::array_dataset::ArrayDataset;
use super::lines::{LineTooLong, Lines};
use crate::file_kind;
use highwater_files::gzip::{self, Gzip, RatioExceeded};

/// Number of bytes to detect the delimiter from.
const START_BYTES: u64 = 1 << 16;

/// The byte-order mark that spreadsheets write before UTF-8. The parser skips it only if one read returns it together
/// with the following bytes.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a CSV file into a data set. Recognizes gzip compression by the first bytes.
///
/// # Errors
/// [`DataError`] names the problem and its position. Truncated or damaged compressed files are errors.
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<ArrayDataset, DataError> {
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
) -> Result<ArrayDataset, DataError> {
    read_from(&mut source, name.as_ref(), options)
}

/// As [`read_csv_from`]. Not generic, so that it is compiled once.
fn read_from(source: &mut dyn Read, path: &Path, options: &CsvOptions) -> Result<ArrayDataset, DataError> {
    let mut head = Vec::with_capacity(BYTE_ORDER_MARK.len());
    let read = (&mut *source).take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut head);
    read.map_err(|error| io_error(path, &error))?;
    if head == BYTE_ORDER_MARK {
        head.clear();
    }
    let is_compressed = head.starts_with(&gzip::MAGIC);
    let source = Cursor::new(head).chain(source);
    if is_compressed {
        Reading { path, options, is_compressed }.read(Gzip::new(source, options.max_ratio))
    } else {
        Reading { path, options, is_compressed }.read(source)
    }
}

/// A file that is being read.
struct Reading<'a> {
    path: &'a Path,
    options: &'a CsvOptions,
    is_compressed: bool,
}

impl Reading<'_> {
    fn read(&self, mut source: impl Read) -> Result<ArrayDataset, DataError> {
        let mut start = Vec::new();
        let delimiter = match self.options.delimiter {
            Some(delimiter) => delimiter,
            None => {
                let read = source.by_ref().take(START_BYTES).read_to_end(&mut start);
                read.map_err(|error| self.io_error(&error))?;
                delimiter::detect(&start)
            }
        };
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .delimiter(delimiter)
            .from_reader(Lines::new(Cursor::new(start).chain(source)));
        self.read_rows(&mut reader).map_err(|error| {
            // For a file of another kind, the text before the first comma is not informative.
            let unclear = !matches!(
                error,
                DataError::Io { .. } | DataError::Truncated { .. } | DataError::Damaged { .. }
            );
            let problem = unclear.then(|| file_kind::mistaken(reader.get_mut().start(), "a CSV file"));
            match problem.flatten() {
                Some(problem) => DataError::WrongFile { path: self.path.to_owned(), problem },
                None => error,
            }
        })
    }

    fn read_rows(&self, reader: &mut csv::Reader<Lines<impl Read>>) -> Result<ArrayDataset, DataError> {
        let mut table = Table::new(self.path, self.options);
        let mut record = ByteRecord::new();
        let mut header = self.options.has_header();
        loop {
            reader.get_mut().renew(self.options.max_line_bytes);
            let more = reader.read_byte_record(&mut record);
            // `Lines` returns one line per read, so the last line that it returned is the one in which the record ends.
            let line = reader.get_ref().line();
            let more = more.map_err(|error| self.read_error(error, line))?;
            table.check_idle(line, more)?;
            if !more {
                return table.finish(line);
            }
            table.check_columns(&record, line)?;
            if !std::mem::take(&mut header) {
                table.push(&record, line)?;
            }
        }
    }

    /// Converts an error of the CSV parser.
    fn read_error(&self, error: csv::Error, line: u64) -> DataError {
        let error = match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            // The parser reads bytes and accepts any number of fields, so no other error remains.
            other => return io_error(self.path, &io::Error::other(format!("{other:?}"))),
        };
        if error.get_ref().is_some_and(|inner| inner.is::<LineTooLong>()) {
            let (path, what, limit) = (self.path.to_owned(), "bytes in a line", self.options.max_line_bytes);
            return DataError::TooLarge { path, line, what, limit };
        }
        self.io_error(&error)
    }

    fn io_error(&self, error: &io::Error) -> DataError {
        let path = || self.path.to_owned();
        if let Some(RatioExceeded { ratio }) = RatioExceeded::of(error) {
            return DataError::TooDense { path: path(), ratio };
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof if self.is_compressed => DataError::Truncated { path: path() },
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.is_compressed => {
                DataError::Damaged { path: path(), message: error.to_string() }
            }
            _ => io_error(self.path, error),
        }
    }
}

fn io_error(path: &Path, error: &io::Error) -> DataError {
    DataError::Io { path: PathBuf::from(path), kind: error.kind(), message: error.to_string() }
}
