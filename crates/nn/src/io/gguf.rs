//! GGUF, the format of llama.cpp: metadata as typed values, and tensors that may be quantized in blocks.
//!
//! ```text
//! "GGUF"  version  tensors  entries | entries of metadata | descriptions of tensors | padding | data of tensors
//! ```
//!
//! The file is mapped. Opening it checks the complete header; loading a tensor reads its data only.

mod blocks;
mod cursor;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use highwater_tensor::error::{FileError, Skipped};
use highwater_tensor::{DType, Device, MAX_RANK, MappedFile, QuantizedMatrix, Result, Shape, Tensor};

use self::blocks::{BlockType, TYPES, TensorType, TypeStorage};
use self::cursor::Cursor;
use self::value::write_text;
pub use self::value::{GgufArray, GgufValue};
use super::array::{Array, Arrays, copied, filled};
use super::mapped::MappedElements;
use super::skipped::Collector;
use super::stored::Kind;
use super::weights::{WeightInfo, Weights, no_tensor};
use crate::file_kind;

const MAGIC: &[u8; 4] = b"GGUF";

/// The version that is written. Version 2 has the same layout.
const VERSION: u32 = 3;

/// The key of the alignment of tensors, and its default.
const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// Limits for GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufLimits {
    /// Maximum number of bytes of metadata and tensor descriptions.
    pub header_bytes: u64,
    /// Maximum number of metadata entries.
    pub entries: usize,
    /// Maximum number of tensors.
    pub tensors: usize,
}

impl Default for GgufLimits {
    /// A header of 128 MiB, 10,000 entries of metadata, and 100,000 tensors.
    fn default() -> Self {
        Self { header_bytes: 128 << 20, entries: 10_000, tensors: 100_000 }
    }
}

/// A GGUF file, version 2 or 3. Opening it reads only the header.
///
/// Quantized tensors become `f32` when they are loaded, directly in memory of the device, unless they are
/// [loaded as blocks](Weights::load_quantized). `F32`, `F16`, `BF16`, `F64`, `I32`
/// and `I64` tensors refer to the file without a copy on devices that [support mapped
/// files](Device::supports_mapped_files); see [`MappedSafetensors`](super::MappedSafetensors). Tensors of other types are
/// [listed](Weights::skipped).
///
/// The file must neither change nor shrink while it is open or tensors refer to it; see [`MappedFile`].
///
/// ```
/// use std::collections::BTreeMap;
/// use highwater::Device;
/// use highwater::io::{Array, Arrays, Gguf, GgufLimits, GgufValue, Weights, write_gguf_to};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tiny.gguf");
/// let metadata = BTreeMap::from([("general.architecture".to_owned(), GgufValue::String("llama".to_owned()))]);
/// let tensors = Arrays::from([("output_norm.weight".to_owned(), Array::from_slice(&[1.0f32, 2.0], [2])?)]);
/// write_gguf_to(std::fs::File::create(&path)?, &metadata, &tensors)?;
///
/// let file = Gguf::open(&path, &GgufLimits::default())?;
/// assert_eq!(file.get("general.architecture").and_then(GgufValue::as_str), Some("llama"));
/// assert_eq!(file.load("output_norm.weight", &Device::cpu()?)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gguf {
    file: MappedFile,
    header: GgufHeader,
}

impl Gguf {
    /// Maps a file and checks its header: all sizes, the alignment of tensors, and that they neither overlap nor exceed the
    /// file.
    ///
    /// # Errors
    /// [`FileError`] names the problem and its position. If no tensor can be read, the first unsupported one is an error.
    pub fn open(path: impl AsRef<Path>, limits: &GgufLimits) -> Result<Self, FileError> {
        let file = MappedFile::open(path)?;
        let header = GgufHeader::parse(file.bytes(), file.path(), limits)?;
        Ok(Self { file, header })
    }

    /// Returns whether a file begins with `GGUF`.
    ///
    /// # Errors
    /// [`FileError::Io`] if the file cannot be read.
    pub fn is_gguf(path: impl AsRef<Path>) -> Result<bool, FileError> {
        let (path, mut start) = (path.as_ref(), Vec::new());
        let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
        read.map_err(|error| FileError::io(path, &error))?;
        Ok(start == MAGIC)
    }

    /// Returns the metadata by key, such as `llama.block_count` or `tokenizer.ggml.tokens`.
    #[must_use]
    pub const fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.header.metadata
    }

    /// Returns the value of one key of the metadata.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.header.metadata.get(key)
    }

    /// Returns the version of the format.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.header.version
    }

    /// Returns the offset of a tensor's data in the file.
    #[must_use]
    pub fn offset(&self, name: &str) -> Option<u64> {
        self.header.tensors.get(name).map(|tensor| tensor.offset)
    }
}

