//! BERT (Devlin et al. 2019), and encoders of sentences such as all-MiniLM-L6-v2.

use highwater_nn::io::Weights;
use highwater_nn::modules::{Embedding, LayerNorm, Linear, Module, chain_with, module};
use highwater_tensor::{Activation, AttentionOptions, DType, Device, Error, Result, Rng, Tensor};

use crate::error::{ModelError, TensorShape};
use crate::fields::{Fields, check_divides};
use crate::parameters::{Names, Path, Random, Source, from_file, shapes_of};

const OP: &str = "bert";

/// The configuration of a [`Bert`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BertConfig {
    /// The number of tokens (`vocab_size`).
    pub vocabulary: usize,
    /// The width of hidden states (`hidden_size`).
    pub width: usize,
    /// The width inside of the feed-forward layers (`intermediate_size`).
    pub inside: usize,
    /// The number of layers (`num_hidden_layers`).
    pub layers: usize,
    /// The number of heads (`num_attention_heads`).
    pub heads: usize,
    /// The largest number of positions (`max_position_embeddings`).
    pub positions: usize,
    /// The number of token types (`type_vocab_size`).
    pub types: usize,
    /// ε of the norms (`layer_norm_eps`).
    pub epsilon: f64,
    /// The activation of the feed-forward layers (`hidden_act`): [`Activation::Gelu`], [`Activation::GeluTanh`] or
    /// [`Activation::Relu`].
    pub activation: Activation,
}

impl BertConfig {
    /// Reads the text of a `config.json` with `"model_type": "bert"`.
    ///
    /// # Errors
    /// [`ModelError::Json`], [`ModelError::UnknownArchitecture`], [`ModelError::MissingField`] and
    /// [`ModelError::BadField`] for an invalid file; [`ModelError::Unsupported`] for other activations, relative positions
    /// and decoders.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::of(text, "bert")?)
    }

    pub(crate) fn from_fields(fields: &Fields) -> Result<Self, ModelError> {
        let activation = match fields.text("hidden_act")? {
            None | Some("gelu") => Activation::Gelu,
            Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("relu") => Activation::Relu,
            Some(other) => return Err(fields.unsupported("hidden_act", other, "gelu, gelu_new and relu")),
        };
        fields.one_of("position_embedding_type", &["absolute"], "absolute")?;
        fields.only("is_decoder", false, "false")?;
        fields.only("add_cross_attention", false, "false")?;
        fields.absent("quantization_config")?;
        let (width, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
        check_divides("num_attention_heads", heads, width, "a divisor of hidden_size")?;
        Ok(Self {
            vocabulary: fields.size("vocab_size")?,
            width,
            inside: fields.size("intermediate_size")?,
            layers: fields.layers("num_hidden_layers")?,
            heads,
            positions: fields.optional_size("max_position_embeddings")?.unwrap_or(512),
            types: fields.optional_size("type_vocab_size")?.unwrap_or(2),
            epsilon: fields.optional_number("layer_norm_eps")?.unwrap_or(1e-12),
            activation,
        })
    }

    /// Returns the names and shapes of the model's tensors, without those of the optional pooler.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the sizes overflow, or if there is no memory for one element.
    pub fn tensors(&self, device: &Device) -> Result<Vec<TensorShape>, ModelError> {
        shapes_of(device, |source| Bert::build(self, source, false).map(drop))
    }
}

