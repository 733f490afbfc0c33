//! NumPy's format for one array (NEP 1): a magic string, a header that is a Python dictionary, then the elements.

mod header;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use highwater_tensor::error::FileError;

use self::header::Header;
use super::array::Array;
use super::atomic::write_atomically;
use super::stored::Place;
use highwater_tracking::gzip;

/// What a file may hold at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpyLimits {
    /// Bytes of a header.
    pub header_bytes: u64,
    /// Bytes of the elements, of all arrays together.
    pub data_bytes: u64,
    /// Files in an archive.
    pub arrays: usize,
    /// Decompressed bytes for each byte of a compressed archive. Up to 64 MiB are always read.
    pub ratio: u64,
}

impl Default for NpyLimits {
    /// Headers of 64 KiB, 64 GiB of elements, 10,000 arrays, and a ratio of 256.
    fn default() -> Self {
        Self { header_bytes: 64 << 10, data_bytes: 64 << 30, arrays: 10_000, ratio: gzip::RATIO }
    }
}

/// Reads the array in a `.npy` file, as `numpy.save` writes it.
///
/// Elements may be booleans, integers and floats, in either byte order, in C's order or in Fortran's. An integer type that tensors do
/// not have becomes the narrowest type that holds all its values: `i32` for `int8`, `int16` and `uint16`, and `i64` for `uint32`.
/// `uint64` becomes `i64` if all its values are below 2⁶³.
///
/// ```
/// use highwater::io::{Array, NpyLimits, read_npy, write_npy};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("x.npy");
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0], [3])?;
/// write_npy(&path, &x)?;
/// assert_eq!(read_npy(&path, &NpyLimits::default())?, x);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FileError`] says what is wrong and where. [`FileError::UnsupportedDType`] names complex numbers, dates, texts, objects and
/// structured types, [`FileError::OutOfRange`] the first element from 2⁶³ on.
pub fn read_npy(path: impl AsRef<Path>, limits: &NpyLimits) -> Result<Array, FileError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read_npy_from(BufReader::new(file), path, limits)
}

/// Reads from anywhere. `name` stands for the file in errors.
///
/// # Errors
/// See [`read_npy`].
pub fn read_npy_from(
    mut source: impl Read,
    name: impl AsRef<Path>,
    limits: &NpyLimits,
) -> Result<Array, FileError> {
    let path = name.as_ref();
    let Header { stored, shape, data_start } = Header::read(&mut source, path, limits)?;
    // Tensors take at least as much as the file.
    let bytes = shape.checked_elements().and_then(|count| count.checked_mul(stored.kind.dtype().size()));
    let bytes = bytes.map_or(u64::MAX, |bytes| bytes as u64);
    if bytes > limits.data_bytes {
        let (path, what, limit) = (path.to_owned(), "bytes of elements", limits.data_bytes);
        return Err(FileError::TooLarge { path, offset: data_start, what, found: bytes, limit });
    }
    let array = stored.read(&mut source, shape, Place { path, offset: data_start, name: "the array" })?;
    let mut rest = Vec::new();
    source.take(1).read_to_end(&mut rest).map_err(|error| FileError::io(path, &error))?;
    if !rest.is_empty() {
        return Err(FileError::malformed(
            path,
            data_start + (shape.elements() * stored.kind.size()) as u64,
            "there are bytes behind the last element",
        ));
    }
    Ok(array)
}

/// Writes the array as a `.npy` file, whole or not at all: see [`write_atomically`].
///
/// # Errors
/// [`FileError::Io`], also for bf16, which NumPy does not have.
pub fn write_npy(path: impl AsRef<Path>, array: &Array) -> Result<(), FileError> {
    write_atomically(path, |file| write_npy_to(file, array))
}

/// Writes a file's contents.
///
/// # Errors
/// What `sink` says; [`io::ErrorKind::InvalidInput`] for bf16, which NumPy does not have.
pub fn write_npy_to(mut sink: impl Write, array: &Array) -> io::Result<()> {
    sink.write_all(&header::text(array)?)?;
    sink.write_all(array.bytes())
}
