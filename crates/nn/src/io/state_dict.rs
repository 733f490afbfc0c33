//! PyTorch's state dicts: the files of `torch.save(net.state_dict(), path)`.
//!
//! A file is a [zip archive](zip) or, before PyTorch 1.6, a [sequence of pickles](legacy). In both, a pickle describes
//! each tensor by name, and storages hold the elements. The reader interprets the pickle [without calling
//! anything](Pickle): it knows the few functions that create [tensors](tensors), and skips other objects.

mod legacy;
mod tensors;
mod zip;

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use highwater_files::FileKind;
use highwater_files::pickle::{Pickle, PickleError, PickleProblem};
use highwater_tensor::error::FileError;

use self::tensors::{ByStorage, Tensors};
use super::archive::Source;
use super::safetensors::SafetensorsLimits;
use super::skipped::{Collector, Loaded};
use super::stored::Place;
use crate::file_kind;

#[cfg(test)]
mod tests;

/// Bytes that tensors may always use, however small the file is.
const FREE_BYTES: u64 = 16 << 20;

/// Reads the tensors of a PyTorch state dict, also from nested dictionaries and lists. Names are joined by dots; list
/// items have their index as a name.
///
/// Other objects, such as an epoch number or an `argparse.Namespace`, are [skipped and listed](Loaded::skipped) with
/// their class. Dictionaries and lists without tensors count as one object. Signed integers of 8 and 16 bits and
/// unsigned ones of 16 bits become `i32`. Unsigned integers of 64 bits become `i64` if all values are below 2⁶³.
///
/// The limits are those of safetensors: the size of the pickle, the number of tensors, and the bytes of all tensors.
///
/// ```no_run
/// use highwater::io::{SafetensorsLimits, read_state_dict};
/// // torch.save(net.state_dict(), "net.pt")
/// let loaded = read_state_dict("net.pt", &SafetensorsLimits::default())?;
/// println!("{:?}", loaded.arrays.keys().collect::<Vec<_>>());
/// # Ok::<(), highwater::io::FileError>(())
/// ```
///
/// # Errors
/// [`FileError`] names the problem and its position; offsets count within the named entry. Whole models and TorchScript
/// archives are rejected: save the state dict. If no tensor can be read, the first object or unsupported tensor is an
/// error.
pub fn read_state_dict(path: impl AsRef<Path>, limits: &SafetensorsLimits) -> Result<Loaded, FileError> {
    let path = path.as_ref();
    let mut file = File::open(path).map_err(|error| FileError::io(path, &error))?;
    read(&mut file, path, limits)
}

/// Reads a PyTorch state dict from any reader. Errors show `name` as the file.
///
/// # Errors
/// See [`read_state_dict`].
pub fn read_state_dict_from(
    mut source: impl Read + Seek,
    name: impl AsRef<Path>,
    limits: &SafetensorsLimits,
) -> Result<Loaded, FileError> {
    read(&mut source, name.as_ref(), limits)
}

/// Whether a file with these first bytes is a PyTorch file or another zip archive.
pub(crate) fn is_state_dict(start: &[u8]) -> bool {
    start.starts_with(zip::MAGIC) || is_legacy(start)
}

/// Whether a file with these first bytes was written by `torch.save` before PyTorch 1.6.
fn is_legacy(start: &[u8]) -> bool {
    !start.starts_with(zip::MAGIC) && FileKind::of(start) == Some(FileKind::TorchCheckpoint)
}

fn read(source: &mut dyn Source, path: &Path, limits: &SafetensorsLimits) -> Result<Loaded, FileError> {
    let (start, file_bytes) = (|| {
        let file_bytes = source.seek(std::io::SeekFrom::End(0))?;
        source.rewind()?;
        let mut start = Vec::new();
        source.take(FileKind::START_BYTES as u64).read_to_end(&mut start)?;
        source.rewind()?;
        Ok((start, file_bytes))
    })()
    .map_err(|error| FileError::io(path, &error))?;
    let reading = Reading { path, limits, file_bytes };
    if is_legacy(&start) {
        return legacy::read(source, &reading);
    }
    if !start.starts_with(zip::MAGIC)
        && let Some(problem) = file_kind::mistaken_or_text(&start, "a file of torch.save")
    {
        return Err(FileError::malformed(path, 0, problem));
    }
    zip::read(source, &reading)
}

/// The file that is being read.
struct Reading<'a> {
    path: &'a Path,
    limits: &'a SafetensorsLimits,
    file_bytes: u64,
}

impl Reading<'_> {
    fn malformed(&self, problem: impl Into<String>) -> FileError {
        FileError::malformed(self.path, 0, problem)
    }

    /// Returns the maximum number of bytes of all tensors.
    fn tensor_bytes(&self) -> u64 {
        let expanded = self.file_bytes.saturating_mul(self.limits.expansion);
        expanded.max(FREE_BYTES).min(self.limits.data_bytes)
    }

    fn too_large(&self, found: u64) -> FileError {
        let (path, what, limit) = (self.path.to_owned(), "bytes of tensors", self.tensor_bytes());
        FileError::TooLarge { path, offset: 0, what, found: found.max(limit.saturating_add(1)), limit }
    }

    /// Reads a pickle; errors show `name`.
    fn pickle(&self, source: impl std::io::BufRead, name: &Path) -> Result<Pickle, FileError> {
        let held = (self.limits.header_bytes.saturating_mul(3) / 2).max(self.file_bytes.saturating_mul(3));
        Pickle::read(source, held).map_err(|PickleError { offset, problem }| match problem {
            PickleProblem::Io(error) => FileError::read(name, offset, "the pickle", &error),
            problem => FileError::malformed(name, offset, problem.to_string()),
        })
    }

    /// Returns the tensors that a pickle describes, and collects its other objects.
    fn tensors(&self, pickle: &Pickle, pickle_bytes: u64) -> Result<(ByStorage, Collector), FileError> {
        Tensors::new(pickle, self, pickle_bytes).read()
    }
}

/// The remaining budget for reading and for tensors.
struct Budget {
    stored: u64,
    made: u64,
}

impl Budget {
    fn new(reading: &Reading<'_>) -> Self {
        Self { stored: reading.limits.data_bytes, made: reading.tensor_bytes() }
    }

    fn take_stored(&mut self, bytes: u64, reading: &Reading<'_>) -> Result<(), FileError> {
        self.stored = self.stored.checked_sub(bytes).ok_or_else(|| reading.too_large(bytes))?;
        Ok(())
    }

    /// Copies the tensors of a storage.
    fn add(
        &mut self,
        tensors: Vec<(String, tensors::Described)>,
        storage: &[u8],
        high_byte_first: bool,
        reading: &Reading<'_>,
        collector: &mut Collector,
    ) -> Result<(), FileError> {
        for (name, tensor) in tensors {
            self.made = self.made.checked_sub(tensor.bytes()).ok_or_else(|| reading.too_large(0))?;
            let place = Place { path: reading.path, offset: 0, name: &name };
            match tensor.array(storage, high_byte_first, place) {
                Ok(Some(array)) => {
                    if !collector.add(name.clone(), array) {
                        collector.skip(&name, "tensor", "another tensor has this name");
                    }
                }
                Ok(None) => {
                    let problem = format!("{name}: its strides exceed its storage");
                    return Err(reading.malformed(problem));
                }
                Err(error) => collector.skip_unsupported(&name, error)?,
            }
        }
        Ok(())
    }
}
