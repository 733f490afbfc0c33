//! The embedding layer.

use std::fmt;

use highwater_tensor::{
    BlockFormat, DType, Error, LinearCrossEntropyOptions, Parameter, Place, QuantizedMatrix, Result, Rng,
    Tensor,
};
use highwater_tracking::ModulePath;

use super::debug::{layer, mapping};
use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;
use super::transformer::SPREAD;
use super::weight::Weight;

/// Embedding layer: a table with a row for each token.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Embedding, Module};
/// let device = Device::cpu()?;
/// let table = Embedding::new(&device, 100, 16, &Rng::new(0))?;
/// let tokens = Tensor::from_slice(&device, &[3i64, 99, 3, 0], [2, 2])?;
/// assert_eq!(table.forward(&tokens)?.dims(), [2, 2, 16]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Embedding {
    path: ModulePath,
    weight: Weight,
    padding_idx: Option<usize>,
}

impl Embedding {
    /// Creates a table for `tokens` tokens with rows of `width` values (`f32`), normally distributed with standard
    /// deviation 0.02.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, tokens: usize, width: usize, rng: &Rng) -> Result<Self> {
        let (init, fans) = (Init::Normal { mean: 0.0, std: SPREAD }, Fans { inputs: tokens, outputs: width });
        let weight = init.parameter(place, [tokens, width], DType::F32, fans, rng)?;
        Ok(Self { path: ModulePath::new(), weight: Weight::Dense(weight), padding_idx: None })
    }

    /// Creates a table from an existing parameter of shape `[tokens, width]`.
    ///
    /// # Errors
    /// [`Error::BadRank`] unless `weight` has two axes.
    pub fn from_parameter(weight: Parameter) -> Result<Self> {
        let shape = *weight.value().shape();
        if shape.rank() != 2 {
            return Err(Error::BadRank { op: "embedding", expected: "a weight of 2 axes", shape });
        }
        Ok(Self { path: ModulePath::new(), weight: Weight::Dense(weight), padding_idx: None })
    }

    /// Creates a table from a quantized matrix of `[tokens, width]`, which training does not change. Its rows are of f32.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, QuantizedMatrix, Tensor};
    /// use highwater::nn::{Embedding, Module};
    /// let device = Device::cpu()?;
    /// let matrix = QuantizedMatrix::quantize(&Tensor::ones(&device, [100, 32])?, BlockFormat::Q8_0)?;
    /// let table = Embedding::from_quantized(&matrix);
    /// assert_eq!(format!("{table:?}"), "Embedding(100 -> 32, Q8_0)");
    /// assert_eq!(table.forward(&Tensor::from_slice(&device, &[3i64, 99], [2])?)?.dims(), [2, 32]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn from_quantized(weight: &QuantizedMatrix) -> Self {
        Self { path: ModulePath::new(), weight: Weight::quantized(weight), padding_idx: None }
    }

    /// Returns the table in quantized blocks, which training does not change.
    ///
    /// # Errors
    /// See [`QuantizedMatrix::quantize`].
    pub fn quantized(&self, format: BlockFormat) -> Result<Self> {
        let values = match self.weight.matrix()? {
            Some(matrix) => matrix.dequantize()?,
            None => self.weight.parameter().value(),
        };
        let matrix = QuantizedMatrix::quantize(&values, format)?;
        Ok(Self { padding_idx: self.padding_idx, ..Self::from_quantized(&matrix) })
    }

    /// Returns the quantized table; `None` for a dense one.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the blocks were replaced by bytes that are no whole blocks.
    pub fn quantized_weight(&self) -> Result<Option<QuantizedMatrix>> {
        self.weight.matrix()
    }

    /// Returns the element type of the rows.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.weight.dtype()
    }

    /// Returns the layer with a padding token, as PyTorch's `padding_idx`: sets its row to 0, and computes no gradient for
    /// the row from then on. Needs a temporary of the size of the table.
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// use highwater::nn::{Embedding, Module};
    /// let device = Device::cpu()?;
    /// let table = Embedding::new(&device, 100, 2, &Rng::new(0))?.with_padding_idx(0)?;
    /// let padding = Tensor::from_slice(&device, &[0i64, 0], [2])?;
    /// assert_eq!(table.forward(&padding)?.to_vec::<f32>()?, [0.0; 4]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] unless there is such a token; [`Error::UnsupportedDType`] for a quantized table;
    /// [`Error::Allocation`] if there is no memory.
    pub fn with_padding_idx(self, padding_idx: usize) -> Result<Self> {
        let tokens = self.weight.size(0);
        if padding_idx >= tokens {
            let index = i64::try_from(padding_idx).unwrap_or(i64::MAX);
            return Err(Error::IndexOutOfRange { op: "embedding", index, len: tokens });
        }
        let Weight::Dense(weight) = &self.weight else {
            return Err(Error::UnsupportedDType { op: "embedding", dtype: DType::U8 });
        };
        let rows = Tensor::arange(weight.value().device(), 0, tokens)?;
        let is_padding = rows.eq(padding_idx)?.unsqueeze(1)?;
        weight.set(&weight.value().masked_fill(&is_padding, 0)?)?;
        Ok(Self { padding_idx: Some(padding_idx), ..self })
    }

    /// Returns the table, of shape `[tokens, width]`. Of a quantized table, returns the constant of its blocks, u8.
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        self.weight.parameter()
    }

    /// Computes a score for each token, x·Wᵀ: the output layer of a language model whose embeddings are tied.
    ///
    /// Shapes: `[.., width]` to `[.., tokens]`.
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// use highwater::nn::Embedding;
    /// let device = Device::cpu()?;
    /// let table = Embedding::new(&device, 100, 16, &Rng::new(0))?;
    /// assert_eq!(table.logits(&Tensor::ones(&device, [2, 5, 16])?)?.dims(), [2, 5, 100]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::matmul`], and [`Tensor::linear_quantized`] for a quantized table.
    pub fn logits(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, self.weight.parameter(), || match self.weight.matrix()? {
            Some(table) => x.linear_quantized(&table, None),
            None => x.matmul(&self.weight.parameter().operand()?.t()?),
        })
    }
}