/// BERT's encoder: `[batch, len]` tokens to hidden states `[batch, len, width]`.
///
/// Parameters have the names of Hugging Face's `BertModel`. Files whose names have the prefix `bert.` can be read too;
/// their heads for pretraining are ignored.
///
/// ```
/// use highwater::models::{Bert, BertConfig};
/// use highwater::{Device, Rng, Tensor, no_grad};
/// let device = Device::cpu()?;
/// let config = BertConfig::from_json(
///     r#"{"model_type": "bert", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64,
///         "num_hidden_layers": 2, "num_attention_heads": 4}"#,
/// )?;
/// let model = Bert::new(&config, &device, &Rng::new(0))?;
/// // Two sentences of 4 and 2 tokens.
/// let tokens = Tensor::from_slice(&device, &[7i64, 3, 20, 4, 7, 4, 0, 0], [2, 4])?;
/// let mask = Tensor::from_slice(&device, &[true, true, true, true, true, true, false, false], [2, 4])?;
/// let embeddings = no_grad(|| model.sentence_embeddings(&tokens, &mask))?;
/// assert_eq!(embeddings.dims(), [2, 32]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Module)]
pub struct Bert {
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Option<Pooler>,
    #[module(skip)]
    config: BertConfig,
}

#[derive(Debug, Module)]
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    #[module(rename = "LayerNorm")]
    norm: LayerNorm,
}

#[derive(Debug, Module)]
struct Encoder {
    layer: Vec<Layer>,
}

#[derive(Clone, Debug, Module)]
struct Layer {
    attention: Attention,
    intermediate: Dense,
    output: Output,
}

#[derive(Clone, Debug, Module)]
struct Attention {
    #[module(rename = "self")]
    projections: SelfAttention,
    output: Output,
}

#[derive(Clone, Debug, Module)]
struct SelfAttention {
    heads: usize,
    query: Linear,
    key: Linear,
    value: Linear,
}

/// A linear layer, and the norm of its sum with the input of the block.
#[derive(Clone, Debug, Module)]
struct Output {
    dense: Linear,
    #[module(rename = "LayerNorm")]
    norm: LayerNorm,
}

#[derive(Clone, Debug, Module)]
struct Dense {
    dense: Linear,
}

/// The head of the first token, which was trained to predict the next sentence.
#[derive(Debug, Module)]
struct Pooler {
    dense: Linear,
}

impl Bert {
    /// Creates a model with random weights of `f32`, without a pooler.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if there is no memory.
    pub fn new(config: &BertConfig, device: &Device, rng: &Rng) -> Result<Self, ModelError> {
        Self::build(config, &mut Random { device, rng }, false)
    }

    /// Creates a model with the weights of a file, in their element types. The model has a pooler if the file has one.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] if the tensors of the file do not match the configuration; [`ModelError::Tensor`] if reading
    /// fails or if there is no memory.
    pub fn from_weights(
        config: &BertConfig,
        weights: &dyn Weights,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let names = Names { prefix: "bert.", has_prefix: false, ignored: is_ignored };
        let has_pooler = weights.names().iter().any(|name| name.ends_with("pooler.dense.weight"));
        from_file(weights, device, names, |source| Self::build(config, source, has_pooler))
    }

