//! The trait of checkpoints whose tensors are loaded one at a time.

use std::fmt;
use std::path::Path;

use bfc_core::closest_name;
use highwater_tensor::error::{FileError, Skipped};
use highwater_tensor::{BlockFormat, DType, Device, QuantizedMatrix, Result, Shape, Tensor};

use super::{Gguf, GgufLimits, MappedSafetensors, SafetensorsLimits, ShardedSafetensors};

/// The file names of checkpoints in a folder, as `transformers` writes them.
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The description of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightInfo {
    /// The shape in row-major order: the last axis is contiguous.
    pub shape: Shape,
    /// The element type of the loaded tensor: `f32` for quantized tensors.
    pub dtype: DType,
    /// The element type or quantization in the file, by the format's name: `BF16`, `Q4_K`.
    pub format: &'static str,
    /// The number of bytes in the file.
    pub bytes: u64,
}

/// The tensors of a checkpoint, by name, loaded one at a time.
///
/// Loading a model needs the memory of its tensors and no second copy. On a dry device, [`load`](Self::load) allocates
/// the same bytes without reading any element.
///
/// ```
/// use highwater::Device;
/// use highwater::io::{Array, MappedSafetensors, Safetensors, SafetensorsLimits, Weights, write_safetensors_to};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// # let mut contents = Safetensors::default();
/// # contents.arrays.insert("norm.weight".into(), Array::from_slice(&[1.0f32, 2.0], [2])?);
/// # write_safetensors_to(std::fs::File::create(&path)?, &contents)?;
/// let file = MappedSafetensors::open(&path, &SafetensorsLimits::default())?;
/// let weights: &dyn Weights = &file;
/// assert_eq!(weights.names(), ["norm.weight"]);
/// assert_eq!(weights.info("norm.weight").map(|info| info.format), Some("F32"));
/// assert_eq!(weights.load("norm.weight", &Device::cpu()?)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Weights: fmt::Debug + Send + Sync {
    /// Returns the path of the file, or of the index of a sharded checkpoint.
    fn path(&self) -> &Path;

    /// Returns the names of all tensors that can be loaded, in alphabetical order.
    fn names(&self) -> Vec<&str>;

    /// Returns the description of a tensor; `None` if there is no such tensor, or if it was skipped.
    fn info(&self, name: &str) -> Option<WeightInfo>;

    /// Loads a tensor. Quantized tensors become `f32`; others keep their element type.
    ///
    /// # Errors
    /// [`FileError::NoTensor`](super::FileError::NoTensor) if there is no such tensor;
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    fn load(&self, name: &str, device: &Device) -> Result<Tensor>;

    /// Loads a matrix as quantized blocks; `None` if the checkpoint has no blocks of it in a [`BlockFormat`]. The default is
    /// `None` for all tensors.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    fn load_quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        let _ = (name, device);
        Ok(None)
    }

    /// Returns the tensors with unsupported element types.
    fn skipped(&self) -> &[Skipped];
}

/// Weights that are quantized when they are loaded: the matrices of linear layers, as in QLoRA. Each dense matrix exists
/// only until it is quantized.
///
/// Embeddings, output layers (`lm_head`), and matrices whose rows are no whole blocks stay dense.
/// [`with_filter`](Self::with_filter) chooses others.
///
/// ```
/// use highwater::{BlockFormat, Device};
/// use highwater::io::{Array, Arrays, Gguf, GgufLimits, Quantized, Weights, write_gguf_to};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tiny.gguf");
/// # let tensors = Arrays::from([("proj.weight".to_owned(), Array::from_slice(&[1.0f32; 128], [2, 64])?)]);
/// # write_gguf_to(std::fs::File::create(&path)?, &Default::default(), &tensors)?;
/// let file = Gguf::open(&path, &GgufLimits::default())?;
/// let weights = Quantized::new(&file, BlockFormat::Nf4);
/// let matrix = weights.load_quantized("proj.weight", &Device::cpu()?)?.expect("rows of whole blocks");
/// assert_eq!((matrix.rows(), matrix.columns()), (2, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Quantized<'a> {
    weights: &'a dyn Weights,
    format: BlockFormat,
    filter: fn(&str) -> bool,
}

impl<'a> Quantized<'a> {
    /// Quantizes the matrices of linear layers to a format.
    #[must_use]
    pub fn new(weights: &'a dyn Weights, format: BlockFormat) -> Self {
        let filter = |name: &str| !name.contains("embed") && !name.contains("lm_head");
        Self { weights, format, filter }
    }

    /// Quantizes the matrices whose names a function accepts.
    #[must_use]
    pub fn with_filter(self, filter: fn(&str) -> bool) -> Self {
        Self { filter, ..self }
    }
}

impl Weights for Quantized<'_> {
    fn path(&self) -> &Path {
        self.weights.path()
    }

    fn names(&self) -> Vec<&str> {
        self.weights.names()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.weights.info(name)
    }

    fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.weights.load(name, device)
    }

    fn load_quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        let is_matrix = |info: WeightInfo| match info.shape.dims() {
            &[_, columns] => info.dtype.is_float() && self.format.row_bytes(columns).is_some(),
            _ => false,
        };
        if !(self.filter)(name) || !self.info(name).is_some_and(is_matrix) {
            return Ok(None);
        }
        QuantizedMatrix::quantize(&self.weights.load(name, device)?, self.format).map(Some)
    }

    fn skipped(&self) -> &[Skipped] {
        self.weights.skipped()
    }
}

/// Opens a checkpoint with default limits: a GGUF file, a safetensors file, the index of a sharded checkpoint, or a folder with
/// `model.safetensors.index.json` or `model.safetensors`.
///
/// ```
/// use highwater::io::{Array, Arrays, Weights, open_weights, write_gguf_to};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tiny.gguf");
/// # let tensors = Arrays::from([("norm".to_owned(), Array::from_slice(&[1.0f32], [1])?)]);
/// # write_gguf_to(std::fs::File::create(&path)?, &Default::default(), &tensors)?;
/// assert_eq!(open_weights(&path)?.names(), ["norm"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// See [`Gguf::open`], [`ShardedSafetensors::open`] and [`MappedSafetensors::open`].
pub fn open_weights(path: impl AsRef<Path>) -> Result<Box<dyn Weights>, FileError> {
    let path = path.as_ref();
    if path.is_dir() {
        let index = path.join(INDEX);
        return open_weights(if index.exists() { index } else { path.join(SINGLE) });
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(Box::new(ShardedSafetensors::open(path, &SafetensorsLimits::default())?));
    }
    if Gguf::is_gguf(path)? {
        return Ok(Box::new(Gguf::open(path, &GgufLimits::default())?));
    }
    Ok(Box::new(MappedSafetensors::open(path, &SafetensorsLimits::default())?))
}

/// Returns the error for a missing tensor.
pub(super) fn no_tensor(weights: &dyn Weights, name: &str) -> FileError {
    let closest = closest_name(name, weights.names()).map(str::to_owned);
    FileError::NoTensor { path: weights.path().to_owned(), name: name.to_owned(), closest }
}
