//! Transformer layers (Vaswani et al. 2017) in the pre-norm variant (Xiong et al. 2020).

use std::fmt;

use highwater_tensor::{Activation, AttentionOptions, Error, Place, Result, Rng, Tensor};
use highwater_tracking::ModulePath;

use super::debug::{dtype, layer, size, when};
use super::dropout::Dropout;
use super::init::Init;
use super::linear::{Linear, LinearOptions};
use super::module::Module;
use super::norm::LayerNorm;
use super::outputs::output;

/// The initial standard deviation of transformer weights and embeddings, as in GPT-2.
pub(super) const SPREAD: f64 = 0.02;

/// Multi-head self-attention layer: `[n, len, width]` to `[n, len, width]`.
#[derive(Clone, Module)]
pub struct MultiHeadAttention {
    path: ModulePath,
    heads: usize,
    options: AttentionOptions,
    /// Projects to queries, keys and values of all heads.
    project: Linear,
    output: Linear,
    /// Dropout on the attention weights.
    dropout: Option<Dropout>,
}

impl MultiHeadAttention {
    /// Creates a layer with `heads` heads, which divide the width among them. Each position attends to all positions,
    /// unless the layer is [`causal`](Self::causal).
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the heads divide the width, [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, width: usize, heads: usize, rng: &Rng) -> Result<Self> {
        if !width.is_multiple_of(heads) || heads == 0 {
            return Err(Error::BadArgument {
                op: "multi_head_attention",
                argument: "heads",
                expected: "a divisor of the width",
                got: format!("{heads} for a width of {width}"),
            });
        }
        let project = Linear::with_options(place, width, width.saturating_mul(3), options(), rng)?;
        let output = Linear::with_options(place, width, width, options(), rng)?;
        let (path, options) = (ModulePath::new(), AttentionOptions::default());
        Ok(Self { path, heads, options, project, output, dropout: None })
    }

    /// Hides later positions from each position, as in language models.
    #[must_use]
    pub fn causal(self) -> Self {
        Self { options: AttentionOptions { causal: true, ..self.options }, ..self }
    }

    /// Returns the layer with dropout on the attention weights, with probability `p` [in
    /// training](highwater_tensor::is_training). See [`Tensor::attention_with_dropout`] for its memory use.
    ///
    /// # Errors
    /// See [`Dropout::new`].
    pub fn with_dropout(self, p: f64, rng: &Rng) -> Result<Self> {
        Ok(Self { dropout: Some(Dropout::new(p, rng)?), ..self })
    }

    /// Removes the biases.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { project: self.project.without_bias(), output: self.output.without_bias(), ..self }
    }

    /// Computes the attention with a mask: a boolean one that is true where a query sees a key, or one of the input's
    /// type that is added to the scores.
    ///
    /// The mask broadcasts to `[n, heads, len, len]`. For padded sequences, use shape `[n, 1, 1, len]` with true at
    /// positions without padding. Queries, keys and values are copied head by head, as in [`Tensor::attention`].
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// use highwater::nn::MultiHeadAttention;
    /// let device = Device::cpu()?;
    /// let heads = MultiHeadAttention::new(&device, 8, 2, &Rng::new(0))?;
    /// let lengths = Tensor::from_slice(&device, &[3i64, 5], [2, 1, 1, 1])?;
    /// let mask = Tensor::arange(&device, 0, 5)?.lt(&lengths)?;
    /// assert_eq!(heads.forward_masked(&Tensor::ones(&device, [2, 5, 8])?, &mask)?.dims(), [2, 5, 8]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Module::forward`], and [`Tensor::attention`] for a mask of another type or shape.
    pub fn forward_masked(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let _scope = self.enter();
        output(self.attend(x, Some(mask)))
    }

    fn attend(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let [n, len, width] = axes(x)?;
        let parts = self.project.forward(x)?;
        let dropped = self.dropout.as_ref().and_then(Dropout::acting);
        if mask.is_none() && dropped.is_none() {
            return self.output.forward(&parts.self_attention(self.heads, self.options)?);
        }
        let by_head = parts.reshape([n, len, 3, self.heads, width / self.heads])?.permute([2, 0, 3, 1, 4])?;
        let [query, key, value] = [by_head.at(0)?, by_head.at(1)?, by_head.at(2)?];
        let mixed = match dropped {
            Some((p, rng)) => query.attention_with_dropout(&key, &value, mask, self.options, p, rng)?,
            None => query.attention(&key, &value, mask, self.options)?,
        };
        self.output.forward(&mixed.permute([0, 2, 1, 3])?.reshape([n, len, width])?)
    }
}

/// Returns batch, position and width.
fn axes(x: &Tensor) -> Result<[usize; 3]> {
    <[usize; 3]>::try_from(x.dims()).map_err(|_| {
        let expected = "three axes: batch, position, width";
        Error::BadRank { op: "multi_head_attention", expected, shape: *x.shape() }
    })
}