    /// Returns the device of the weights.
    #[must_use]
    pub fn device(&self) -> Device {
        self.embeddings.word_embeddings.weight().value().device().clone()
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &BertConfig {
        &self.config
    }

    fn build(config: &BertConfig, source: &mut dyn Source, has_pooler: bool) -> Result<Self, ModelError> {
        let &BertConfig { width, epsilon, .. } = config;
        let mut root = Path::root(source);
        let mut path = root.part("embeddings");
        let embeddings = Embeddings {
            word_embeddings: path.embedding("word_embeddings", config.vocabulary, width)?,
            position_embeddings: path.embedding("position_embeddings", config.positions, width)?,
            token_type_embeddings: path.embedding("token_type_embeddings", config.types, width)?,
            norm: path.layer_norm("LayerNorm", width, epsilon)?,
        };
        let mut path = root.part("encoder");
        let layer = (0..config.layers)
            .map(|layer| Layer::build(config, &mut path.part("layer").part(layer)))
            .collect::<Result<_, _>>()?;
        let pooler = has_pooler.then(|| {
            let dense = root.part("pooler").linear("dense", [width, width], true)?;
            Ok::<_, ModelError>(Pooler { dense })
        });
        Ok(Self {
            embeddings,
            encoder: Encoder { layer },
            pooler: pooler.transpose()?,
            config: config.clone(),
        })
    }
}

/// Tensors of other heads, and the positions 0, 1, ….
fn is_ignored(name: &str) -> bool {
    name.starts_with("cls.") || name.ends_with("embeddings.position_ids")
}

impl Layer {
    fn build(config: &BertConfig, path: &mut Path<'_>) -> Result<Self, ModelError> {
        let &BertConfig { width, inside, heads, epsilon, .. } = config;
        let mut attention = path.part("attention");
        let mut part = attention.part("self");
        let projections = SelfAttention {
            heads,
            query: part.linear("query", [width, width], true)?,
            key: part.linear("key", [width, width], true)?,
            value: part.linear("value", [width, width], true)?,
        };
        let output = Output::build(&mut attention.part("output"), [width, width], epsilon)?;
        let dense = path.part("intermediate").linear("dense", [width, inside], true)?;
        Ok(Self {
            attention: Attention { projections, output },
            intermediate: Dense { dense: dense.with_activation(config.activation) },
            output: Output::build(&mut path.part("output"), [inside, width], epsilon)?,
        })
    }
}

impl Output {
    fn build(path: &mut Path<'_>, sizes: [usize; 2], epsilon: f64) -> Result<Self, ModelError> {
        let dense = path.linear("dense", sizes, true)?;
        Ok(Self { dense, norm: path.layer_norm("LayerNorm", sizes[1], epsilon)? })
    }
}

#[module]
impl Embeddings {
    fn of_types(&self, tokens: &Tensor, types: Option<&Tensor>) -> Result<Tensor> {
        let len = tokens.dims().last().copied().unwrap_or(0);
        let positions = self.position_embeddings.weight().operand()?.narrow(0, 0, len)?;
        let words = self.word_embeddings.forward(tokens)?;
        let types = match types {
            Some(types) => self.token_type_embeddings.forward(types)?,
            None => self.token_type_embeddings.weight().operand()?.narrow(0, 0, 1)?,
        };
        self.norm.forward(&((words + &types)? + &positions)?)
    }
}

#[module]
impl Module for Embeddings {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.of_types(tokens, None)
    }
}

#[module]
impl SelfAttention {
    fn masked(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        let by_head = |layer: &Linear| {
            let rows = layer.forward(x)?;
            rows.reshape([batch, len, self.heads, width / self.heads])?.permute([0, 2, 1, 3])
        };
        let (query, key, value) = (by_head(&self.query)?, by_head(&self.key)?, by_head(&self.value)?);
        let mixed = query.attention(&key, &value, mask, AttentionOptions::default())?;
        mixed.permute([0, 2, 1, 3])?.reshape([batch, len, width])
    }
}

#[module]
impl Module for SelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.masked(x, None)
    }
}

#[module]
impl Output {
    /// Returns the norm of `input` plus the linear map of `x`.
    fn of_sum(&self, x: &Tensor, input: &Tensor) -> Result<Tensor> {
        self.norm.forward(&(self.dense.forward(x)? + input)?)
    }
}

#[module]
impl Module for Output {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.dense.forward(x)?)
    }
}

#[module]
impl Attention {
    fn masked(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        self.output.of_sum(&self.projections.masked(x, mask)?, x)
    }
}

#[module]
impl Module for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.masked(x, None)
    }
}

#[module]
impl Module for Dense {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.dense.forward(x)
    }
}

#[module]
impl Module for Pooler {
    /// Computes tanh(W x + b) of the first token of hidden states `[batch, len, width]`.
    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        self.dense.forward(&hidden.select(1, 0)?)?.tanh()
    }
}

