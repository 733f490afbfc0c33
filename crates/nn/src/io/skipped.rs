//! The arrays of a file, and its skipped members.

use highwater_tensor::error::{FileError, Skipped};

use super::array::{Array, Arrays};

/// Maximum number of listed members.
const MAX_LISTED: usize = 10_000;

/// The contents of a file: all readable arrays, and the skipped members.
///
/// ```
/// use highwater::io::{NpyLimits, read_npz};
/// # use highwater::io::{Array, Arrays, write_npz};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("all.npz");
/// # write_npz(&path, &Arrays::from([("w".to_owned(), Array::from_slice(&[1.0f32], [1])?)]))?;
/// let loaded = read_npz(&path, &NpyLimits::default())?;
/// for skipped in &loaded.skipped {
///     eprintln!("skipped {skipped}");
/// }
/// let w = &loaded.arrays["w"];
/// assert_eq!(w.shape().dims(), [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The arrays by name.
    pub arrays: Arrays,
    /// The skipped members, at most 10,000, in the order of the file.
    pub skipped: Vec<Skipped>,
}

/// Collects read arrays and skipped members.
#[derive(Debug, Default)]
pub(super) struct Collector {
    loaded: Loaded,
    /// The error of the first unsupported array.
    first: Option<FileError>,
}

impl Collector {
    /// Adds an array; returns `false` if the name exists.
    pub(super) fn add(&mut self, name: String, array: Array) -> bool {
        self.loaded.arrays.insert(name, array).is_none()
    }

    /// Adds a member that is not an array.
    pub(super) fn skip(&mut self, name: &str, class: impl Into<String>, reason: impl Into<String>) {
        if self.loaded.skipped.len() < MAX_LISTED {
            let (name, class, reason) = (name.to_owned(), class.into(), reason.into());
            self.loaded.skipped.push(Skipped { name, class, reason });
        }
    }

    /// Skips an unsupported array. Returns any other error.
    pub(super) fn skip_unsupported(&mut self, name: &str, error: FileError) -> Result<(), FileError> {
        match &error {
            FileError::UnsupportedDType { dtype, .. } => {
                self.skip(name, dtype.as_str(), "tensors do not have this element type");
            }
            FileError::TooManyAxes { axes, .. } => {
                self.skip(name, "array", format!("it has {axes} axes, more than tensors have"));
            }
            FileError::OutOfRange { index, value, dtype, .. } => {
                self.skip(name, "u64", format!("{dtype} does not hold the element {value} at {index:?}"));
            }
            _ => return Err(error),
        }
        self.first.get_or_insert(error);
        Ok(())
    }

    /// Skips an object of a function or class.
    pub(super) fn skip_object(&mut self, name: &str, class: &str, error: FileError) {
        self.skip(name, class, "only tensors are read");
        self.first.get_or_insert(error);
    }

    /// Returns the contents. Without any array, the first unsupported member is an error.
    pub(super) fn finish(self) -> Result<Loaded, FileError> {
        let is_any = !self.loaded.arrays.is_empty();
        self.finish_if(is_any)
    }

    /// Like [`finish`](Self::finish), for arrays that stay in the file. `is_any` says whether there are some.
    pub(super) fn finish_if(self, is_any: bool) -> Result<Loaded, FileError> {
        match self.first {
            Some(error) if !is_any => Err(error),
            _ => Ok(self.loaded),
        }
    }
}
