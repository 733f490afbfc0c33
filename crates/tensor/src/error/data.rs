//! Errors of external data files.

use std::io;
use std::path::PathBuf;

use bfc_core::printable;

/// An error while reading or loading data. Every error of a file names the file. Errors about the contents name the
/// position. Lines and columns count from 1; a column is a field of the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be opened or read.
    #[error("{}: {message}", printable(path.display()), message = printable(message))]
    Io {
        /// The file.
        path: PathBuf,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's error message.
        message: String,
    },
    /// The file ends before its declared length, or a compressed stream is incomplete.
    #[error("{}: the data ends too early: the file is truncated", printable(path.display()))]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// A compressed file is corrupt, for instance because its checksum is wrong.
    #[error("{}: the compressed data is damaged: {message}", printable(path.display()), message = printable(message))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The decoder's error message.
        message: String,
    },
    /// The file contains no data.
    #[error("{}: the file contains no data", printable(path.display()))]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A field has no value.
    #[error("{}: line {line}, {}: the value is missing in row {row}; {hint}", printable(path.display()), column_name(*column, name))]
    MissingValue {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The row of data, without the header and blank lines.
        row: usize,
        /// The field of the line.
        column: usize,
        /// The name of the column; empty without a header.
        name: String,
        /// A suggested fix.
        hint: &'static str,
    },
    /// A field does not parse as the expected type.
    #[error(
        "{}: line {line}, {}: expected {expected}, found {found:?}{}",
        printable(path.display()), column_name(*column, name), suffix(hint)
    )]
    BadField {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The field of the line.
        column: usize,
        /// The name of the column; empty without a header.
        name: String,
        /// The expected content of the field.
        expected: &'static str,
        /// The beginning of the actual content.
        found: String,
        /// A suggested fix; may be empty.
        hint: &'static str,
    },
    /// A field is none of the classes or categories that the options or another data set fix.
    #[error(
        "{}: line {line}, {}: {found:?} is not one of {known}; add it to the data set that fixes the names, or remove the row",
        printable(path.display()), column_name(*column, name), known = printable(known)
    )]
    UnknownCategory {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The field of the line.
        column: usize,
        /// The name of the column; empty without a header.
        name: String,
        /// The beginning of the actual content.
        found: String,
        /// The first known names.
        known: String,
    },
    /// A line has more or fewer fields than the preceding lines.
    #[error("{}: line {line} has {found} columns, but the preceding lines have {expected}", printable(path.display()))]
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
    /// All values of a column are missing, so that it has no mean.
    #[error(
        "{}: {}: all values are missing, so there is no mean to fill in; ignore the column or fill it with a constant",
        printable(path.display()), column_name(*column, name)
    )]
    NoMean {
        /// The file.
        path: PathBuf,
        /// The column, counted from 1.
        column: usize,
        /// The name of the column; empty without a header.
        name: String,
    },
    /// A column that the options name by its number does not exist.
    #[error("{}: expected {what} in column {column}, but the file has {columns} columns", printable(path.display()))]
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
    /// The header has no column of this name.
    #[error("{}: no column is named {name:?}; the columns are {columns}", printable(path.display()), columns = printable(columns))]
    NoNamedColumn {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// The first names of the header.
        columns: String,
    },
    /// A column cannot have the role that the options give it.
    #[error("{}: {}: {problem}", printable(path.display()), column_name(*column, name))]
    BadColumn {
        /// The file.
        path: PathBuf,
        /// The column, counted from 1.
        column: usize,
        /// The name of the column; empty without a header.
        name: String,
        /// The problem and a suggested fix.
        problem: &'static str,
    },
    /// The file has other feature columns than the data set whose encoding it should have.
    #[error(
        "{}: the file has {found} feature columns, but the data set of `with_encoding_of` has {expected}; read both with \
         the same options", printable(path.display())
    )]
    OtherColumns {
        /// The file.
        path: PathBuf,
        /// The number of feature columns of the other data set.
        expected: usize,
        /// The number of feature columns of this file.
        found: usize,
    },
    /// No features remain: all columns are labels, targets or ignored.
    #[error(
        "{}: all {columns} columns are labels, targets or ignored; leave at least one for features", printable(path.display())
    )]
    NoFeatures {
        /// The file.
        path: PathBuf,
        /// The number of columns in the file.
        columns: usize,
    },
    /// The data exceeds a limit.
    #[error("{}: line {line}: more than the {limit} {what} allowed", printable(path.display()))]
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
    #[error("{}: more than the {limit} bytes allowed", printable(path.display()))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file exceeds the limit on elements.
    #[error("{}: more than the {limit} elements allowed", printable(path.display()))]
    TooManyElements {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A compressed file exceeds the limit on its compression ratio.
    #[error("{}: the file decompresses to more than {ratio} times its size, the limit", printable(path.display()))]
    TooDense {
        /// The file.
        path: PathBuf,
        /// The limit on decompressed bytes per compressed byte.
        ratio: u64,
    },
    /// The file has another format.
    #[error("{}: {problem}", printable(path.display()), problem = printable(problem))]
    WrongFile {
        /// The file.
        path: PathBuf,
        /// The actual format and a suggested fix.
        problem: String,
    },
    /// The file is not in the IDX format, or has another element type or rank than expected.
    #[error("{}: not an IDX file of the expected kind: {message}", printable(path.display()), message = printable(message))]
    NotIdx {
        /// The file.
        path: PathBuf,
        /// The violated expectation.
        message: String,
    },
    /// The file is not valid UTF-8.
    #[error("{}: invalid UTF-8 at byte {offset}", printable(path.display()))]
    NotText {
        /// The file.
        path: PathBuf,
        /// The offset of the first invalid byte.
        offset: u64,
    },
    /// The host has too little memory for the data.
    #[error("{}: line {line}: not enough host memory for the data", printable(path.display()))]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// The line that did not fit.
        line: u64,
    },
    /// A line of a file is not in the expected form, or could not be encoded.
    #[error("{}: line {line}, byte {offset}: {problem}", printable(path.display()), problem = printable(problem))]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The offset of the problem in the file, in bytes.
        offset: u64,
        /// The violated rule.
        problem: String,
    },
    /// No sample of a file has a target.
    #[error(
        "{}: none of {samples} samples has a target within {max_tokens} tokens; allow more tokens", printable(path.display())
    )]
    NoTargets {
        /// The file.
        path: PathBuf,
        /// The number of samples.
        samples: usize,
        /// The most tokens of a sample.
        max_tokens: usize,
    },
    /// A file is not a readable image.
    #[error("{}: cannot decode the image: {message}; only PNG and JPEG files are supported", printable(path.display()), message = printable(message))]
    Image {
        /// The file.
        path: PathBuf,
        /// The decoder's error message.
        message: String,
    },
    /// An image exceeds the limit on pixels.
    #[error("{}: {width} x {height} pixels are more than the {limit} allowed", printable(path.display()))]
    TooManyPixels {
        /// The file.
        path: PathBuf,
        /// The width of the image.
        width: u32,
        /// The height of the image.
        height: u32,
        /// The limit on width times height.
        limit: u64,
    },
    /// A folder exceeds the limit on files.
    #[error("{}: more than the {limit} files allowed", printable(path.display()))]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// A folder has no images in folders of classes.
    #[error("{}: no images; expected files like CLASS/NAME.png or CLASS/NAME.jpg", printable(path.display()))]
    NoImages {
        /// The folder.
        path: PathBuf,
    },
    /// A folder is none of the classes that the options fix.
    #[error("{}: the folder is not one of the classes {known}", printable(path.display()), known = printable(known))]
    UnknownClass {
        /// The folder.
        path: PathBuf,
        /// The first known names.
        known: String,
    },

    // Loading.
    /// A data set or a collation panicked while it read a batch.
    #[error("batch {batch}: the data set panicked: {message}", message = printable(message))]
    Panicked {
        /// The number of the batch in its pass.
        batch: usize,
        /// The message of the panic.
        message: String,
    },
    /// The system could not start a thread.
    #[error("cannot start data worker {worker} of {count}: {message}; use fewer workers", message = printable(message))]
    NoWorker {
        /// The worker, counted from 0.
        worker: usize,
        /// The number of workers.
        count: usize,
        /// The system's error message.
        message: String,
    },
    /// The host has too little memory for a random order of the samples.
    #[error("not enough host memory for a random order of {samples} samples")]
    NoOrder {
        /// The number of samples.
        samples: usize,
    },
}

/// Describes a column by its number and its name.
fn column_name(column: usize, name: &str) -> String {
    if name.is_empty() {
        format!("column {column}")
    } else {
        format!("column {column} ({})", printable(name))
    }
}

/// Formats a hint as the end of a message; empty without a hint.
fn suffix(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("; {hint}") }
}
