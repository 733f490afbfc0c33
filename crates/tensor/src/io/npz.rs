//! NumPy's archives of arrays: a zip file with a `.npy` file for each.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::array::Arrays;
use super::atomic::write_atomically;
use super::error::FileError;
use super::npy::{NpyLimits, read_npy_from, write_npy_to};

/// How the names of the files inside end.
const ENDING: &str = ".npy";

/// Reads the arrays in an `.npz` file, plain or compressed, as `numpy.savez` and `numpy.savez_compressed` write them.
///
/// ```
/// use highwater_tensor::io::{Array, Arrays, NpyLimits, read_npz, write_npz};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("all.npz");
/// let arrays = Arrays::from([
///     ("x".to_owned(), Array::from_slice(&[1.0f32, 2.0], [2])?),
///     ("labels".to_owned(), Array::from_slice(&[7i64], [1])?),
/// ]);
/// write_npz(&path, &arrays)?;
/// assert_eq!(read_npz(&path, &NpyLimits::default())?, arrays);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FileError`] says what is wrong and where: in a file inside, its name stands behind the archive's, and offsets count
/// from its beginning.
pub fn read_npz(path: impl AsRef<Path>, limits: &NpyLimits) -> Result<Arrays, FileError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read_npz_from(BufReader::new(file), path, limits)
}

/// Reads from anywhere. `name` stands for the file in errors.
///
/// # Errors
/// As [`read_npz`].
pub fn read_npz_from(
    source: impl Read + Seek,
    name: impl AsRef<Path>,
    limits: &NpyLimits,
) -> Result<Arrays, FileError> {
    let path = name.as_ref();
    let malformed = |error: zip::result::ZipError| FileError::malformed(path, 0, error.to_string());
    let mut archive = ZipArchive::new(source).map_err(malformed)?;
    if archive.len() > limits.arrays {
        let (path, found, limit) = (path.to_owned(), archive.len() as u64, limits.arrays as u64);
        return Err(FileError::TooLarge { path, offset: 0, what: "arrays", found, limit });
    }
    let (mut arrays, mut left) = (Arrays::new(), limits.data_bytes);
    for index in 0..archive.len() {
        let file = archive.by_index(index).map_err(malformed)?;
        let inside = file.name().map_err(malformed)?.into_owned();
        let at = file.header_start();
        let Some(name) = inside.strip_suffix(ENDING) else {
            return Err(FileError::malformed(path, at, format!("{inside:?} is not called {ENDING}")));
        };
        let limits = NpyLimits { data_bytes: left, ..*limits };
        let array = read_npy_from(file, format!("{}/{inside}", path.display()), &limits)?;
        left -= array.bytes().len() as u64;
        if arrays.insert(name.to_owned(), array).is_some() {
            return Err(FileError::malformed(path, at, format!("{inside:?} is there twice")));
        }
    }
    Ok(arrays)
}

/// Writes the arrays as an `.npz` file, whole or not at all: see [`write_atomically`].
///
/// # Errors
/// [`FileError::Io`].
pub fn write_npz(path: impl AsRef<Path>, arrays: &Arrays) -> Result<(), FileError> {
    write_atomically(path, |file| write_npz_to(file, arrays))
}

/// Writes a file's contents, not compressed.
///
/// # Errors
/// What `sink` says.
pub fn write_npz_to(sink: impl Write, arrays: &Arrays) -> io::Result<()> {
    let mut archive = ZipWriter::new_stream(sink);
    // The same arrays make the same file: no time of writing.
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, array) in arrays {
        let options = options.large_file(array.bytes().len() as u64 > u64::from(u32::MAX / 2));
        archive.start_file(format!("{name}{ENDING}"), options)?;
        write_npy_to(&mut archive, array)?;
    }
    archive.finish()?;
    Ok(())
}

/// Reads from bytes in memory: for the fuzz targets.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn read_npz_bytes(data: &[u8], limits: &NpyLimits) -> Result<Arrays, FileError> {
    read_npz_from(io::Cursor::new(data), "fuzz", limits)
}
