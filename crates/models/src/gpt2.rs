//! GPT-2 (Radford et al. 2019).

use highwater_nn::io::Weights;
use highwater_nn::modules::{
    Embedding, KeyValueCache, KeyValueCacheOptions, LayerNorm, Linear, Module, chain, module,
};
use highwater_tensor::{
    Activation, AttentionOptions, Device, LinearCrossEntropyOptions, Result, Rng, Tensor,
};

use crate::error::{ModelError, TensorShape};
use crate::fields::{Fields, check_divides};
use crate::language_model::{LanguageModel, cache_dtype, hidden_states};
use crate::parameters::{Names, Path, Random, Source, from_file, shapes_of};

const OP: &str = "gpt2";

/// The configuration of a [`Gpt2`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gpt2Config {
    /// The number of tokens (`vocab_size`).
    pub vocabulary: usize,
    /// The width of hidden states (`n_embd`).
    pub width: usize,
    /// The width inside of the feed-forward layers (`n_inner`).
    pub inside: usize,
    /// The number of layers (`n_layer`).
    pub layers: usize,
    /// The number of heads (`n_head`).
    pub heads: usize,
    /// The largest number of positions (`n_positions`).
    pub positions: usize,
    /// ε of the norms (`layer_norm_epsilon`).
    pub epsilon: f64,
    /// The tokens that end a text (`eos_token_id`).
    pub stop_tokens: Vec<u32>,
}

impl Gpt2Config {
    /// Reads the text of a `config.json` with `"model_type": "gpt2"`.
    ///
    /// # Errors
    /// [`ModelError::Json`], [`ModelError::UnknownArchitecture`], [`ModelError::MissingField`] and
    /// [`ModelError::BadField`] for an invalid file; [`ModelError::Unsupported`] for other activations and scalings.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::of(text, "gpt2")?)
    }

    pub(crate) fn from_fields(fields: &Fields) -> Result<Self, ModelError> {
        fields.one_of("activation_function", &["gelu_new", "gelu_pytorch_tanh"], "gelu_new")?;
        fields.only("scale_attn_weights", true, "true")?;
        fields.only("scale_attn_by_inverse_layer_idx", false, "false")?;
        fields.only("add_cross_attention", false, "false")?;
        fields.only("tie_word_embeddings", true, "true")?;
        fields.absent("quantization_config")?;
        let (width, heads) = (fields.size("n_embd")?, fields.size("n_head")?);
        check_divides("n_head", heads, width, "a divisor of n_embd")?;
        Ok(Self {
            vocabulary: fields.size("vocab_size")?,
            width,
            inside: fields.optional_size("n_inner")?.unwrap_or(4 * width),
            layers: fields.layers("n_layer")?,
            heads,
            positions: fields.optional_size("n_positions")?.unwrap_or(1024),
            epsilon: fields.optional_number("layer_norm_epsilon")?.unwrap_or(1e-5),
            stop_tokens: fields.tokens("eos_token_id")?,
        })
    }

    /// Returns the names and shapes of the model's tensors.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the sizes overflow, or if there is no memory for one element.
    pub fn tensors(&self, device: &Device) -> Result<Vec<TensorShape>, ModelError> {
        shapes_of(device, |source| Gpt2::build(self, source).map(drop))
    }
}

/// GPT-2: `[batch, len]` tokens to `[batch, len, vocabulary]` logits.
///
/// Parameters have the names of Hugging Face's `GPT2LMHeadModel`. Files whose names lack the prefix `transformer.` can be
/// read too.
///
/// ```
/// use highwater::models::{Gpt2, Gpt2Config};
/// use highwater::nn::Module;
/// use highwater::{Device, Rng, Tensor};
/// let device = Device::cpu()?;
/// let config = Gpt2Config::from_json(
///     r#"{"model_type": "gpt2", "vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}"#,
/// )?;
/// let model = Gpt2::new(&config, &device, &Rng::new(0))?;
/// let tokens = Tensor::from_slice(&device, &[7i64, 3, 20], [1, 3])?;
/// assert_eq!(model.forward(&tokens)?.dims(), [1, 3, 50]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Module)]
pub struct Gpt2 {
    transformer: Transformer,
    #[module(skip)]
    config: Gpt2Config,
}

#[derive(Debug, Module)]
struct Transformer {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

#[derive(Clone, Debug, Module)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: FeedForward,
}

#[derive(Clone, Debug, Module)]
struct Attention {
    heads: usize,
    c_attn: Linear,
    c_proj: Linear,
}

#[derive(Clone, Debug, Module)]
struct FeedForward {
    c_fc: Linear,
    c_proj: Linear,
}

impl Gpt2 {
    /// Creates a model with random weights of `f32`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if there is no memory.
    pub fn new(config: &Gpt2Config, device: &Device, rng: &Rng) -> Result<Self, ModelError> {
        Self::build(config, &mut Random { device, rng })
    }

