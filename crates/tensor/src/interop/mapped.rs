//! Files mapped into memory, and tensors that refer to their bytes.
//!
//! The operating system loads pages when they are read, and drops them if memory is short. Processes that map the same
//! file share its pages.
//!
//! The file must neither change nor shrink while it is mapped. A read behind the end of a file that has shrunk ends the
//! process with `SIGBUS`, which no program can handle as an error. Writers that replace a file with `rename` are safe: the
//! mapping keeps the old contents.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bfc_core::{Bytes, Category};
use memmap2::Mmap;

use crate::device::Device;
use crate::device::external::ExternalMemory;
use crate::error::{DlpackError, Error, FileError, Result};
use crate::layout::{IntoShape, Layout};
use crate::shape::DType;
use crate::tensor::Tensor;

/// A file that is mapped into memory for reading. Clones share the mapping, and so do tensors of
/// [`Tensor::from_mapped`]; the last one unmaps the file.
///
/// The file must neither change nor shrink while it is mapped: tensors would change, or the process would end with
/// `SIGBUS`. To replace the file, write another one and rename it, as `io::write_atomically` does.
///
/// ```
/// use highwater::tensor::MappedFile;
/// # let file = tempfile::NamedTempFile::new()?;
/// # let path = file.path();
/// std::fs::write(path, [1, 2, 3])?;
/// let file = MappedFile::open(path)?;
/// assert_eq!(file.bytes(), [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MappedFile(Arc<Mapping>);

struct Mapping {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps a file. Reads nothing but its length.
    ///
    /// # Errors
    /// [`FileError::Io`] if the file cannot be opened or mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let map = || {
            let file = File::open(path)?;
            if file.metadata()?.is_dir() {
                return Err(ErrorKind::IsADirectory.into());
            }
            // SAFETY: the documentation of this type requires that nothing changes the file while it is mapped.
            unsafe { Mmap::map(&file) }
        };
        let map = map().map_err(|error: io::Error| FileError::io(path, &error))?;
        Ok(Self(Arc::new(Mapping { path: path.to_owned(), map })))
    }

    /// Returns the path that the file was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the contents of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.map
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({:?}, {})", self.0.path, Bytes(self.0.map.len() as u64))
    }
}

/// # Use mapped files
impl Tensor {
    /// Returns a tensor over the elements of a mapped file from byte `offset` on, in row-major and little-endian order.
    /// The elements are neither copied nor written: an op that would write in place writes to a copy. The memory has the
    /// category [`Mapped`](bfc_core::Category::Mapped), in [external memory](Device::external_memory).
    ///
    /// On a dry device that stands for a CPU, the tensor has the same account, and no element is read.
    ///
    /// ```
    /// use highwater::tensor::MappedFile;
    /// use highwater::{DType, Device, Tensor};
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # let path = file.path();
    /// std::fs::write(path, [1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat())?;
    /// let (device, file) = (Device::cpu()?, MappedFile::open(path)?);
    /// let x = Tensor::from_mapped(&device, &file, 4, [2], DType::F32)?;
    /// assert_eq!(x.to_vec::<f32>()?, [2.0, 3.0]);
    /// assert_eq!(device.external_memory().bytes_in_use, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the elements exceed the file; [`Error::Dlpack`] if the first one is not
    /// aligned, for booleans that are neither 0 nor 1, and on a device that does not [support mapped
    /// files](Device::supports_mapped_files).
    pub fn from_mapped(
        device: &Device,
        file: &MappedFile,
        offset: u64,
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Self> {
        const OP: &str = "from_mapped";
        if !device.supports_mapped_files() {
            return Err(DlpackError::NotHostDevice { device: device.to_string() }.into());
        }
        let layout = Layout::contiguous(OP, shape.into_shape().map_err(|error| error.in_op(OP))?, dtype)?;
        let elements = usize::try_from(offset).ok().and_then(|offset| {
            let bytes = layout.shape().elements() * dtype.size();
            file.bytes().get(offset..offset.checked_add(bytes)?)
        });
        let Some(elements) = elements else {
            let (argument, expected) = ("offset", "the offset of elements within the file");
            let got = format!("{offset} in {} bytes for {} of {dtype}", file.bytes().len(), layout.shape());
            return Err(Error::BadArgument { op: OP, argument, expected, got });
        };
        let address = elements.as_ptr().expose_provenance() as u64;
        if !address.is_multiple_of(dtype.size() as u64) {
            return Err(DlpackError::Unaligned { address, dtype }.into());
        }
        if dtype == DType::Bool
            && !device.is_dry()
            && let Some(&value) = elements.iter().find(|&&byte| byte > 1)
        {
            return Err(DlpackError::InvalidBool { value }.into());
        }
        // SAFETY: the mapping is valid until the last clone of the file is dropped, and nothing writes it: see
        // `MappedFile`.
        let memory = unsafe { ExternalMemory::new(address, elements.len(), Box::new(file.clone())) };
        Self::external(OP, device, memory, layout, dtype, Category::Mapped)
    }
}