impl Weights for Gguf {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<&str> {
        self.header.tensors.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let tensor = self.header.tensors.get(name)?;
        let dtype = match tensor.format.storage {
            TypeStorage::Elements(kind) => kind.dtype(),
            _ => DType::F32,
        };
        Some(WeightInfo { shape: tensor.shape, dtype, format: tensor.format.name, bytes: tensor.bytes })
    }

    fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let tensor = self.header.tensors.get(name).ok_or_else(|| no_tensor(self, name))?;
        match tensor.format.storage {
            TypeStorage::Blocks(BlockType { dequantize, .. }) => {
                let blocks = tensor.data(self.file.bytes());
                filled(device, &tensor.shape, DType::F32, |values| dequantize(blocks, values))
            }
            TypeStorage::Elements(kind) => {
                let GgufTensor { shape, offset, bytes, .. } = *tensor;
                MappedElements { kind, shape, offset, bytes }.load(&self.file, name, device)
            }
            // The header has none of these.
            TypeStorage::Unsupported => Err(no_tensor(self, name).into()),
        }
    }

    /// Copies the blocks of matrices of the types `Q8_0`, `Q4_0` and `Q4_1`.
    fn load_quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        let tensor = self.header.tensors.get(name).ok_or_else(|| no_tensor(self, name))?;
        let TypeStorage::Blocks(BlockType { format: Some(format), .. }) = tensor.format.storage else {
            return Ok(None);
        };
        let &[rows, columns] = tensor.shape.dims() else { return Ok(None) };
        let Some(bytes) = format.row_bytes(columns) else { return Ok(None) };
        let shape = Shape::new(&[rows, bytes])?;
        let blocks = copied(device, &shape, DType::U8, tensor.data(self.file.bytes()))?;
        QuantizedMatrix::from_blocks(blocks, format).map(Some)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.header.skipped
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gguf({:?}, {} tensors)", self.file, self.header.tensors.len())
    }
}

/// A tensor in the file.
#[derive(Debug)]
pub(crate) struct GgufTensor {
    format: &'static TensorType,
    shape: Shape,
    /// The offset in the file.
    offset: u64,
    bytes: u64,
}

impl GgufTensor {
    /// Returns the data. The header was checked for this file.
    fn data<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        &file[self.offset as usize..][..self.bytes as usize]
    }
}

/// The contents of the header, checked completely.
#[derive(Debug)]
pub(crate) struct GgufHeader {
    version: u32,
    pub(crate) metadata: BTreeMap<String, GgufValue>,
    pub(crate) tensors: BTreeMap<String, GgufTensor>,
    pub(crate) skipped: Vec<Skipped>,
}

impl GgufHeader {
    pub(crate) fn parse(file: &[u8], path: &Path, limits: &GgufLimits) -> Result<Self, FileError> {
        let mut cursor = Cursor::new(path, file, limits.header_bytes);
        if !file.starts_with(MAGIC) {
            let start = &file[..file.len().min(512)];
            let problem = file_kind::mistaken_or_text(start, "a GGUF file");
            let problem = problem.unwrap_or_else(|| "the file does not begin with \"GGUF\"".to_owned());
            return Err(FileError::malformed(path, 0, problem));
        }
        cursor.bytes(MAGIC.len() as u64)?;
        let version = cursor.u32()?;
        if !(2..=VERSION).contains(&version) {
            let is_big_endian = (1..=VERSION).contains(&version.swap_bytes());
            let found =
                if is_big_endian { "big-endian files".to_owned() } else { format!("version {version}") };
            return Err(FileError::malformed(
                path,
                4,
                format!("{found} cannot be read, only versions 2 and 3"),
            ));
        }
        let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
        for (what, offset, found, limit) in
            [("tensors", 8, tensors, limits.tensors), ("entries of metadata", 16, entries, limits.entries)]
        {
            if found > limit as u64 {
                let (path, limit) = (path.to_owned(), limit as u64);
                return Err(FileError::TooLarge { path, offset, what, found, limit });
            }
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = cursor.text()?.to_owned();
            let number = cursor.u32()?;
            let value = GgufValue::read(&mut cursor, number)?;
            if metadata.contains_key(&key) {
                return Err(cursor.malformed(format!("the key {key:?} is there twice")));
            }
            metadata.insert(key, value);
        }
        let mut descriptions = Vec::new();
        for _ in 0..tensors {
            descriptions.push(Description::read(&mut cursor)?);
        }
        let alignment = alignment(&metadata).map_err(|problem| cursor.malformed(problem))?;
        let data_start = cursor.position().next_multiple_of(alignment);
        let (tensors, skipped) = placed(descriptions, alignment, data_start, file.len() as u64, path)?;
        Ok(Self { version, metadata, tensors, skipped })
    }

