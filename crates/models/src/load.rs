//! Opening a model by the path of its file or folder.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use highwater_nn::io::{Gguf, GgufLimits, Quantized, Weights, open_weights};
use highwater_tensor::error::FileError;
use highwater_tensor::{BlockFormat, Device, Error};

use crate::bert::Bert;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::fields::unknown;
use crate::gpt2::Gpt2;
use crate::language_model::LanguageModel;
use crate::llama::Llama;

/// Maximum size of a `config.json`. They have a few kilobytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Opens a language model: a GGUF file of a Llama, or a folder of Hugging Face with `config.json` and `model.safetensors` or
/// `model.safetensors.index.json`.
///
/// Mapped tensors refer to their file without a copy; see [`MappedFile`](highwater_tensor::MappedFile) for what must not
/// happen to the file then.
///
/// ```no_run
/// use highwater::Device;
/// use highwater::models::load_language_model;
/// let model = load_language_model("SmolLM2-135M-Instruct.Q4_1.gguf", &Device::cpu()?)?;
/// println!("{} tokens, context {}", model.vocabulary(), model.context());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ModelError::Tensor`] if a file cannot be read, or if there is no memory; [`ModelError::UnknownArchitecture`] for other
/// architectures; otherwise see [`Llama::from_gguf`], [`ModelConfig::from_json`] and [`Llama::from_weights`].
pub fn load_language_model(
    path: impl AsRef<Path>,
    device: &Device,
) -> Result<Box<dyn LanguageModel>, ModelError> {
    load(path.as_ref(), None, device)
}

/// Opens a language model as [`load_language_model`], with quantized weights, which training does not change. A GGUF file
/// keeps its blocks: see [`Llama::from_gguf_quantized`]. The linear layers of other files are quantized to `format`: see
/// [`Quantized`]. Those of GPT-2 stay dense.
///
/// ```no_run
/// use highwater::models::load_quantized_language_model;
/// use highwater::{BlockFormat, Device};
/// let model = load_quantized_language_model("SmolLM2-135M", BlockFormat::Nf4, &Device::cpu()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`load_language_model`].
pub fn load_quantized_language_model(
    path: impl AsRef<Path>,
    format: BlockFormat,
    device: &Device,
) -> Result<Box<dyn LanguageModel>, ModelError> {
    load(path.as_ref(), Some(format), device)
}

fn load(
    path: &Path,
    format: Option<BlockFormat>,
    device: &Device,
) -> Result<Box<dyn LanguageModel>, ModelError> {
    if !path.is_dir() {
        let file = Gguf::open(path, &GgufLimits::default()).map_err(Error::from)?;
        return Ok(Box::new(match format {
            None => Llama::from_gguf(&file, device)?,
            Some(_) => Llama::from_gguf_quantized(&file, device)?,
        }));
    }
    let config = read_config(path)?;
    let file = open_weights(path).map_err(Error::from)?;
    let quantized = format.map(|format| Quantized::new(&*file, format));
    let weights: &dyn Weights = match &quantized {
        Some(quantized) => quantized,
        None => &*file,
    };
    Ok(match config {
        ModelConfig::Llama(config) => Box::new(Llama::from_weights(&config, weights, device)?),
        ModelConfig::Gpt2(config) => Box::new(Gpt2::from_weights(&config, weights, device)?),
        ModelConfig::Bert(_) => return Err(unknown("bert", "llama and gpt2")),
    })
}

/// Opens a BERT: a folder of Hugging Face with `config.json` and its weights as safetensors.
///
/// ```no_run
/// use highwater::Device;
/// use highwater::models::load_bert;
/// let model = load_bert("all-MiniLM-L6-v2", &Device::cpu()?)?;
/// assert_eq!(model.config().width, 384);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`load_language_model`].
pub fn load_bert(folder: impl AsRef<Path>, device: &Device) -> Result<Bert, ModelError> {
    let folder = folder.as_ref();
    let config = match read_config(folder)? {
        ModelConfig::Bert(config) => config,
        ModelConfig::Llama(_) => return Err(unknown("llama", "bert")),
        ModelConfig::Gpt2(_) => return Err(unknown("gpt2", "bert")),
    };
    Bert::from_weights(&config, &*open_weights(folder).map_err(Error::from)?, device)
}

fn read_config(folder: &Path) -> Result<ModelConfig, ModelError> {
    let path = folder.join("config.json");
    let failed = |error: io::Error| Error::from(FileError::io(&path, &error));
    let mut text = String::new();
    let file = File::open(&path).map_err(failed)?;
    file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        let (what, found) = ("bytes", text.len() as u64);
        return Err(Error::from(FileError::TooLarge {
            path,
            offset: 0,
            what,
            found,
            limit: MAX_CONFIG_BYTES,
        })
        .into());
    }
    ModelConfig::from_json(&text)
}
