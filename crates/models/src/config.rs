//! Configurations from the file `config.json` of Hugging Face.

use crate::bert::BertConfig;
use crate::error::ModelError;
use crate::fields::{Fields, unknown};
use crate::gpt2::Gpt2Config;
use crate::llama_config::LlamaConfig;

/// The architectures of this crate.
const SUPPORTED: &str = "llama, gpt2 and bert";

/// The configuration of a model of this crate.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelConfig {
    /// `"model_type": "llama"`.
    Llama(LlamaConfig),
    /// `"model_type": "gpt2"`.
    Gpt2(Gpt2Config),
    /// `"model_type": "bert"`.
    Bert(BertConfig),
}

impl ModelConfig {
    /// Reads the text of a `config.json`, which names its architecture.
    ///
    /// ```
    /// use highwater::models::ModelConfig;
    /// let text = r#"{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}"#;
    /// let ModelConfig::Gpt2(config) = ModelConfig::from_json(text)? else { panic!() };
    /// assert_eq!((config.width, config.positions), (768, 1024));
    /// let unknown = ModelConfig::from_json(r#"{"model_type": "mamba"}"#).unwrap_err();
    /// assert_eq!(unknown.to_string(), "unknown architecture mamba; supported are llama, gpt2 and bert");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ModelError::UnknownArchitecture`]; otherwise see [`LlamaConfig::from_json`].
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        let fields = Fields::parse(text)?;
        Ok(match fields.architecture()? {
            "llama" => Self::Llama(LlamaConfig::from_fields(&fields)?),
            "gpt2" => Self::Gpt2(Gpt2Config::from_fields(&fields)?),
            "bert" => Self::Bert(BertConfig::from_fields(&fields)?),
            other => return Err(unknown(other, SUPPORTED)),
        })
    }
}