    /// Converts all tensors, and passes the values of each to `take`.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn each_value(&self, file: &[u8], mut take: impl FnMut(&str, &[f32])) {
        for (name, tensor) in &self.tensors {
            if let TypeStorage::Blocks(format) = tensor.format.storage {
                let mut values = vec![0.0; tensor.shape.elements()];
                (format.dequantize)(tensor.data(file), &mut values);
                take(name, &values);
            }
        }
    }
}

/// Returns the alignment of tensors.
fn alignment(metadata: &BTreeMap<String, GgufValue>) -> Result<u64, String> {
    let Some(value) = metadata.get(ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
    let valid = value.as_u64().filter(|&bytes| bytes.is_power_of_two() && bytes <= MAX_ALIGNMENT);
    valid.ok_or_else(|| format!("{ALIGNMENT} is no power of two up to {MAX_ALIGNMENT}"))
}

/// The description of a tensor in the header.
struct Description {
    name: String,
    /// The sizes of the first axes, innermost first, and the number of all axes.
    dims: [u64; MAX_RANK],
    axes: usize,
    number: u32,
    /// The offset within the data.
    offset: u64,
    /// The offset of the description in the file.
    at: u64,
}

impl Description {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, FileError> {
        let at = cursor.position();
        let name = cursor.text()?.to_owned();
        let axes = cursor.u32()?;
        let axes = cursor.count(axes.into(), size_of::<u64>())?;
        let mut dims = [1; MAX_RANK];
        for axis in 0..axes {
            let size = cursor.u64()?;
            if let Some(dim) = dims.get_mut(axis) {
                *dim = size;
            }
        }
        Ok(Self { name, dims, axes, number: cursor.u32()?, offset: cursor.u64()?, at })
    }

    /// Returns the type, the shape in row-major order and the bytes, or the reason why the tensor is not supported.
    fn contents(&self, path: &Path) -> Result<(&'static TensorType, Shape, u64), FileError> {
        let (file, name) = (path.to_owned(), self.name.clone());
        let known = TYPES.iter().find(|known| known.id == self.number);
        let Some(format) = known.filter(|known| !matches!(known.storage, TypeStorage::Unsupported)) else {
            let dtype = known.map_or_else(|| format!("type {}", self.number), |known| known.name.to_owned());
            return Err(FileError::UnsupportedDType { path: file, name, dtype });
        };
        let Some(sizes) = self.dims.get(..self.axes) else {
            return Err(FileError::TooManyAxes { path: file, name, axes: self.axes });
        };
        let malformed = |problem| FileError::malformed(path, self.at, format!("{name:?}: {problem}"));
        let overflow = || malformed(format!("sizes {sizes:?} of {} overflow", format.name));
        let dims: Option<Vec<usize>> = sizes.iter().rev().map(|&size| size.try_into().ok()).collect();
        let shape = dims.and_then(|dims| Shape::new(&dims).ok()).ok_or_else(overflow)?;
        let elements = shape.checked_elements().ok_or_else(overflow)?;
        // The bytes of the loaded tensor must not overflow either.
        elements
            .checked_mul(size_of::<f64>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(overflow)?;
        let bytes = match format.storage {
            TypeStorage::Blocks(block) => {
                if !self.dims[0].is_multiple_of(block.elements as u64) {
                    let (row, name) = (self.dims[0], format.name);
                    let problem = format!("rows of {row} elements are not whole blocks of {name}");
                    return Err(malformed(problem));
                }
                (elements / block.elements).checked_mul(block.bytes)
            }
            TypeStorage::Elements(kind) => elements.checked_mul(kind.size()),
            TypeStorage::Unsupported => None,
        };
        Ok((format, shape, bytes.ok_or_else(overflow)? as u64))
    }
}

type Placed = (BTreeMap<String, GgufTensor>, Vec<Skipped>);

/// Checks the offsets of all tensors: aligned, within the file, and without overlap.
fn placed(
    mut descriptions: Vec<Description>,
    alignment: u64,
    data_start: u64,
    length: u64,
    path: &Path,
) -> Result<Placed, FileError> {
    let (mut tensors, mut collector) = (BTreeMap::new(), Collector::default());
    let mut names: Vec<&str> = descriptions.iter().map(|described| described.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(FileError::malformed(path, 0, format!("the name {:?} is there twice", pair[0])));
    }
    descriptions.sort_by_key(|described| described.offset);
    // The end of the previous tensor with elements, and its name.
    let mut previous: Option<(u64, String)> = None;
    for described in descriptions {
        let malformed =
            |problem| FileError::malformed(path, described.at, format!("{:?}: {problem}", described.name));
        if !described.offset.is_multiple_of(alignment) {
            let problem = format!("the offset {} is no multiple of {alignment}", described.offset);
            return Err(malformed(problem));
        }
        if let Some((end, name)) = &previous
            && described.offset < *end
        {
            return Err(malformed(format!("it overlaps {name:?}")));
        }
        let contents = described.contents(path);
        // The size of an unsupported tensor is unknown.
        let bytes = contents.as_ref().map_or(0, |&(.., bytes)| bytes);
        let offset = data_start.checked_add(described.offset);
        let end = offset.and_then(|offset| offset.checked_add(bytes)).filter(|&end| end <= length);
        let (Some(offset), Some(_)) = (offset, end) else {
            let (path, what) = (path.to_owned(), format!("the elements of {}", described.name));
            return Err(FileError::Truncated { path, offset: offset.unwrap_or(u64::MAX), what });
        };
        match contents {
            Ok((format, shape, bytes)) => {
                previous = Some((described.offset + bytes, described.name.clone()))
                    .filter(|_| bytes > 0)
                    .or(previous);
                tensors.insert(described.name, GgufTensor { format, shape, offset, bytes });
            }
            Err(error) => collector.skip_unsupported(&described.name, error)?,
        }
    }
    let skipped = collector.finish_if(!tensors.is_empty())?.skipped;
    Ok((tensors, skipped))
}

/// Writes a GGUF file, version 3. Tensors are not quantized.
///
/// ```
/// use std::collections::BTreeMap;
/// use highwater::io::{Array, Arrays, write_gguf_to};
/// let tensors = Arrays::from([("weight".to_owned(), Array::from_slice(&[1.0f32; 6], [2, 3])?)]);
/// let mut file = Vec::new();
/// write_gguf_to(&mut file, &BTreeMap::new(), &tensors)?;
/// assert!(file.starts_with(b"GGUF"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of `sink`; an error of the kind [`InvalidInput`](io::ErrorKind::InvalidInput) for element types that the
/// format does not have (`u8`, `u32`, booleans), and for an invalid `general.alignment`.
pub fn write_gguf_to(
    mut sink: impl Write,
    metadata: &BTreeMap<String, GgufValue>,
    tensors: &Arrays,
) -> io::Result<()> {
    write_to(&mut sink, metadata, tensors)
}

/// As [`write_gguf_to`]. Not generic, so that it is compiled once.
fn write_to(
    sink: &mut dyn Write,
    metadata: &BTreeMap<String, GgufValue>,
    tensors: &Arrays,
) -> io::Result<()> {
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidInput, problem);
    let alignment = alignment(metadata).map_err(invalid)? as usize;
    let mut header = Vec::new();
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_text(&mut header, key)?;
        value.write(&mut header)?;
    }
    let mut offset = 0;
    for (name, array) in tensors {
        let kind = Kind::Same(array.dtype());
        let is_same = |known: &&TensorType| matches!(known.storage, TypeStorage::Elements(of) if of == kind);
        let format = TYPES.iter().find(is_same);
        let format =
            format.ok_or_else(|| invalid(format!("{name:?}: GGUF has no type {}", array.dtype())))?;
        write_text(&mut header, name)?;
        header.extend_from_slice(&(array.shape().rank() as u32).to_le_bytes());
        for &size in array.shape().dims().iter().rev() {
            header.extend_from_slice(&(size as u64).to_le_bytes());
        }
        header.extend_from_slice(&format.id.to_le_bytes());
        header.extend_from_slice(&(offset as u64).to_le_bytes());
        offset += padded(array, alignment);
    }
    header.resize(header.len().next_multiple_of(alignment), 0);
    sink.write_all(&header)?;
    for array in tensors.values() {
        sink.write_all(array.bytes())?;
        sink.write_all(&vec![0; padded(array, alignment) - array.bytes().len()])?;
    }
    Ok(())
}

/// Returns the bytes of an array up to the next aligned offset.
fn padded(array: &Array, alignment: usize) -> usize {
    array.bytes().len().next_multiple_of(alignment)
}
