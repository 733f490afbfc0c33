//! What can be wrong with data from outside.

use std::io;
use std::path::PathBuf;

/// Data that could not be read. Every error names the file; those about its contents say where. Lines and columns
/// count from 1, and a column is a field of the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be opened or read.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What kind of failure.
        kind: io::ErrorKind,
        /// What the system said.
        message: String,
    },
    /// A file ends too early: one that says how long it is, or a compressed one.
    #[error("{}: the data ends too early: the file is truncated", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// A compressed file's contents contradict themselves, as when its checksum is wrong.
    #[error("{}: the compressed data is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        message: String,
    },
    /// The file has no data in it.
    #[error("{}: no data in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A field without a value.
    #[error("{}: line {line}, column {column}: the value is missing in row {row}", path.display())]
    MissingValue {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The row of data, without the header and blank lines.
        row: usize,
        /// The field of the line.
        column: usize,
    },
    /// A field that is not the number it should be.
    #[error("{}: line {line}, column {column}: expected {expected}, found {found:?}", path.display())]
    BadField {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The field of the line.
        column: usize,
        /// What the field should be.
        expected: &'static str,
        /// The beginning of what it is.
        found: String,
    },
    /// A line with more or fewer fields than the lines before.
    #[error("{}: line {line} has {found} columns, the lines before have {expected}", path.display())]
    Ragged {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The number of fields in the lines before.
        expected: usize,
        /// The number of fields in this line.
        found: usize,
    },
    /// A column of labels or targets is not there.
    #[error("{}: column {column} should be {what}, but there are {columns} columns", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// The column, counted from 1.
        column: usize,
        /// The number of columns there are.
        columns: usize,
    },
    /// All columns are labels or targets, so rows would have no features.
    #[error("{}: no column is left for features: all {columns} are labels or targets", path.display())]
    NoFeatures {
        /// The file.
        path: PathBuf,
        /// The number of columns there are.
        columns: usize,
    },
    /// More data than was allowed for.
    #[error("{}: line {line}: more than the {limit} {what} allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The line at which the limit was passed.
        line: u64,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A longer file than was allowed for.
    #[error("{}: more than the {limit} bytes allowed", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A file with more elements than was allowed for.
    #[error("{}: more than the {limit} elements allowed", path.display())]
    TooManyElements {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A compressed file with more decompressed bytes for each of its bytes than was allowed for.
    #[error("{}: more than the {ratio} decompressed bytes allowed for each byte of the file", path.display())]
    TooDense {
        /// The file.
        path: PathBuf,
        /// The limit.
        ratio: u64,
    },
    /// A file of another kind.
    #[error("{}: {problem}", path.display())]
    WrongFile {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        problem: String,
    },
    /// A file that is not in the IDX format, or not as it should be.
    #[error("{}: no IDX file of the expected kind: {message}", path.display())]
    NotIdx {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Bytes that are no UTF-8.
    #[error("{}: no text at byte {offset}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is none.
        offset: u64,
    },
    /// The host has no memory left for the data.
    #[error("{}: line {line}: no memory for more data", path.display())]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// The line that did not fit.
        line: u64,
    },
}