pub(super) fn options() -> LinearOptions {
    LinearOptions { weight: Init::Normal { mean: 0.0, std: SPREAD }, ..LinearOptions::default() }
}

impl Module for MultiHeadAttention {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.enter();
        output(self.attend(x, None))
    }
}

/// Transformer block: x + attention(norm(x)), then x + mlp(norm(x)). The MLP has four times the width and GELU.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Module, TransformerBlock};
/// let device = Device::cpu()?;
/// let block = TransformerBlock::new(&device, 32, 4, &Rng::new(0))?.causal();
/// assert_eq!(block.forward(&Tensor::ones(&device, [2, 10, 32])?)?.dims(), [2, 10, 32]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct TransformerBlock {
    path: ModulePath,
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    /// Dropout on the residual branches.
    dropout: Option<Dropout>,
}

impl TransformerBlock {
    /// Creates a block for sequences of rows of `width` values (`f32`), with `heads` attention heads.
    ///
    /// # Errors
    /// See [`MultiHeadAttention::new`].
    pub fn new(place: &impl Place, width: usize, heads: usize, rng: &Rng) -> Result<Self> {
        let inside = width.saturating_mul(4);
        let up = Linear::with_options(place, width, inside, options(), rng)?;
        Ok(Self {
            path: ModulePath::new(),
            norm1: LayerNorm::new(place, width)?,
            attention: MultiHeadAttention::new(place, width, heads, rng)?,
            norm2: LayerNorm::new(place, width)?,
            up: up.with_activation(Activation::GeluTanh),
            down: Linear::with_options(place, inside, width, options(), rng)?,
            dropout: None,
        })
    }

    /// Hides later positions from each position: see [`MultiHeadAttention::causal`].
    #[must_use]
    pub fn causal(self) -> Self {
        Self { attention: self.attention.causal(), ..self }
    }

    /// Returns the block with dropout on the outputs of attention and MLP before they are added to x, with probability
    /// `p` [in training](highwater_tensor::is_training).
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// use highwater::nn::{Module, TransformerBlock};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let block = TransformerBlock::new(&device, 32, 4, &rng)?.causal().with_dropout(0.1, &rng.fork(1))?;
    /// assert_eq!(block.forward(&Tensor::ones(&device, [2, 10, 32])?)?.dims(), [2, 10, 32]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Dropout::new`].
    pub fn with_dropout(self, p: f64, rng: &Rng) -> Result<Self> {
        Ok(Self { dropout: Some(Dropout::new(p, rng)?), ..self })
    }

    /// Returns the block with dropout on the attention weights: see [`MultiHeadAttention::with_dropout`].
    ///
    /// # Errors
    /// See [`Dropout::new`].
    pub fn with_attention_dropout(self, p: f64, rng: &Rng) -> Result<Self> {
        Ok(Self { attention: self.attention.with_dropout(p, rng)?, ..self })
    }

    /// Removes the biases of all linear layers, including those of the attention. The norms keep theirs.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self {
            attention: self.attention.without_bias(),
            up: self.up.without_bias(),
            down: self.down.without_bias(),
            ..self
        }
    }

    /// Sets ε of the norms: see [`LayerNorm::with_epsilon`].
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { norm1: self.norm1.with_epsilon(epsilon), norm2: self.norm2.with_epsilon(epsilon), ..self }
    }

    /// Computes the block with an attention mask: see [`MultiHeadAttention::forward_masked`].
    ///
    /// # Errors
    /// See [`MultiHeadAttention::forward_masked`].
    pub fn forward_masked(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let _scope = self.enter();
        output(self.with_attention(x, |x| self.attention.forward_masked(x, mask)))
    }

    fn with_attention(&self, x: &Tensor, attention: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let dropped = |added: Tensor| match &self.dropout {
            Some(dropout) => dropout.forward(&added),
            None => Ok(added),
        };
        // The sum reuses the buffer of the branch.
        let x = (dropped(attention(&self.norm1.forward(x)?)?)? + x)?;
        let inside = self.up.forward(&self.norm2.forward(&x)?)?;
        dropped(self.down.forward(&inside)?)? + &x
    }
}

impl Module for TransformerBlock {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.enter();
        output(self.with_attention(x, |x| self.attention.forward(x)))
    }
}

impl fmt::Debug for MultiHeadAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = self.output.weight();
        let parts = [
            Some(size(weight, 1).to_string()),
            Some(format!("heads {}", self.heads)),
            when(self.options.causal, "causal"),
            self.dropout.as_ref().map(Dropout::debug_part),
            when(self.output.bias().is_none(), "no bias"),
            dtype(weight),
        ];
        layer(f, "MultiHeadAttention", parts)
    }
}

impl fmt::Debug for TransformerBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("TransformerBlock");
        parts.field("norm1", &self.norm1).field("attention", &self.attention).field("norm2", &self.norm2);
        parts.field("up", &self.up).field("down", &self.down);
        if let Some(dropout) = &self.dropout {
            parts.field("dropout", dropout);
        }
        parts.finish()
    }
}
