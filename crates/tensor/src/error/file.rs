//! Errors of tensor files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::shape::{DType, MAX_RANK};
use bfc_core::printable;

use super::mismatch::list;

/// An error while reading or writing a tensor file. Offsets count bytes from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file could not be opened, read or written.
    #[error("{}: {message}", printable(path.display()), message = printable(message))]
    Io {
        /// The file.
        path: PathBuf,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's error message.
        message: String,
    },
    /// The file ends before its contents do.
    #[error("{}: the file ends within {what}, which begins at offset {offset}: it is truncated", printable(path.display()), what = printable(what))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The offset of the truncated part.
        offset: u64,
        /// The truncated part.
        what: String,
    },
    /// The contents violate the format.
    #[error("{}: at offset {offset}: {problem}", printable(path.display()), problem = printable(problem))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The offset of the violation.
        offset: u64,
        /// The violated rule.
        problem: String,
    },
    /// The contents exceed a limit.
    #[error("{}: at offset {offset}: {found} {what}, more than the {limit} allowed", printable(path.display()))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The offset of the declared size.
        offset: u64,
        /// The unit of the limit.
        what: &'static str,
        /// The size that the file declares.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Tensors do not support this element type.
    #[error("{}: {name} has element type {dtype:?}, which tensors do not support", printable(path.display()), name = printable(name))]
    UnsupportedDType {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The name of the type in the file.
        dtype: String,
    },
    /// A shape has more axes than tensors support.
    #[error("{}: {name} has {axes} axes, but tensors support at most {MAX_RANK}", printable(path.display()), name = printable(name))]
    TooManyAxes {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The number of its axes.
        axes: usize,
    },
    /// A value is out of range for the element type of the array.
    #[error("{}: at offset {offset}: the element of {name} at {index:?} is {value}, which is out of range for {dtype}", printable(path.display()), name = printable(name))]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The offset of the value in the file.
        offset: u64,
        /// The array's name.
        name: String,
        /// The position in the array, one index per axis.
        index: Vec<usize>,
        /// The value.
        value: u64,
        /// The element type.
        dtype: DType,
    },
    /// A parameter's name begins with a reserved prefix.
    #[error("{}: cannot save a parameter as {name:?}: the prefix {prefix:?} is reserved for {of}; rename the parameter", printable(path.display()))]
    ReservedName {
        /// The file.
        path: PathBuf,
        /// The parameter's name.
        name: String,
        /// The reserved prefix.
        prefix: &'static str,
        /// The data that uses the prefix.
        of: &'static str,
    },
    /// The file has no readable tensor of this name.
    #[error("{}: there is no tensor {name:?}{hint}", printable(path.display()), hint = closest.as_ref().map_or_else(String::new, |name| format!(" (did you mean {}?)", printable(name))))]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The most similar name in the file.
        closest: Option<String>,
    },
    /// The files of a sharded checkpoint do not match its index.
    #[error("{}: the checkpoint does not match its index{}", printable(path.display()), parts(missing_files, missing, unlisted))]
    Incomplete {
        /// The index.
        path: PathBuf,
        /// Files that do not exist.
        missing_files: Vec<String>,
        /// Tensors that are not in the file that the index names for them.
        missing: Vec<String>,
        /// Tensors in a file that the index does not list for this file.
        unlisted: Vec<String>,
    },
    /// The file is complete, but lacks the requested contents.
    #[error("{}: the file contains no {what}", printable(path.display()))]
    Absent {
        /// The file.
        path: PathBuf,
        /// The requested contents.
        what: &'static str,
    },
}

bfc_core::debug_as_message!(FileError);

/// Returns the differences between an index and its files.
fn parts(missing_files: &[String], missing: &[String], unlisted: &[String]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        list(f, "missing files", missing_files)?;
        list(f, "missing tensors", missing)?;
        list(f, "tensors that the index does not list there", unlisted)
    })
}

impl FileError {
    /// Returns the error for a failed system call on a file.
    #[must_use]
    pub fn io(path: &Path, error: &io::Error) -> Self {
        Self::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }

    /// Returns the error for a failure to read `what`, which begins at `offset`. At the end of the file this
    /// is [`Truncated`](Self::Truncated).
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
