//! Llama in GGUF files: their metadata as a configuration, and their tensors under Hugging Face's names.
//!
//! Files store the rows of `attn_q` and `attn_k` in the order of interleaved rotary embeddings. They are brought into the
//! order of Hugging Face when they are loaded, so that a model has the same parameters from both kinds of files:
//!
//! ```text
//! file:   row 2i of a head is element i of the first half, row 2i + 1 is element i of the second half
//! model:  the first half, then the second half
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use highwater_nn::io::{Gguf, GgufValue, WeightInfo, Weights};
use highwater_tensor::error::Skipped;
use highwater_tensor::{Device, QuantizedMatrix, Result, Tensor};

use crate::error::ModelError;
use crate::fields::unknown;
use crate::llama_config::LlamaConfig;

/// The parts of a layer: the names in GGUF files and those of Hugging Face.
const LAYER: [(&str, &str); 9] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// The divisors of the frequencies of the rotary embeddings, in files of Llama 3.1 and later.
const DIVISORS: &str = "rope_freqs.weight";

/// Returns Hugging Face's name of a tensor of Llama, or the name itself.
fn renamed(name: &str) -> String {
    let known = || {
        let (module, kind) = name.rsplit_once('.')?;
        Some(match module {
            "token_embd" => format!("model.embed_tokens.{kind}"),
            "output_norm" => format!("model.norm.{kind}"),
            "output" => format!("lm_head.{kind}"),
            _ => {
                let (layer, part) = module.strip_prefix("blk.")?.split_once('.')?;
                let (_, part) = LAYER.iter().find(|(own, _)| *own == part)?;
                format!("model.layers.{layer}.{part}.{kind}")
            }
        })
    };
    known().unwrap_or_else(|| name.to_owned())
}

/// The tensors of a GGUF file of a Llama under Hugging Face's names and in the order of its rows.
///
/// ```no_run
/// use highwater::io::{Gguf, GgufLimits, Weights};
/// use highwater::models::{GgufWeights, LlamaConfig};
/// let file = Gguf::open("model.gguf", &GgufLimits::default())?;
/// let weights = GgufWeights::llama(&file, &LlamaConfig::from_gguf(&file)?);
/// assert!(weights.names().contains(&"model.layers.0.self_attn.q_proj.weight"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GgufWeights<'a> {
    file: &'a dyn Weights,
    /// The name in the file of each of Hugging Face's names.
    names: BTreeMap<String, String>,
    skipped: Vec<Skipped>,
    /// The heads of queries and of keys.
    heads: [usize; 2],
    /// Whether quantized tensors stay in blocks.
    keeps_blocks: bool,
}

impl<'a> GgufWeights<'a> {
    /// Renames the tensors of a file of the architecture `llama`.
    #[must_use]
    pub fn llama(file: &'a Gguf, config: &LlamaConfig) -> Self {
        let in_file = file.names().into_iter().filter(|name| *name != DIVISORS);
        let names = in_file.map(|name| (renamed(name), name.to_owned())).collect();
        let skipped = file.skipped().iter().cloned();
        let skipped = skipped.map(|skipped| Skipped { name: renamed(&skipped.name), ..skipped }).collect();
        Self { file, names, skipped, heads: [config.heads, config.key_heads], keeps_blocks: false }
    }

    /// Returns the weights with the blocks of the file: models keep those tensors quantized that kernels compute with.
    /// Others become `f32`.
    #[must_use]
    pub fn keeping_blocks(self) -> Self {
        Self { keeps_blocks: true, ..self }
    }

    /// Returns the name of a tensor in the file.
    fn in_file<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// Brings rows of a projection from the order of the file into that of the model. Rows of blocks are rows too.
    fn ordered(&self, name: &str, rows: Tensor) -> Result<Tensor> {
        let projects_to = |projection: &str| name.split('.').any(|part| part == projection);
        if projects_to("q_proj") {
            halves_of_heads(&rows, self.heads[0])
        } else if projects_to("k_proj") {
            halves_of_heads(&rows, self.heads[1])
        } else {
            Ok(rows)
        }
    }
}

impl Weights for GgufWeights<'_> {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<&str> {
        self.names.keys().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.file.info(self.names.get(name)?)
    }

    fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.ordered(name, self.file.load(self.in_file(name), device)?)
    }

    fn load_quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        if !self.keeps_blocks {
            return Ok(None);
        }
        let Some(matrix) = self.file.load_quantized(self.in_file(name), device)? else { return Ok(None) };
        let format = matrix.format();
        QuantizedMatrix::from_blocks(self.ordered(name, matrix.bytes().clone())?, format).map(Some)
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}

/// Reorders the rows of each head: from interleaved pairs to two halves.
fn halves_of_heads(rows: &Tensor, heads: usize) -> Result<Tensor> {
    let count = rows.dims().first().copied().unwrap_or(0);
    let rest = rows.dims().get(1..).unwrap_or(&[]);
    if heads == 0 || !count.is_multiple_of(2 * heads) {
        return Ok(rows.clone());
    }
    let pairs = rows.reshape([&[heads, count / heads / 2, 2], rest].concat())?;
    pairs.transpose(1, 2)?.contiguous()?.reshape(rows.shape())
}

impl LlamaConfig {
    /// Reads the metadata of a GGUF file with the architecture `llama`.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json).
    pub fn from_gguf(file: &Gguf) -> Result<Self, ModelError> {
        llama_config(file)
    }
}

