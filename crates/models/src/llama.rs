//! Llama (Touvron et al. 2023), and models of the same architecture such as SmolLM2.

use highwater_nn::io::{Gguf, Weights};
use highwater_nn::modules::{
    Embedding, GroupedQueryAttention, KeyValueCache, KeyValueCacheOptions, Linear, Module, RmsNorm,
    RotaryEmbedding, RotaryOptions, SwiGlu, chain, module,
};
use highwater_tensor::{Device, LinearCrossEntropyOptions, Result, Rng, Tensor};

use crate::error::{ModelError, TensorShape};
use crate::gguf::GgufWeights;
use crate::language_model::{LanguageModel, cache_dtype, hidden_states};
use crate::llama_config::LlamaConfig;
use crate::parameters::{Names, Path, Random, Source, from_file, shapes_of};

const OP: &str = "llama";

impl LlamaConfig {
    /// Returns the names and shapes of the model's tensors.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the sizes overflow, or if there is no memory for one element.
    pub fn tensors(&self, device: &Device) -> Result<Vec<TensorShape>, ModelError> {
        shapes_of(device, |source| Llama::build(self, source, None).map(drop))
    }

    fn rotary(&self, device: &Device) -> Result<RotaryEmbedding> {
        let options = RotaryOptions { theta: self.theta, scaling: self.scaling, ..RotaryOptions::default() };
        match &self.frequency_divisors {
            None => RotaryEmbedding::new(device, self.head_width, self.positions, options),
            Some(divisors) => {
                let frequencies = options.frequencies(self.head_width).into_iter();
                let frequencies: Vec<f64> =
                    frequencies.zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect();
                RotaryEmbedding::with_frequencies(device, &frequencies, self.positions, options)
            }
        }
    }
}

/// A language model of the architecture of Llama: `[batch, len]` tokens to `[batch, len, vocabulary]` logits.
///
/// Parameters have the names of Hugging Face's `LlamaForCausalLM`.
///
/// ```
/// use highwater::models::{LanguageModel, Llama, LlamaConfig};
/// use highwater::nn::Module;
/// use highwater::{Device, Rng, Tensor, no_grad};
/// let device = Device::cpu()?;
/// let config = LlamaConfig::from_json(
///     r#"{"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
///         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
///         "max_position_embeddings": 64, "tie_word_embeddings": true}"#,
/// )?;
/// let model = Llama::new(&config, &device, &Rng::new(0))?;
/// assert_eq!(model.parameters()[1].0, "model.layers.0.self_attn.q_proj.weight");
///
/// let mut cache = model.new_cache(1, 64)?;
/// let tokens = Tensor::from_slice(&device, &[7i64, 3, 20], [1, 3])?;
/// let logits = no_grad(|| model.forward_cached(&tokens, &mut cache))?;
/// assert_eq!((logits.dims(), cache.len()), (&[1, 3, 50][..], 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// From files:
///
/// ```no_run
/// use highwater::io::{Gguf, GgufLimits, MappedSafetensors, Quantized, SafetensorsLimits};
/// use highwater::models::{Llama, LlamaConfig};
/// use highwater::{BlockFormat, Device};
/// let device = Device::cpu()?;
/// let config = LlamaConfig::from_json(&std::fs::read_to_string("config.json")?)?;
/// let file = MappedSafetensors::open("model.safetensors", &SafetensorsLimits::default())?;
/// let model = Llama::from_weights(&config, &file, &device)?;
/// let dequantized = Llama::from_gguf(&Gguf::open("model.gguf", &GgufLimits::default())?, &device)?;
/// let nf4 = Llama::from_weights(&config, &Quantized::new(&file, BlockFormat::Nf4), &device)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Module)]
pub struct Llama {
    model: LlamaModel,
    lm_head: Option<Linear>,
    #[module(skip)]
    config: LlamaConfig,
}

