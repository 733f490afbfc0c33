//! The trait of models that predict the next token.

use highwater_nn::data::IGNORED_TARGET;
use highwater_nn::modules::{KeyValueCache, KeyValueCacheOptions, Module};
use highwater_tensor::{
    DType, Device, Error, LinearCrossEntropyOptions, Result, Tensor, error::ShapeRule, mixed_dtype,
};

/// A model that predicts the next token of a text: [`Llama`](crate::Llama) and [`Gpt2`](crate::Gpt2).
///
/// [`Module::forward`] computes the logits of all positions without a cache.
pub trait LanguageModel: Module {
    /// Computes the last hidden states, `[batch, len, width]`, of tokens `[batch, len]`. With a cache, the tokens follow
    /// those in the cache, and are in the cache afterwards.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if the tokens exceed the cache; [`Error::BadArgument`] if they exceed the context, and for a
    /// cache of another model; [`Error::IndexOutOfRange`] for a token outside of the vocabulary. The cache has its previous
    /// positions then.
    fn hidden(&self, tokens: &Tensor, cache: Option<&mut KeyValueCache>) -> Result<Tensor>;

    /// Computes the logits `[.., vocabulary]` of hidden states `[.., width]`. A step of generation needs those of the last
    /// position only.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor>;

    /// Computes the mean cross-entropy of the next tokens. No tensor has the logits of all positions: see
    /// [`hidden_loss`](Self::hidden_loss). `targets` has the shape of the tokens, `[batch, len]`: its
    /// elements are the tokens that follow, or -100 at positions without a loss, such as those of a prompt and of padding.
    ///
    /// ```
    /// use highwater::models::{LanguageModel, Llama, LlamaConfig};
    /// use highwater::{Device, Rng, Tensor};
    /// let device = Device::cpu()?;
    /// let config = LlamaConfig::from_json(
    ///     r#"{"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
    ///         "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}"#,
    /// )?;
    /// let model = Llama::new(&config, &device, &Rng::new(0))?;
    /// let tokens = Tensor::from_slice(&device, &[7i64, 3, 20, 9], [1, 4])?;
    /// let targets = Tensor::from_slice(&device, &[3i64, 20, 9, -100], [1, 4])?;
    /// let gradients = model.loss(&tokens, &targets)?.backward()?;
    /// assert!(!gradients.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for targets of another shape; [`Error::IndexOutOfRange`] for a target outside of the
    /// vocabulary other than -100; otherwise see [`hidden`](Self::hidden).
    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        check_targets(tokens, targets)?;
        let ignore_index = Some(IGNORED_TARGET);
        let options = LinearCrossEntropyOptions { ignore_index, ..LinearCrossEntropyOptions::default() };
        self.hidden_loss(&self.hidden(tokens, None)?, targets, options)
    }

    /// Computes the cross-entropy of the [`logits`](Self::logits) of hidden states `[.., width]` for targets `[..]`, by
    /// chunks of rows: see [`Tensor::linear_cross_entropy`].
    ///
    /// # Errors
    /// See [`Tensor::linear_cross_entropy`].
    fn hidden_loss(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Tensor>;

    /// Returns the largest number of positions.
    fn context(&self) -> usize;

    /// Returns the number of tokens in the vocabulary.
    fn vocabulary(&self) -> usize;

    /// Returns the tokens that end a text, such as `<|im_end|>`. Empty if the configuration names none.
    fn stop_tokens(&self) -> &[u32];

    /// Returns the sizes of a cache for this model, in the type that its layers compute: that of the weights, or of mixed precision.
    fn cache_options(&self, batch: usize, capacity: usize) -> KeyValueCacheOptions;

    /// Returns the device of the weights.
    fn device(&self) -> Device;

    /// Allocates an empty cache for `batch` sequences of at most `capacity` tokens.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the capacity exceeds the context; otherwise see [`KeyValueCache::new`].
    fn new_cache(&self, batch: usize, capacity: usize) -> Result<KeyValueCache> {
        if capacity > self.context() {
            let got = format!("{capacity} for a context of {}", self.context());
            let expected = "at most the context of the model";
            return Err(Error::BadArgument { op: "key_value_cache", argument: "capacity", expected, got });
        }
        KeyValueCache::new(&self.device(), self.cache_options(batch, capacity))
    }

    /// Computes the logits `[batch, len, vocabulary]` of tokens `[batch, len]` that follow those of a cache. See
    /// [`hidden`](Self::hidden).
    ///
    /// # Errors
    /// See [`hidden`](Self::hidden).
    fn forward_cached(&self, tokens: &Tensor, cache: &mut KeyValueCache) -> Result<Tensor> {
        self.logits(&self.hidden(tokens, Some(cache))?)
    }
}

/// Returns the element type of keys and values for weights of a type. In mixed precision, f32 weights compute 16-bit ones.
pub(crate) fn cache_dtype(weights: DType) -> DType {
    match mixed_dtype() {
        Some(half) if weights == DType::F32 => half,
        _ => weights,
    }
}

/// Checks that there is a target for each token.
fn check_targets(tokens: &Tensor, targets: &Tensor) -> Result<()> {
    if tokens.shape() == targets.shape() {
        return Ok(());
    }
    let (lhs, rhs, rule) = (*tokens.shape(), *targets.shape(), &ShapeRule::Same);
    Err(Error::ShapeMismatch { op: "loss", lhs, rhs, rule })
}

/// Checks the tokens, computes hidden states, and advances the cache.
pub(crate) fn hidden_states(
    model: &impl LanguageModel,
    op: &'static str,
    tokens: &Tensor,
    mut cache: Option<&mut KeyValueCache>,
    forward: impl FnOnce(Option<&mut KeyValueCache>) -> Result<Tensor>,
) -> Result<Tensor> {
    let sizes = |batch, capacity| model.cache_options(batch, capacity);
    let [_, len, _] = check_tokens(op, tokens, cache.as_deref(), model.context(), sizes)?;
    let hidden = forward(cache.as_deref_mut())?;
    if let Some(cache) = cache {
        cache.advance(len)?;
    }
    Ok(hidden)
}

/// Checks the tokens and the cache of a model. Returns the numbers of sequences and tokens, and the first position.
fn check_tokens(
    op: &'static str,
    tokens: &Tensor,
    cache: Option<&KeyValueCache>,
    context: usize,
    sizes: impl FnOnce(usize, usize) -> KeyValueCacheOptions,
) -> Result<[usize; 3]> {
    let &[batch, len] = tokens.dims() else {
        let expected = "tokens of two axes: sequence, position";
        return Err(Error::BadRank { op, expected, shape: *tokens.shape() });
    };
    let start = cache.map_or(0, KeyValueCache::len);
    if len == 0 || start.saturating_add(len) > context {
        let got = format!("{len} tokens after {start} for a context of {context}");
        let expected = "at least one, within the context of the model";
        return Err(Error::BadArgument { op, argument: "tokens", expected, got });
    }
    if let Some(cache) = cache {
        cache.check_room(len)?;
        let (own, needed) = (*cache.options(), sizes(batch, cache.options().capacity));
        if own != needed {
            let (got, expected) =
                (format!("{own:?} instead of {needed:?}"), "of this model and number of sequences");
            return Err(Error::BadArgument { op, argument: "cache", expected, got });
        }
    }
    Ok([batch, len, start])
}