/// Reads the configuration of a Llama from the metadata of a file.
fn llama_config(file: &Gguf) -> Result<LlamaConfig, ModelError> {
    const ARCHITECTURE: &str = "general.architecture";
    let missing = |field: &str| ModelError::MissingField { field: field.to_owned() };
    let bad =
        |field: &str, expected, got: String| ModelError::BadField { field: field.to_owned(), expected, got };
    match file.get(ARCHITECTURE).and_then(GgufValue::as_str) {
        Some("llama") => {}
        Some(other) => return Err(unknown(other, "llama")),
        None => return Err(missing(ARCHITECTURE)),
    }
    let optional = |key: &str, most: u64| -> Result<Option<usize>, ModelError> {
        let field = format!("llama.{key}");
        let Some(value) = file.get(&field) else { return Ok(None) };
        let size = value.as_u64().filter(|size| (1..=most).contains(size));
        match size.and_then(|size| usize::try_from(size).ok()) {
            Some(size) => Ok(Some(size)),
            None => Err(bad(&field, "a number from 1 to 2^31, and to 4096 for layers", short(value))),
        }
    };
    let size = |key: &str| optional(key, 1 << 31)?.ok_or_else(|| missing(&format!("llama.{key}")));
    let number = |key: &str| -> Result<Option<f64>, ModelError> {
        let field = format!("llama.{key}");
        let Some(value) = file.get(&field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        Ok(Some(number.ok_or_else(|| bad(&field, "a number above 0", short(value)))?))
    };
    let (width, heads) = (size("embedding_length")?, size("attention.head_count")?);
    let head_width = match optional("attention.key_length", 1 << 31)? {
        Some(head_width) => head_width,
        None => width / heads,
    };
    let rotated = optional("rope.dimension_count", 1 << 31)?.unwrap_or(head_width);
    let unsupported = |option: &str, got: String, supported| ModelError::Unsupported {
        option: option.to_owned(),
        got,
        supported,
    };
    if rotated != head_width {
        let supported = "the number of elements of a head";
        return Err(unsupported("llama.rope.dimension_count", rotated.to_string(), supported));
    }
    if let Some(kind) = file.get("llama.rope.scaling.type")
        && kind.as_str() != Some("none")
    {
        return Err(unsupported("llama.rope.scaling.type", short(kind), "none"));
    }
    if let Some(experts) = optional("expert_count", u64::MAX).ok().flatten() {
        return Err(unsupported("llama.expert_count", experts.to_string(), "0"));
    }
    let embedding = "token_embd.weight";
    let vocabulary = match optional("vocab_size", 1 << 31)? {
        Some(vocabulary) => vocabulary,
        None => {
            let rows = file.info(embedding).and_then(|info| info.shape.dims().first().copied());
            rows.ok_or_else(|| missing("llama.vocab_size"))?
        }
    };
    let token =
        |key: &str| file.get(key).and_then(GgufValue::as_u64).and_then(|token| u32::try_from(token).ok());
    let config = LlamaConfig {
        vocabulary,
        width,
        inside: size("feed_forward_length")?,
        layers: optional("block_count", 4096)?.ok_or_else(|| missing("llama.block_count"))?,
        heads,
        key_heads: optional("attention.head_count_kv", 1 << 31)?.unwrap_or(heads),
        head_width,
        positions: size("context_length")?,
        epsilon: number("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| missing("llama.attention.layer_norm_rms_epsilon"))?,
        theta: number("rope.freq_base")?.unwrap_or(10_000.0),
        scaling: None,
        frequency_divisors: frequency_divisors(file, head_width)?,
        tied: file.info("output.weight").is_none(),
        attention_bias: file.info("blk.0.attn_q.bias").is_some(),
        mlp_bias: file.info("blk.0.ffn_up.bias").is_some(),
        start_tokens: token("tokenizer.ggml.bos_token_id").into_iter().collect(),
        stop_tokens: token("tokenizer.ggml.eos_token_id").into_iter().collect(),
    };
    config.check()?;
    Ok(config)
}

/// Reads the divisors of the frequencies, if the file has any.
fn frequency_divisors(file: &Gguf, head_width: usize) -> Result<Option<Vec<f64>>, ModelError> {
    let Some(info) = file.info(DIVISORS) else { return Ok(None) };
    if info.shape.dims() != [head_width / 2] {
        let (field, got) = (DIVISORS.to_owned(), info.shape.to_string());
        return Err(ModelError::BadField { field, expected: "one divisor for each pair of a head", got });
    }
    let divisors = file.load(DIVISORS, &Device::cpu()?)?.to_vec::<f32>()?;
    if !divisors.iter().all(|divisor| divisor.is_finite() && *divisor > 0.0) {
        let (field, got) = (DIVISORS.to_owned(), "other values".to_owned());
        return Err(ModelError::BadField { field, expected: "finite and above 0", got });
    }
    Ok(Some(divisors.into_iter().map(f64::from).collect()))
}

/// A value for an error; arrays may be long.
fn short(value: &GgufValue) -> String {
    match (value.as_str(), value.as_array()) {
        (Some(text), _) => text.chars().take(40).collect(),
        (_, Some(_)) => "an array".to_owned(),
        _ => format!("{value:?}"),
    }
}