    /// Creates a model with the weights of a file, in their element types.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] if the tensors of the file do not match the configuration; [`ModelError::Tensor`] if reading
    /// fails or if there is no memory.
    pub fn from_weights(
        config: &Gpt2Config,
        weights: &dyn Weights,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let names = Names { prefix: "transformer.", has_prefix: true, ignored: is_ignored };
        from_file(weights, device, names, |source| Self::build(config, source))
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &Gpt2Config {
        &self.config
    }

    fn build(config: &Gpt2Config, source: &mut dyn Source) -> Result<Self, ModelError> {
        let mut root = Path::root(source);
        let mut path = root.part("transformer");
        let wte = path.embedding("wte", config.vocabulary, config.width)?;
        let wpe = path.embedding("wpe", config.positions, config.width)?;
        let h = (0..config.layers)
            .map(|layer| Block::build(config, &mut path.part("h").part(layer)))
            .collect::<Result<_, _>>()?;
        let ln_f = path.layer_norm("ln_f", config.width, config.epsilon)?;
        Ok(Self { transformer: Transformer { wte, wpe, h, ln_f }, config: config.clone() })
    }
}

/// Tensors that this model computes: causal masks, and a copy of the tied output layer.
fn is_ignored(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name == "lm_head.weight"
}

impl Block {
    fn build(config: &Gpt2Config, path: &mut Path<'_>) -> Result<Self, ModelError> {
        let &Gpt2Config { width, inside, heads, epsilon, .. } = config;
        let ln_1 = path.layer_norm("ln_1", width, epsilon)?;
        let mut part = path.part("attn");
        let c_attn = part.conv1d("c_attn", [width, width.saturating_mul(3)])?;
        let attn = Attention { heads, c_attn, c_proj: part.conv1d("c_proj", [width, width])? };
        let ln_2 = path.layer_norm("ln_2", width, epsilon)?;
        let mut part = path.part("mlp");
        let c_fc = part.conv1d("c_fc", [width, inside])?.with_activation(Activation::GeluTanh);
        let mlp = FeedForward { c_fc, c_proj: part.conv1d("c_proj", [inside, width])? };
        Ok(Self { ln_1, attn, ln_2, mlp })
    }
}

#[module]
impl Attention {
    fn forward_cached(&self, x: &Tensor, cache: Option<(&mut KeyValueCache, usize)>) -> Result<Tensor> {
        let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
        let parts = self.c_attn.forward(x)?;
        let Some((cache, layer)) = cache else {
            return self.c_proj.forward(&parts.self_attention(self.heads, options)?);
        };
        let (batch, len, width) = x.dims3()?;
        let by_head = parts.reshape([batch, len, 3, self.heads, width / self.heads])?;
        let by_head = by_head.permute([2, 0, 3, 1, 4])?;
        let [keys, values] = cache.append(layer, &by_head.at(1)?, &by_head.at(2)?)?;
        let mixed = by_head.at(0)?.attention(&keys, &values, None, options)?;
        self.c_proj.forward(&mixed.permute([0, 2, 1, 3])?.reshape([batch, len, width])?)
    }
}

#[module]
impl Module for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_cached(x, None)
    }
}

#[module]
impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.c_proj.forward(&self.c_fc.forward(x)?)
    }
}

#[module]
impl Block {
    fn forward_cached(&self, x: &Tensor, cache: Option<(&mut KeyValueCache, usize)>) -> Result<Tensor> {
        // The sums reuse the buffer of the branch.
        let x = (self.attn.forward_cached(&self.ln_1.forward(x)?, cache)? + x)?;
        self.mlp.forward(&self.ln_2.forward(&x)?)? + &x
    }
}

#[module]
impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_cached(x, None)
    }
}

#[module]
impl Transformer {
    fn forward_cached(&self, tokens: &Tensor, mut cache: Option<&mut KeyValueCache>) -> Result<Tensor> {
        let (start, len) = (cache.as_ref().map_or(0, |cache| cache.len()), tokens.dims().last().copied());
        let positions = self.wpe.weight().operand()?.narrow(0, start, len.unwrap_or(0))?;
        let mut x = (self.wte.forward(tokens)? + &positions)?;
        if cache.is_none() {
            return self.ln_f.forward(&chain(&self.h, &x)?);
        }
        for (number, block) in self.h.iter().enumerate() {
            x = block.forward_cached(&x, cache.as_deref_mut().map(|cache| (cache, number)))?;
        }
        self.ln_f.forward(&x)
    }
}

#[module]
impl Module for Transformer {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.forward_cached(tokens, None)
    }
}

#[module]
impl Gpt2 {
    fn hidden_states(&self, tokens: &Tensor, cache: Option<&mut KeyValueCache>) -> Result<Tensor> {
        hidden_states(self, OP, tokens, cache, |cache| self.transformer.forward_cached(tokens, cache))
    }

    fn loss_of(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Tensor> {
        self.transformer.wte.linear_cross_entropy(hidden, targets, options)
    }
}

#[module]
impl Module for Gpt2 {
    /// Computes the logits of all positions of tokens `[batch, len]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.transformer.wte.logits(&self.hidden_states(tokens, None)?)
    }
}

impl LanguageModel for Gpt2 {
    fn hidden(&self, tokens: &Tensor, cache: Option<&mut KeyValueCache>) -> Result<Tensor> {
        self.hidden_states(tokens, cache)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.transformer.wte.logits(hidden)
    }

    fn hidden_loss(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Tensor> {
        self.loss_of(hidden, targets, options)
    }

    fn context(&self) -> usize {
        self.config.positions
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn stop_tokens(&self) -> &[u32] {
        &self.config.stop_tokens
    }

    fn cache_options(&self, batch: usize, capacity: usize) -> KeyValueCacheOptions {
        let Gpt2Config { layers, heads, width, .. } = self.config;
        let dtype = cache_dtype(self.transformer.wte.weight().value().dtype());
        KeyValueCacheOptions { layers, batch, heads, capacity, width: width / heads, dtype }
    }

    fn device(&self) -> Device {
        self.transformer.wte.weight().value().device().clone()
    }
}
