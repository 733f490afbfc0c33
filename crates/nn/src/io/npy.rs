//! NumPy's `.npy` format (NEP 1): a magic string, a header that is a Python dictionary, then the elements.

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
use highwater_files::gzip;

/// Limits for NumPy files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpyLimits {
    /// Maximum number of bytes of a header.
    pub header_bytes: u64,
    /// Maximum number of bytes of the elements of all arrays.
    pub data_bytes: u64,
    /// Maximum number of entries of an archive.
    pub arrays: usize,
    /// Maximum number of decompressed bytes per byte of a compressed archive. 64 MiB are always allowed.
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
/// Supports booleans, integers and floats in either byte order, in row-major (C) and column-major (Fortran) order.
/// Unsupported integer types become the narrowest supported type that holds all their values: `i32` for `int8`, `int16`
/// and `uint16`. `uint64` becomes `i64` if all its values are below 2⁶³.
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
/// [`FileError`] names the problem and its position: [`FileError::UnsupportedDType`] for complex numbers, dates, texts,
/// objects and structured types, [`FileError::OutOfRange`] for the first element of at least 2⁶³.
pub fn read_npy(path: impl AsRef<Path>, limits: &NpyLimits) -> Result<Array, FileError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read_npy_from(BufReader::new(file), path, limits)
}

/// Reads a `.npy` file from any reader. Errors show `name` as the file.
///
/// # Errors
/// See [`read_npy`].
pub fn read_npy_from(
    mut source: impl Read,
    name: impl AsRef<Path>,
    limits: &NpyLimits,
) -> Result<Array, FileError> {
    read_from(&mut source, name.as_ref(), limits)
}

/// As [`read_npy_from`]. Not generic, so that it is compiled once.
fn read_from(mut source: &mut dyn Read, path: &Path, limits: &NpyLimits) -> Result<Array, FileError> {
    let Header { stored, shape, data_start } = Header::read(&mut source, path, limits)?;
    // Tensors need at least as many bytes as the file.
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
            "there are bytes after the last element",
        ));
    }
    Ok(array)
}

/// Writes an array as a `.npy` file atomically; see [`write_atomically`].
///
/// # Errors
/// [`FileError::Io`], also for bf16, which NumPy does not support.
pub fn write_npy(path: impl AsRef<Path>, array: &Array) -> Result<(), FileError> {
    write_atomically(path, |file| write_npy_to(file, array))
}

/// Writes an array in `.npy` format to any writer.
///
/// # Errors
/// The errors of `sink`; [`io::ErrorKind::InvalidInput`] for bf16, which NumPy does not support.
pub fn write_npy_to(mut sink: impl Write, array: &Array) -> io::Result<()> {
    sink.write_all(&header::text(array)?)?;
    sink.write_all(array.bytes())
}
