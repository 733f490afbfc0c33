//! NumPy's `.npz` archives: a zip file with a `.npy` file for each array.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crc32fast::Hasher;
use highwater_files::FileKind;
use highwater_tensor::error::FileError;
use rawzip::path::{EntryPath, ZipFilePath};
use rawzip::{DataDescriptorOutput, ErrorKind, ZipArchiveWriter};

use super::archive::{Archive, ArchiveLimits, Source};
use super::array::Arrays;
use super::atomic::write_atomically;
use super::npy::{NpyLimits, read_npy_from, write_npy_to};
use super::skipped::{Collector, Loaded};
use crate::file_kind;

/// The suffix of entry names.
const SUFFIX: &str = ".npy";

/// Reads the arrays in an `.npz` file, as `numpy.savez` and `numpy.savez_compressed` write them. Other members, such as
/// arrays of strings or objects, are [skipped and listed](Loaded::skipped).
///
/// ```
/// use highwater::io::{Array, Arrays, NpyLimits, read_npz, write_npz};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("all.npz");
/// let arrays = Arrays::from([
///     ("x".to_owned(), Array::from_slice(&[1.0f32, 2.0], [2])?),
///     ("labels".to_owned(), Array::from_slice(&[7i64], [1])?),
/// ]);
/// write_npz(&path, &arrays)?;
/// assert_eq!(read_npz(&path, &NpyLimits::default())?.arrays, arrays);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FileError`] names the problem and its position. For an entry, its name follows the archive's, and offsets count
/// from the entry's beginning. If no array can be read, the first unsupported one is an error.
pub fn read_npz(path: impl AsRef<Path>, limits: &NpyLimits) -> Result<Loaded, FileError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read(&mut { file }, path, limits)
}

/// Reads an `.npz` file from any reader. Errors show `name` as the file.
///
/// # Errors
/// See [`read_npz`].
pub fn read_npz_from(
    mut source: impl Read + Seek,
    name: impl AsRef<Path>,
    limits: &NpyLimits,
) -> Result<Loaded, FileError> {
    read(&mut source, name.as_ref(), limits)
}

fn read(source: &mut dyn Source, path: &Path, limits: &NpyLimits) -> Result<Loaded, FileError> {
    if let Some(problem) = mistaken(source).map_err(|error| FileError::io(path, &error))? {
        return Err(FileError::malformed(path, 0, problem));
    }
    let archive_limits = ArchiveLimits { what: "arrays", entries: limits.arrays, ratio: limits.ratio };
    let archive = Archive::open(source, path, &archive_limits)?;
    let entries = archive.entries();
    if !entries.is_empty() && !entries.iter().any(|entry| entry.name.ends_with(SUFFIX)) {
        let is_pytorch = entries.iter().any(|entry| entry.name.ends_with("data.pkl"));
        let problem = if is_pytorch {
            "this is a file of torch.save: `read_state_dict` reads it"
        } else {
            "this is a zip archive without arrays (.npy)"
        };
        return Err(FileError::malformed(path, 0, problem));
    }
    let (mut collector, mut left) = (Collector::default(), limits.data_bytes);
    for entry in entries {
        let (inside, at) = (&entry.name, entry.offset);
        let Some(name) = inside.strip_suffix(SUFFIX) else {
            collector.skip(inside, "file", format!("its name does not end in {SUFFIX}"));
            continue;
        };
        if let Some(problem) = entry.unsupported() {
            collector.skip(name, "file", problem);
            continue;
        }
        let (named, limits) = (path.join(inside), NpyLimits { data_bytes: left, ..*limits });
        match read_npy_from(archive.contents(entry, &named)?, &named, &limits) {
            Ok(array) => {
                left -= array.bytes().len() as u64;
                if !collector.add(name.to_owned(), array) {
                    return Err(FileError::malformed(path, at, format!("{inside:?} is there twice")));
                }
            }
            Err(error) => collector.skip_unsupported(name, error)?,
        }
    }
    collector.finish()
}

/// Describes a source that is no zip archive, from its first bytes.
fn mistaken(source: &mut dyn Source) -> io::Result<Option<String>> {
    let mut start = Vec::new();
    source.rewind()?;
    source.take(FileKind::START_BYTES as u64).read_to_end(&mut start)?;
    source.rewind()?;
    // A zip archive with or without entries.
    let is_zip = start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06");
    Ok(if is_zip { None } else { file_kind::mistaken_or_text(&start, "an .npz file") })
}

/// Writes arrays as an `.npz` file atomically; see [`write_atomically`].
///
/// # Errors
/// [`FileError::Io`], also for an array of bf16, whose name it contains.
pub fn write_npz(path: impl AsRef<Path>, arrays: &Arrays) -> Result<(), FileError> {
    write_atomically(path, |file| write_npz_to(file, arrays))
}

/// Writes arrays in `.npz` format to any writer, without compression.
///
/// # Errors
/// The errors of `sink`; [`io::ErrorKind::InvalidInput`] with the name of an array of bf16, which NumPy does not
/// support.
pub fn write_npz_to(sink: impl Write, arrays: &Arrays) -> io::Result<()> {
    let mut archive = ZipArchiveWriter::new(sink);
    for (name, array) in arrays {
        let inside = format!("{name}{SUFFIX}");
        // Names that are not valid paths are written byte by byte.
        let path = match ZipFilePath::from_str(&inside).as_str() == inside {
            true => EntryPath::conformant(inside),
            false => EntryPath::verbatim(inside.into_bytes()),
        };
        // No timestamps: the same arrays give the same file.
        let (file, _) = archive.new_file(path).start().map_err(io_error)?;
        let mut summed = ChecksumWriter { sink: file, sum: Hasher::new(), bytes: 0 };
        write_npy_to(&mut summed, array).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => io::Error::new(error.kind(), format!("{name}: {error}")),
            _ => error,
        })?;
        let ChecksumWriter { sink: file, sum, bytes } = summed;
        file.finish(DataDescriptorOutput::new(sum.finalize(), bytes)).map_err(io_error)?;
    }
    archive.finish().map_err(io_error)?;
    Ok(())
}

/// Returns the error of the sink, or the problem with the names.
fn io_error(error: rawzip::Error) -> io::Error {
    match error.into_kind() {
        ErrorKind::IO(error) => error,
        kind => io::Error::new(io::ErrorKind::InvalidInput, rawzip::Error::from(kind)),
    }
}

/// Counts the written bytes and computes their checksum.
struct ChecksumWriter<W> {
    sink: W,
    sum: Hasher,
    bytes: u64,
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.sum.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// Reads from bytes in memory, for the fuzz targets.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn read_npz_bytes(data: &[u8], limits: &NpyLimits) -> Result<Loaded, FileError> {
    read_npz_from(io::Cursor::new(data), "fuzz", limits)
}
