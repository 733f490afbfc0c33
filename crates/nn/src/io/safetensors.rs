//! The safetensors format (<https://github.com/huggingface/safetensors>): eight bytes with the length of the header,
//! the header as JSON with each tensor's element type, shape and offsets, then the tensors' bytes without gaps.

pub(super) mod header;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use highwater_tensor::error::{FileError, Skipped};

use self::header::{Entry, Header};
use super::array::{Array, Arrays};
use super::skipped::{Collector, Loaded};
use super::stored::{Place, Stored};

/// Limits for safetensors files and PyTorch state dicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafetensorsLimits {
    /// Maximum number of bytes of the header.
    pub header_bytes: u64,
    /// Maximum number of tensors, and of metadata strings.
    pub tensors: usize,
    /// Maximum number of bytes of all tensors, after conversion to supported element types.
    pub data_bytes: u64,
    /// Maximum number of bytes of all tensors per byte of a PyTorch state dict, whose tensors may share elements. 16
    /// MiB are always allowed.
    pub expansion: u64,
}

impl Default for SafetensorsLimits {
    /// A header of 16 MiB, 100,000 tensors, 64 GiB of data, and an expansion of 5.
    fn default() -> Self {
        Self { header_bytes: 16 << 20, tensors: 100_000, data_bytes: 64 << 30, expansion: 5 }
    }
}

/// The contents of a safetensors file.
///
/// ```
/// use highwater::io::{Array, Safetensors, SafetensorsLimits, read_safetensors_from, write_safetensors_to};
/// let mut contents = Safetensors::default();
/// contents.arrays.insert("weight".into(), Array::from_slice(&[1.0f32, 2.0], [2])?);
/// let mut file = Vec::new();
/// write_safetensors_to(&mut file, &contents)?;
/// assert_eq!(read_safetensors_from(&file[..], "memory", &SafetensorsLimits::default())?, contents);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Safetensors {
    /// The tensors.
    pub arrays: Arrays,
    /// Metadata strings by name, whose meaning the writer of the file defines.
    pub metadata: BTreeMap<String, String>,
    /// Tensors of unsupported element types. They are not written.
    pub skipped: Vec<Skipped>,
}

impl Safetensors {
    /// Returns contents with the metadata `{"format": "pt"}`, which `transformers` requires. Names and layouts of the arrays
    /// must be those of PyTorch, for example `model.norm.weight`.
    ///
    /// ```
    /// use highwater::io::{Array, Arrays, Safetensors};
    /// let arrays = Arrays::from([("model.norm.weight".to_owned(), Array::from_slice(&[1.0f32], [1])?)]);
    /// assert_eq!(Safetensors::for_pytorch(arrays).metadata["format"], "pt");
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn for_pytorch(arrays: Arrays) -> Self {
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        Self { arrays, metadata, skipped: Vec::new() }
    }
}

/// Reads a safetensors file.
///
/// Unsupported integer types become the narrowest supported type that holds all their values: `i32` for `I8`, `I16` and
/// `U16`, and `i64` for `U64` if all its values are below 2⁶³. Tensors of other types, such as 8-bit
/// floats, are [skipped and listed](Safetensors::skipped).
///
/// # Errors
/// [`FileError`] names the problem and its position. If no tensor can be read, the first unsupported one is an error.
pub fn read_safetensors(
    path: impl AsRef<Path>,
    limits: &SafetensorsLimits,
) -> Result<Safetensors, FileError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read_safetensors_from(BufReader::new(file), path, limits)
}

/// Reads safetensors from any reader. Errors show `name` as the file.
///
/// # Errors
/// See [`read_safetensors`].
pub fn read_safetensors_from(
    mut source: impl Read,
    name: impl AsRef<Path>,
    limits: &SafetensorsLimits,
) -> Result<Safetensors, FileError> {
    read_from(&mut source, name.as_ref(), limits)
}

/// As [`read_safetensors_from`]. Not generic, so that it is compiled once.
fn read_from(
    mut source: &mut dyn Read,
    path: &Path,
    limits: &SafetensorsLimits,
) -> Result<Safetensors, FileError> {
    let Header { entries, metadata, data_start } = Header::read(&mut source, path, limits)?;
    let (mut collector, mut offset) = (Collector::default(), data_start);
    for Entry { name, contents, bytes } in entries {
        let array = contents.and_then(|(kind, shape)| {
            Stored::little(kind).read(&mut source, shape, Place { path, offset, name: &name })
        });
        match array {
            Ok(array) => {
                collector.add(name, array);
            }
            Err(error) => {
                let is_read = matches!(error, FileError::OutOfRange { .. });
                collector.skip_unsupported(&name, error)?;
                if !is_read {
                    skip(&mut source, bytes).map_err(|error| {
                        FileError::read(path, offset, format!("the elements of {name}"), &error)
                    })?;
                }
            }
        }
        offset += bytes;
    }
    let mut rest = Vec::new();
    source.take(1).read_to_end(&mut rest).map_err(|error| FileError::io(path, &error))?;
    if !rest.is_empty() {
        return Err(FileError::malformed(path, offset, "there are bytes after the last tensor"));
    }
    let Loaded { arrays, skipped } = collector.finish()?;
    Ok(Safetensors { arrays, metadata, skipped })
}

/// Skips bytes of a source.
pub(super) fn skip(source: &mut impl Read, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut source.take(bytes), &mut io::sink())?;
    if skipped < bytes { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) } else { Ok(()) }
}

/// Writes safetensors to any writer. Larger element types come first, so that each tensor is aligned.
///
/// # Errors
/// The errors of `sink`.
pub fn write_safetensors_to(sink: impl Write, contents: &Safetensors) -> io::Result<()> {
    let arrays = contents.arrays.iter().map(|(name, array)| (Cow::from(name), array));
    write_arrays_to(sink, arrays.collect(), &contents.metadata)
}

/// Like [`write_safetensors_to`], for borrowed arrays.
pub(crate) fn write_arrays_to(
    mut sink: impl Write,
    arrays: BTreeMap<Cow<'_, str>, &Array>,
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    let mut arrays: Vec<_> = arrays.into_iter().collect();
    arrays.sort_by_key(|(_, array)| std::cmp::Reverse(array.dtype().size()));
    let header = header::text(&arrays, metadata)?;
    sink.write_all(&(header.len() as u64).to_le_bytes())?;
    sink.write_all(&header)?;
    arrays.iter().try_for_each(|(_, array)| sink.write_all(array.bytes()))
}
