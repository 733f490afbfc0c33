//! Safetensors files that are mapped into memory instead of read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use highwater_tensor::error::{FileError, Skipped};
use highwater_tensor::{Device, MappedFile, Result, Shape, Tensor};

use super::array::{copied, filled};
use super::safetensors::SafetensorsLimits;
use super::safetensors::header::{Entry, Header, name_of};
use super::skipped::Collector;
use super::stored::{Kind, Place, Stored};
use super::weights::{WeightInfo, Weights, no_tensor};

/// Elements in a mapped file.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedElements {
    pub(super) kind: Kind,
    pub(super) shape: Shape,
    /// The offset of the first element in the file.
    pub(super) offset: u64,
    /// The size in the file.
    pub(super) bytes: u64,
}

impl MappedElements {
    /// Returns a tensor that refers to the file, or a copy if the device, the element type or the alignment requires one.
    /// The caller has checked that the elements are within the file.
    pub(super) fn load(self, file: &MappedFile, name: &str, device: &Device) -> Result<Tensor> {
        let Self { kind, shape, offset, bytes } = self;
        let start = offset as usize;
        let elements = &file.bytes()[start..start + bytes as usize];
        if !device.is_dry() {
            Stored::little(kind).check(elements, &shape, Place { path: file.path(), offset, name })?;
        }
        let dtype = kind.dtype();
        if let Some(convert) = kind.conversion() {
            return filled::<i32>(device, &shape, dtype, |to| {
                convert(elements, bytemuck::cast_slice_mut(to))
            });
        }
        // Mappings begin at a page, so that the offset determines the alignment.
        if device.supports_mapped_files() && offset.is_multiple_of(dtype.size() as u64) {
            return Tensor::from_mapped(device, file, offset, shape, dtype);
        }
        copied(device, &shape, dtype, elements)
    }
}

/// A safetensors file that is mapped into memory. Opening it reads only the header.
///
/// Tensors refer to the file without a copy if the device computes on host memory, tensors have the element type, and
/// the elements are aligned. Such memory is read-only: an op or optimizer that would write in place writes to a copy. It
/// counts as [`Category::Mapped`](bfc_core::Category::Mapped). Other tensors are copied or converted as by
/// [`read_safetensors`](super::read_safetensors).
///
/// The file must neither change nor shrink while it is open or tensors refer to it: a read behind the end of a file that
/// has shrunk ends the process with `SIGBUS`. See [`MappedFile`].
///
/// ```
/// use highwater::{Device, alloc::Category};
/// use highwater::io::{Array, MappedSafetensors, Safetensors, SafetensorsLimits, Weights, write_safetensors_to};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let mut contents = Safetensors::default();
/// contents.arrays.insert("weight".into(), Array::from_slice(&[1.0f32, 2.0], [2])?);
/// write_safetensors_to(std::fs::File::create(&path)?, &contents)?;
///
/// let (device, file) = (Device::cpu()?, MappedSafetensors::open(&path, &SafetensorsLimits::default())?);
/// let weight = file.load("weight", &device)?;
/// assert_eq!(weight.to_vec::<f32>()?, [1.0, 2.0]);
/// assert_eq!(device.external_memory().bytes_in_use, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MappedSafetensors {
    file: MappedFile,
    entries: BTreeMap<String, MappedElements>,
    metadata: BTreeMap<String, String>,
    skipped: Vec<Skipped>,
}

impl MappedSafetensors {
    /// Maps a file and checks its header: all sizes, and that the file has exactly the declared bytes.
    ///
    /// # Errors
    /// [`FileError`] names the problem and its position. If no tensor can be read, the first unsupported one is an error.
    pub fn open(path: impl AsRef<Path>, limits: &SafetensorsLimits) -> Result<Self, FileError> {
        let file = MappedFile::open(path)?;
        let (path, bytes) = (file.path(), file.bytes());
        let header = Header::read(&mut &*bytes, path, limits)?;
        let (mut entries, mut collector, mut offset) =
            (BTreeMap::new(), Collector::default(), header.data_start);
        for Entry { name, contents, bytes } in header.entries {
            match contents {
                Ok((kind, shape)) => {
                    entries.insert(name, MappedElements { kind, shape, offset, bytes });
                }
                Err(error) => collector.skip_unsupported(&name, error)?,
            }
            offset = offset.saturating_add(bytes);
        }
        let length = bytes.len() as u64;
        if length < offset {
            let (path, what) = (path.to_owned(), "the tensors".to_owned());
            return Err(FileError::Truncated { path, offset: header.data_start, what });
        }
        if length > offset {
            return Err(FileError::malformed(path, offset, "there are bytes after the last tensor"));
        }
        let skipped = collector.finish_if(!entries.is_empty())?.skipped;
        Ok(Self { entries, metadata: header.metadata, skipped, file })
    }

    /// Returns the metadata strings by name, whose meaning the writer of the file defines.
    #[must_use]
    pub const fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Returns the mapped file.
    #[must_use]
    pub const fn file(&self) -> &MappedFile {
        &self.file
    }
}

impl Weights for MappedSafetensors {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let &MappedElements { kind, shape, bytes, .. } = self.entries.get(name)?;
        Some(WeightInfo { shape, dtype: kind.dtype(), format: name_of(kind), bytes })
    }

    fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let entry = self.entries.get(name).ok_or_else(|| no_tensor(self, name))?;
        entry.load(&self.file, name, device)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}

impl fmt::Debug for MappedSafetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedSafetensors({:?}, {} tensors)", self.file, self.entries.len())
    }
}