#[module]
impl Layer {
    fn masked(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let mixed = self.attention.masked(x, mask)?;
        self.output.of_sum(&self.intermediate.forward(&mixed)?, &mixed)
    }
}

#[module]
impl Module for Layer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.masked(x, None)
    }
}

#[module]
impl Encoder {
    fn masked(&self, x: Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        chain_with(&self.layer, x, &mask.cloned(), |layer, x, mask| layer.masked(x, mask.as_ref()))
    }
}

#[module]
impl Module for Encoder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.masked(x.clone(), None)
    }
}

#[module]
impl Bert {
    /// Computes the hidden states of tokens `[batch, len]`. The mask `[batch, len]` is true (or not 0) at tokens, and false
    /// at padding, which other tokens do not see. `types` are the token types, 0 without them.
    ///
    /// # Errors
    /// [`Error::BadRank`] unless `tokens` has two axes, [`Error::BadArgument`] if they exceed the context,
    /// [`Error::ShapeMismatch`] for a mask or types of another shape, [`Error::IndexOutOfRange`] for a token outside of the
    /// vocabulary.
    pub fn forward_masked(
        &self,
        tokens: &Tensor,
        mask: Option<&Tensor>,
        types: Option<&Tensor>,
    ) -> Result<Tensor> {
        let &[batch, len] = tokens.dims() else {
            let expected = "tokens of two axes: sentence, position";
            return Err(Error::BadRank { op: OP, expected, shape: *tokens.shape() });
        };
        if len > self.config.positions {
            let got = format!("{len} tokens for a context of {}", self.config.positions);
            let expected = "within the context of the model";
            return Err(Error::BadArgument { op: OP, argument: "tokens", expected, got });
        }
        for given in [mask, types].into_iter().flatten() {
            same_shape(given, tokens)?;
        }
        let mask = mask.map(|mask| truths(mask)?.reshape([batch, 1, 1, len])).transpose()?;
        let x = self.embeddings.of_types(tokens, types)?;
        self.encoder.masked(x, mask.as_ref())
    }

    /// Computes an embedding for each sentence, `[batch, width]`: the mean of the hidden states of its tokens, divided by
    /// its norm (sentence-transformers' mean pooling). Cosines of sentences are products of their embeddings.
    ///
    /// # Errors
    /// As [`forward_masked`](Self::forward_masked).
    pub fn sentence_embeddings(&self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let hidden = self.forward_masked(tokens, Some(mask), None)?;
        let weights = truths(mask)?.to_dtype(hidden.dtype())?.unsqueeze(-1)?;
        // A sentence without tokens has the embedding 0.
        let count = weights.sum(1)?.clamp(1e-9, f64::INFINITY)?;
        let mean = hidden.mul(&weights)?.sum(1)?.div(&count)?;
        let norm = mean.square()?.sum_keepdim(-1)?.sqrt()?.clamp(1e-12, f64::INFINITY)?;
        mean.div(&norm)
    }

    /// Computes the pooled state of the first token, `[batch, width]`, of hidden states. `None` without a pooler.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn pooled(&self, hidden: &Tensor) -> Result<Option<Tensor>> {
        self.pooler.as_ref().map(|pooler| pooler.forward(hidden)).transpose()
    }
}

#[module]
impl Module for Bert {
    /// Computes the hidden states of tokens `[batch, len]` without padding.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.forward_masked(tokens, None, None)
    }
}

/// Converts a mask of integers to booleans.
fn truths(mask: &Tensor) -> Result<Tensor> {
    if mask.dtype() == DType::Bool { Ok(mask.detach()) } else { mask.ne(0) }
}

fn same_shape(given: &Tensor, tokens: &Tensor) -> Result<()> {
    if given.shape() == tokens.shape() {
        return Ok(());
    }
    let rule = &highwater_tensor::error::ShapeRule::Same;
    Err(Error::ShapeMismatch { op: OP, lhs: *tokens.shape(), rhs: *given.shape(), rule })
}
