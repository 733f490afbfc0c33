//! What can be wrong with files of numbers.

use std::io;
use std::path::{Path, PathBuf};

use crate::shape::{DType, MAX_RANK};

/// A file of numbers that could not be read or written. Offsets count bytes from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file could not be opened, read or written.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What kind of failure.
        kind: io::ErrorKind,
        /// What the system said.
        message: String,
    },
    /// The file ends too early.
    #[error("{}: the file ends within {what}, which begins at offset {offset}: it is truncated", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the part that is cut off begins.
        offset: u64,
        /// That part.
        what: String,
    },
    /// The contents contradict the format or themselves.
    #[error("{}: at offset {offset}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// More than was allowed for.
    #[error("{}: at offset {offset}: {found} {what}, more than the {limit} allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What there is too much of.
        what: &'static str,
        /// How much the file claims to hold.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// An element type that tensors do not have.
    #[error("{}: {name} is of type {dtype:?}, which tensors do not have", path.display())]
    UnsupportedDType {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The type, as the file calls it.
        dtype: String,
    },
    /// A shape with more axes than tensors have.
    #[error("{}: {name} has {axes} axes, and tensors have at most {MAX_RANK}", path.display())]
    TooManyAxes {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The number of its axes.
        axes: usize,
    },
    /// A number that is beyond the element type which holds the others.
    #[error("{}: at offset {offset}: the element of {name} at {index:?} is {value}, which {dtype} does not hold", path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// Where it is in the file.
        offset: u64,
        /// The array's name.
        name: String,
        /// Where it is in the array, axis by axis.
        index: Vec<usize>,
        /// The number.
        value: u64,
        /// The element type.
        dtype: DType,
    },
    /// A parameter has a name under which something else is read back.
    #[error("{}: no parameter can be saved as {name:?}: names that begin with {prefix:?} are kept for {of}", path.display())]
    ReservedName {
        /// The file.
        path: PathBuf,
        /// The parameter's name.
        name: String,
        /// What no parameter's name may begin with.
        prefix: &'static str,
        /// What such names are kept for.
        of: &'static str,
    },
    /// The file is whole, but holds no such thing.
    #[error("{}: there is no {what} in it", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
}

impl FileError {
    /// Returns the error for a failed system call on a file.
    #[must_use]
    pub fn io(path: &Path, error: &io::Error) -> Self {
        Self::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }

    /// Returns the error for a failure to read `what`, which begins at `offset`: [`Truncated`](Self::Truncated) at the end of the
    /// file.
    #[must_use]
    pub fn read(path: &Path, offset: u64, what: impl Into<String>, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                Self::Truncated { path: path.to_owned(), offset, what: what.into() }
            }
            _ => Self::io(path, error),
        }
    }

    /// Returns [`Malformed`](Self::Malformed).
    #[must_use]
    pub fn malformed(path: &Path, offset: u64, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), offset, problem: problem.into() }
    }
}
