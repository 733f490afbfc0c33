//! The configuration of Llama.

use highwater_nn::modules::Llama3Scaling;

use crate::error::ModelError;
use crate::fields::{Fields, check_divides};

/// The configuration of a [`Llama`](crate::Llama).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LlamaConfig {
    /// The number of tokens (`vocab_size`).
    pub vocabulary: usize,
    /// The width of hidden states (`hidden_size`).
    pub width: usize,
    /// The width inside of the feed-forward layers (`intermediate_size`).
    pub inside: usize,
    /// The number of layers (`num_hidden_layers`).
    pub layers: usize,
    /// The number of heads of queries (`num_attention_heads`).
    pub heads: usize,
    /// The number of heads of keys and values (`num_key_value_heads`).
    pub key_heads: usize,
    /// The number of elements of a head (`head_dim`).
    pub head_width: usize,
    /// The largest number of positions (`max_position_embeddings`). The model has two tables of this many rows of
    /// `head_width` values; a smaller context makes them smaller.
    pub positions: usize,
    /// ε of the norms (`rms_norm_eps`).
    pub epsilon: f64,
    /// The base of the frequencies of the rotary embeddings (`rope_theta`).
    pub theta: f64,
    /// The scaling of the frequencies (`rope_scaling`).
    pub scaling: Option<Llama3Scaling>,
    /// Divisors of the frequencies, one for each pair of a head, as GGUF files store a scaling.
    pub frequency_divisors: Option<Vec<f64>>,
    /// Whether the output layer is the embedding (`tie_word_embeddings`).
    pub tied: bool,
    /// Whether the projections of the attention have biases (`attention_bias`).
    pub attention_bias: bool,
    /// Whether the feed-forward layers have biases (`mlp_bias`).
    pub mlp_bias: bool,
    /// The tokens that begin a text (`bos_token_id`).
    pub start_tokens: Vec<u32>,
    /// The tokens that end a text (`eos_token_id`).
    pub stop_tokens: Vec<u32>,
}

impl LlamaConfig {
    /// Reads the text of a `config.json` with `"model_type": "llama"`.
    ///
    /// # Errors
    /// [`ModelError::Json`], [`ModelError::UnknownArchitecture`], [`ModelError::MissingField`] and
    /// [`ModelError::BadField`] for an invalid file; [`ModelError::Unsupported`] for other activations, other scalings of
    /// the rotary embeddings, and quantized weights.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::of(text, "llama")?)
    }

    pub(crate) fn from_fields(fields: &Fields) -> Result<Self, ModelError> {
        fields.one_of("hidden_act", &["silu", "swish"], "silu")?;
        fields.absent("quantization_config")?;
        let (heads, width) = (fields.size("num_attention_heads")?, fields.size("hidden_size")?);
        let head_width = match fields.optional_size("head_dim")? {
            Some(head_width) => head_width,
            None => {
                check_divides("num_attention_heads", heads, width, "a divisor of hidden_size")?;
                width / heads
            }
        };
        // `transformers` 5 has all options of the rotary embeddings in one object.
        let scaling = fields.object("rope_parameters")?;
        let theta = match &scaling {
            Some(parameters) => parameters.optional_number("rope_theta")?,
            None => None,
        };
        let theta = match theta {
            Some(theta) => Some(theta),
            None => fields.optional_number("rope_theta")?,
        };
        let scaling = match scaling {
            Some(parameters) => Some(parameters),
            None => fields.object("rope_scaling")?,
        };
        let config = Self {
            vocabulary: fields.size("vocab_size")?,
            width,
            inside: fields.size("intermediate_size")?,
            layers: fields.layers("num_hidden_layers")?,
            heads,
            key_heads: fields.optional_size("num_key_value_heads")?.unwrap_or(heads),
            head_width,
            positions: fields.optional_size("max_position_embeddings")?.unwrap_or(2048),
            epsilon: fields.optional_number("rms_norm_eps")?.unwrap_or(1e-6),
            theta: theta.unwrap_or(10_000.0),
            scaling: scaling.map(|scaling| llama3_scaling(&scaling)).transpose()?.flatten(),
            frequency_divisors: None,
            tied: fields.flag("tie_word_embeddings", false)?,
            attention_bias: fields.flag("attention_bias", false)?,
            mlp_bias: fields.flag("mlp_bias", false)?,
            start_tokens: fields.tokens("bos_token_id")?,
            stop_tokens: fields.tokens("eos_token_id")?,
        };
        config.check()?;
        Ok(config)
    }

    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let expected = "a divisor of num_attention_heads";
        check_divides("num_key_value_heads", self.key_heads, self.heads, expected)?;
        if !self.head_width.is_multiple_of(2) {
            let (field, got) = ("head_dim".to_owned(), self.head_width.to_string());
            return Err(ModelError::BadField { field, expected: "even", got });
        }
        Ok(())
    }
}

/// Reads a scaling; `None` for the default of none.
fn llama3_scaling(fields: &Fields) -> Result<Option<Llama3Scaling>, ModelError> {
    let named = match fields.text("rope_type")? {
        Some(text) => Some(("rope_type", text)),
        None => fields.text("type")?.map(|text| ("type", text)),
    };
    match named {
        None | Some((_, "default")) => Ok(None),
        Some((_, "llama3")) => Ok(Some(Llama3Scaling {
            factor: fields.number("factor")?,
            low_frequency_factor: fields.number("low_freq_factor")?,
            high_frequency_factor: fields.number("high_freq_factor")?,
            original_positions: fields.size("original_max_position_embeddings")?,
        })),
        Some((field, other)) => Err(fields.unsupported(field, other, "default and llama3")),
    }
}