/// # Loss of a tied output layer
impl Embedding {
    /// Computes the cross-entropy of the [`logits`](Self::logits) by chunks of rows, without memory for all logits: see
    /// [`Tensor::linear_cross_entropy`].
    ///
    /// Shapes: `x` `[.., width]`, `targets` `[..]`.
    ///
    /// ```
    /// use highwater::{Device, LinearCrossEntropyOptions, Rng, Tensor};
    /// use highwater::nn::Embedding;
    /// let device = Device::cpu()?;
    /// let table = Embedding::new(&device, 100, 16, &Rng::new(0))?;
    /// let targets = Tensor::from_slice(&device, &[7i64, 99], [2])?;
    /// let options = LinearCrossEntropyOptions::default();
    /// let loss = table.linear_cross_entropy(&Tensor::ones(&device, [2, 16])?, &targets, options)?;
    /// assert_eq!(loss.dims(), [0; 0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::linear_cross_entropy`].
    pub fn linear_cross_entropy(
        &self,
        x: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Tensor> {
        in_layer(&self.path, self.weight(), || match self.weight.matrix()? {
            Some(table) => x.linear_cross_entropy(&table, targets, options),
            None => x.linear_cross_entropy(&self.weight().operand()?.t()?, targets, options),
        })
    }
}

impl Module for Embedding {
    enters_itself!(path);

    /// Looks up tokens (`u8`, `i32`, `u32` or `i64`, any shape); the rows are a new last axis.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, self.weight.parameter(), || {
            if let Some(table) = self.weight.matrix()? {
                return table.embedding(x);
            }
            let table = self.weight.parameter().operand()?;
            match self.padding_idx {
                Some(padding_idx) => table.embedding_with_padding(x, padding_idx),
                None => table.embedding(x),
            }
        })
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tokens, width) = (self.weight.size(0), self.weight.size(1));
        let padding = self.padding_idx.map(|row| format!("padding {row}"));
        layer(f, "Embedding", [mapping(tokens, width), padding, self.weight.debug_part()])
    }
}
