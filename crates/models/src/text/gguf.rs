//! Tokenizers and chat templates of GGUF files.

use highwater_nn::io::{Gguf, GgufArray, GgufValue, Weights};

use super::chat::ChatTemplate;
use super::error::TextError;
use super::tokenizer::Tokenizer;
use super::vocabulary::{TokenType, Vocabulary};

/// The prefix of the keys of vocabularies.
const PREFIX: &str = "tokenizer.ggml.";

/// The key of the chat template.
const TEMPLATE: &str = "tokenizer.chat_template";

impl Vocabulary {
    /// Returns the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// [`TextError::BadVocabulary`] if the file has no vocabulary, or if a value has a wrong type.
    pub fn from_gguf(file: &Gguf) -> Result<Self, TextError> {
        let texts = |key| {
            let texts = |value: &GgufValue| Some(value.as_array()?.as_strings()?.to_vec());
            value(file, key, "an array of texts", texts)
        };
        let text = |key| value(file, key, "a text", |value| value.as_str().map(str::to_owned));
        let id = |key| value(file, key, "a token id", |value| value.as_u64()?.try_into().ok());
        let is_set = |key| value(file, key, "a boolean", GgufValue::as_bool);
        let missing = |key| TextError::BadVocabulary { problem: format!("the file has no {PREFIX}{key}") };
        Ok(Self {
            model: text("model")?.ok_or_else(|| missing("model"))?,
            pre_tokenizer: text("pre")?,
            tokens: texts("tokens")?.ok_or_else(|| missing("tokens"))?,
            token_types: value(file, "token_type", "an array of types 1 to 6", token_types)?
                .unwrap_or_default(),
            merges: texts("merges")?.unwrap_or_default(),
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            unknown: id("unknown_token_id")?,
            padding: id("padding_token_id")?,
            add_bos: is_set("add_bos_token")?,
            add_eos: is_set("add_eos_token")?.unwrap_or(false),
            add_space_prefix: is_set("add_space_prefix")?.unwrap_or(false),
        })
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file. Encoding and decoding then need the file no longer.
    ///
    /// # Errors
    /// As [`Vocabulary::from_gguf`] and [`from_vocabulary`](Self::from_vocabulary).
    pub fn from_gguf(file: &Gguf) -> Result<Self, TextError> {
        Self::from_vocabulary(Vocabulary::from_gguf(file)?)
    }
}

impl ChatTemplate {
    /// Returns the chat template of a GGUF file, with its beginning and end tokens.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if the file has none; as [`new`](Self::new).
    pub fn from_gguf(file: &Gguf) -> Result<Self, TextError> {
        let template = file.get(TEMPLATE).and_then(GgufValue::as_str);
        let template = template.ok_or_else(|| TextError::NoTemplate { path: file.path().to_owned() })?;
        let get = |key: &str| file.get(&[PREFIX, key].concat());
        let tokens = get("tokens").and_then(GgufValue::as_array).and_then(GgufArray::as_strings);
        let token = |key| {
            let id = get(key).and_then(GgufValue::as_u64).and_then(|id| usize::try_from(id).ok());
            id.and_then(|id| tokens?.get(id)).map_or("", String::as_str)
        };
        Ok(Self::new(template)?.with_tokens(token("bos_token_id"), token("eos_token_id")))
    }
}

/// Returns a value of the vocabulary; `None` if the file does not have it.
fn value<T>(
    file: &Gguf,
    key: &str,
    expected: &str,
    convert: impl Fn(&GgufValue) -> Option<T>,
) -> Result<Option<T>, TextError> {
    let Some(value) = file.get(&[PREFIX, key].concat()) else { return Ok(None) };
    let wrong = || TextError::BadVocabulary { problem: format!("{PREFIX}{key} is not {expected}") };
    convert(value).map(Some).ok_or_else(wrong)
}

fn token_types(value: &GgufValue) -> Option<Vec<TokenType>> {
    match value.as_array()? {
        GgufArray::I32(types) => types.iter().map(|&number| TokenType::from_gguf(number.into())).collect(),
        GgufArray::U32(types) => types.iter().map(|&number| TokenType::from_gguf(number.into())).collect(),
        _ => None,
    }
}