/// The layers below the output layer.
#[derive(Debug, Module)]
struct LlamaModel {
    embed_tokens: Embedding,
    layers: Vec<LlamaLayer>,
    norm: RmsNorm,
}

#[derive(Clone, Debug, Module)]
struct LlamaLayer {
    self_attn: GroupedQueryAttention,
    mlp: SwiGlu,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl Llama {
    /// Creates a model with random weights of `f32`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if there is no memory.
    pub fn new(config: &LlamaConfig, device: &Device, rng: &Rng) -> Result<Self, ModelError> {
        Self::build(config, &mut Random { device, rng }, Some(config.rotary(device)?))
    }

    /// Creates a model with the weights of a file, in their element types.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] if the tensors of the file do not match the configuration; [`ModelError::Tensor`] if reading
    /// fails or if there is no memory.
    pub fn from_weights(
        config: &LlamaConfig,
        weights: &dyn Weights,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let names = Names { prefix: "model.", has_prefix: true, ignored: is_ignored };
        let rotary = config.rotary(device)?;
        let model =
            from_file(weights, device, names, |source| Self::build(config, source, Some(rotary.clone())))?;
        Ok(model)
    }

    /// Creates a model with the configuration and the weights of a GGUF file. Quantized weights become `f32`:
    /// [`from_gguf_quantized`](Self::from_gguf_quantized) keeps them.
    ///
    /// # Errors
    /// As [`LlamaConfig::from_gguf`] and [`from_weights`](Self::from_weights).
    pub fn from_gguf(file: &Gguf, device: &Device) -> Result<Self, ModelError> {
        let config = LlamaConfig::from_gguf(file)?;
        Self::from_weights(&config, &GgufWeights::llama(file, &config), device)
    }

    /// Creates a model as [`from_gguf`](Self::from_gguf), which keeps the blocks of tensors of the types `Q8_0`, `Q4_0` and
    /// `Q4_1`. Their memory is that in the file. Products dequantize them by tile. Training does not change them.
    ///
    /// ```no_run
    /// use highwater::Device;
    /// use highwater::io::{Gguf, GgufLimits};
    /// use highwater::models::Llama;
    /// let file = Gguf::open("SmolLM2-135M-Instruct.Q4_1.gguf", &GgufLimits::default())?;
    /// let model = Llama::from_gguf_quantized(&file, &Device::cpu()?)?;
    /// println!("{model:#?}"); // … q_proj: Linear(576 -> 576, no bias, Q4_1) …
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_gguf`](Self::from_gguf).
    pub fn from_gguf_quantized(file: &Gguf, device: &Device) -> Result<Self, ModelError> {
        let config = LlamaConfig::from_gguf(file)?;
        Self::from_weights(&config, &GgufWeights::llama(file, &config).keeping_blocks(), device)
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &LlamaConfig {
        &self.config
    }

    fn build(
        config: &LlamaConfig,
        source: &mut dyn Source,
        rotary: Option<RotaryEmbedding>,
    ) -> Result<Self, ModelError> {
        let mut root = Path::root(source);
        let mut model = root.part("model");
        let embed_tokens = model.token_embedding("embed_tokens", config.vocabulary, config.width)?;
        let layers = (0..config.layers)
            .map(|layer| LlamaLayer::build(config, &mut model.part("layers").part(layer), rotary.as_ref()))
            .collect::<Result<_, _>>()?;
        let norm = model.rms_norm("norm", config.width, config.epsilon)?;
        let sizes = [config.width, config.vocabulary];
        let lm_head = (!config.tied).then(|| root.linear("lm_head", sizes, false)).transpose()?;
        Ok(Self { model: LlamaModel { embed_tokens, layers, norm }, lm_head, config: config.clone() })
    }
}

/// Tensors that this model computes: the frequencies, and a copy of the tied output layer.
fn is_ignored(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight"
}

impl LlamaLayer {
    fn build(
        config: &LlamaConfig,
        path: &mut Path<'_>,
        rotary: Option<&RotaryEmbedding>,
    ) -> Result<Self, ModelError> {
        let &LlamaConfig { width, inside, heads, key_heads, head_width, epsilon, .. } = config;
        let [queries, keys] = [heads, key_heads].map(|count| count.saturating_mul(head_width));
        let (mut part, bias) = (path.part("self_attn"), config.attention_bias);
        let projections = [
            part.linear("q_proj", [width, queries], bias)?,
            part.linear("k_proj", [width, keys], bias)?,
            part.linear("v_proj", [width, keys], bias)?,
            part.linear("o_proj", [queries, width], bias)?,
        ];
        let self_attn = GroupedQueryAttention::from_layers(projections, heads, key_heads)?;
        let self_attn = match rotary {
            Some(rotary) => self_attn.with_rotary(rotary.clone()),
            None => self_attn,
        };
        let (mut part, bias) = (path.part("mlp"), config.mlp_bias);
        let gate = part.linear("gate_proj", [width, inside], bias)?;
        let up = part.linear("up_proj", [width, inside], bias)?;
        let mlp = SwiGlu::from_layers(gate, up, part.linear("down_proj", [inside, width], bias)?);
        let input_layernorm = path.rms_norm("input_layernorm", width, epsilon)?;
        let post_attention_layernorm = path.rms_norm("post_attention_layernorm", width, epsilon)?;
        Ok(Self { self_attn, mlp, input_layernorm, post_attention_layernorm })
    }
}

#[module]
impl LlamaLayer {
    fn forward_cached(&self, x: &Tensor, cache: Option<&mut KeyValueCache>, layer: usize) -> Result<Tensor> {
        let normalized = self.input_layernorm.forward(x)?;
        let mixed = match cache {
            Some(cache) => self.self_attn.forward_cached(&normalized, cache, layer)?,
            None => self.self_attn.forward(&normalized)?,
        };
        // The sums reuse the buffer of the branch.
        let x = (mixed + x)?;
        self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)? + &x
    }
}

#[module]
impl Module for LlamaLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_cached(x, None, 0)
    }
}

#[module]
impl LlamaModel {
    fn forward_cached(&self, tokens: &Tensor, mut cache: Option<&mut KeyValueCache>) -> Result<Tensor> {
        let mut x = self.embed_tokens.forward(tokens)?;
        if cache.is_none() {
            return self.norm.forward(&chain(&self.layers, &x)?);
        }
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.forward_cached(&x, cache.as_deref_mut(), number)?;
        }
        self.norm.forward(&x)
    }
}

#[module]
impl Module for LlamaModel {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.forward_cached(tokens, None)
    }
}

#[module]
impl Llama {
    fn hidden_states(&self, tokens: &Tensor, cache: Option<&mut KeyValueCache>) -> Result<Tensor> {
        hidden_states(self, OP, tokens, cache, |cache| self.model.forward_cached(tokens, cache))
    }

    fn scores(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => self.model.embed_tokens.logits(hidden),
        }
    }

    fn loss_of(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Tensor> {
        match &self.lm_head {
            Some(head) => head.linear_cross_entropy(hidden, targets, options),
            None => self.model.embed_tokens.linear_cross_entropy(hidden, targets, options),
        }
    }
}

#[module]
impl Module for Llama {
    /// Computes the logits of all positions of tokens `[batch, len]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.scores(&self.hidden_states(tokens, None)?)
    }
}

impl LanguageModel for Llama {
    fn hidden(&self, tokens: &Tensor, cache: Option<&mut KeyValueCache>) -> Result<Tensor> {
        self.hidden_states(tokens, cache)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.scores(hidden)
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
        let LlamaConfig { layers, key_heads, head_width, .. } = self.config;
        let dtype = cache_dtype(self.model.embed_tokens.dtype());
        KeyValueCacheOptions { layers, batch, heads: key_heads, capacity, width: head_width, dtype }
    }

    fn device(&self) -> Device {
        self.model.embed_tokens.weight().value().device().clone()
    }
}
