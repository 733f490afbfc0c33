//! The tokenizer and the chat template of a model, by the path of its file or folder.

use std::path::Path;

use highwater_nn::io::{Gguf, GgufLimits};

use super::chat::ChatTemplate;
use super::error::TextError;
use super::tokenizer::Tokenizer;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

impl Tokenizer {
    /// Reads the tokenizer of a model: of a GGUF file, of a folder with `tokenizer.json`, or this file itself.
    ///
    /// # Errors
    /// [`TextError::File`] for a GGUF file that cannot be read; otherwise see [`from_gguf`](Self::from_gguf) and
    /// [`from_file`](Self::from_file).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Self::from_file(path.join(TOKENIZER));
        }
        if Gguf::is_gguf(path)? {
            return Self::from_gguf(&Gguf::open(path, &GgufLimits::default())?);
        }
        Self::from_file(path)
    }
}

impl ChatTemplate {
    /// Reads the template of a model: of a GGUF file, or of a folder with `tokenizer_config.json`. `None` if the model has
    /// none.
    ///
    /// # Errors
    /// [`TextError::File`] for a GGUF file that cannot be read; as [`from_gguf`](Self::from_gguf) and
    /// [`from_config`](Self::from_config), but never [`TextError::NoTemplate`].
    pub fn load(path: impl AsRef<Path>) -> Result<Option<Self>, TextError> {
        let path = path.as_ref();
        let config = path.join(CONFIG);
        let found = if !path.is_dir() {
            Self::from_gguf(&Gguf::open(path, &GgufLimits::default())?)
        } else if config.exists() {
            Self::from_config(config)
        } else {
            return Ok(None);
        };
        match found {
            Ok(template) => Ok(Some(template)),
            Err(TextError::NoTemplate { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
