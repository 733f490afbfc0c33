//! Errors of external data files.

use std::io;
use std::path::PathBuf;

/// An error while reading a data file. Every error names the file. Errors about the contents name the
/// position. Lines and columns count from 1; a column is a field of the line.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be opened or read.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's error message.
        message: String,
    },
    /// The file ends before its declared length, or a compressed stream is incomplete.
    #[error("{}: the data ends too early: the file is truncated", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// A compressed file is corrupt, for instance because its checksum is wrong.
    #[error("{}: the compressed data is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The decoder's error message.
        message: String,
    },
    /// The file contains no data.
    #[error("{}: the file contains no data", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A field has no value.
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
    /// A field does not parse as the expected type.
    #[error("{}: line {line}, column {column}: expected {expected}, found {found:?}", path.display())]
    BadField {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The field of the line.
        column: usize,
        /// The expected content of the field.
        expected: &'static str,
        /// The beginning of the actual content.
        found: String,
    },
    /// A line has more or fewer fields than the preceding lines.
    #[error("{}: line {line} has {found} columns, but the preceding lines have {expected}", path.display())]
    Ragged {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The number of fields in the preceding lines.
        expected: usize,
        /// The number of fields in this line.
        found: usize,
    },
    /// The column for labels or targets does not exist.
    #[error("{}: expected {what} in column {column}, but the file has {columns} columns", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The role of the column.
        what: &'static str,
        /// The column, counted from 1.
        column: usize,
        /// The number of columns in the file.
        columns: usize,
    },
    /// All columns are labels or targets, so no features remain.
    #[error("{}: all {columns} columns are labels or targets; leave at least one for features", path.display())]
    NoFeatures {
        /// The file.
        path: PathBuf,
        /// The number of columns in the file.
        columns: usize,
    },
    /// The data exceeds a limit.
    #[error("{}: line {line}: more than the {limit} {what} allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The line that exceeds the limit.
        line: u64,
        /// The unit of the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The file exceeds the limit on its length.
    #[error("{}: more than the {limit} bytes allowed", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file exceeds the limit on elements.
    #[error("{}: more than the {limit} elements allowed", path.display())]
    TooManyElements {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A compressed file exceeds the limit on its compression ratio.
    #[error("{}: the file decompresses to more than {ratio} times its size, the limit", path.display())]
    TooDense {
        /// The file.
        path: PathBuf,
        /// The limit on decompressed bytes per compressed byte.
        ratio: u64,
    },
    /// The file has another format.
    #[error("{}: {problem}", path.display())]
    WrongFile {
        /// The file.
        path: PathBuf,
        /// The actual format and a suggested fix.
        problem: String,
    },
    /// The file is not in the IDX format, or has another element type or rank than expected.
    #[error("{}: not an IDX file of the expected kind: {message}", path.display())]
    NotIdx {
        /// The file.
        path: PathBuf,
        /// The violated expectation.
        message: String,
    },
    /// The file is not valid UTF-8.
    #[error("{}: invalid UTF-8 at byte {offset}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The offset of the first invalid byte.
        offset: u64,
    },
    /// The host has too little memory for the data.
    #[error("{}: line {line}: not enough host memory for the data", path.display())]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// The line that did not fit.
        line: u64,
    },
}

bfc_core::debug_as_message!(DataError);
