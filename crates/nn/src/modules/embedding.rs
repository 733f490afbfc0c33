//! The embedding layer.

use std::fmt;

use highwater_tensor::{DType, Error, LinearCrossEntropyOptions, Parameter, Place, Result, Rng, Tensor};
use highwater_tracking::ModulePath;

use super::debug::{dtype, layer, mapping, size};
use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;
use super::transformer::SPREAD;

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
    weight: Parameter,
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
        Ok(Self { path: ModulePath::new(), weight, padding_idx: None })
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
        Ok(Self { path: ModulePath::new(), weight, padding_idx: None })
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
    /// [`Error::IndexOutOfRange`] unless there is such a token; [`Error::Allocation`] if there is no memory.
    pub fn with_padding_idx(self, padding_idx: usize) -> Result<Self> {
        let tokens = size(&self.weight, 0);
        if padding_idx >= tokens {
            let index = i64::try_from(padding_idx).unwrap_or(i64::MAX);
            return Err(Error::IndexOutOfRange { op: "embedding", index, len: tokens });
        }
        let rows = Tensor::arange(self.weight.value().device(), 0, tokens)?;
        let is_padding = rows.eq(padding_idx)?.unsqueeze(1)?;
        self.weight.set(&self.weight.value().masked_fill(&is_padding, 0)?)?;
        Ok(Self { padding_idx: Some(padding_idx), ..self })
    }

    /// Returns the table, of shape `[tokens, width]`.
    #[must_use]
    pub const fn weight(&self) -> &Parameter {
        &self.weight
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
    /// See [`Tensor::matmul`].
    pub fn logits(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || x.matmul(&self.weight.tensor().t()?))
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
        in_layer(&self.path, self.weight(), || {
            x.linear_cross_entropy(&self.weight().tensor().t()?, targets, options)
        })
    }
}

impl Module for Embedding {
    enters_itself!(path);

    /// Looks up tokens (`u8`, `i32`, `u32` or `i64`, any shape); the rows are a new last axis.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || {
            let table = self.weight.tensor();
            match self.padding_idx {
                Some(padding_idx) => table.embedding_with_padding(x, padding_idx),
                None => table.embedding(x),
            }
        })
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tokens, width) = (size(&self.weight, 0), size(&self.weight, 1));
        let padding = self.padding_idx.map(|row| format!("padding {row}"));
        layer(f, "Embedding", [mapping(tokens, width), padding, dtype(&self.weight)])
    }
}
