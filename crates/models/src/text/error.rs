//! Errors of tokenizers and chat templates.

use std::io;
use std::path::PathBuf;

use bfc_core::printable;
use highwater_tensor::Error;
use highwater_tensor::error::FileError;

/// A tokenizer or a chat template that cannot be read or applied. The tokenizer is unchanged.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file could not be opened or read.
    #[error("{}: {message}", printable(path.display()), message = printable(message))]
    Io {
        /// The file.
        path: PathBuf,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's error message.
        message: String,
    },
    /// The GGUF file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file exceeds the limit on its length.
    #[error("{}: more than the {limit} bytes allowed", printable(path.display()))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file is invalid.
    #[error("{}: {problem}", printable(path.display()), problem = printable(problem))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The violated rule.
        problem: String,
    },
    /// The tokenizer of a GGUF file is of an unsupported kind.
    #[error("the tokenizer model {model:?} is not supported; supported: gpt2 (byte-level BPE)")]
    UnknownModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// The GGUF file splits text into words by an unknown rule.
    #[error("the pre-tokenizer {name:?} is not supported; supported: {supported}")]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        name: String,
        /// The supported names.
        supported: &'static str,
    },
    /// The parts of a vocabulary do not belong together.
    #[error("the vocabulary is invalid: {problem}", problem = printable(problem))]
    BadVocabulary {
        /// The violated rule.
        problem: String,
    },
    /// A size exceeds a limit.
    #[error("{found} {what} are more than the {limit} allowed")]
    TooLarge {
        /// The unit of the limit.
        what: &'static str,
        /// The size.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The tokenizer belongs to another model.
    #[error("the tokenizer has {tokenizer} tokens, but the model has {model}: they do not belong together")]
    WrongVocabulary {
        /// The number of tokens of the tokenizer.
        tokenizer: usize,
        /// The number of tokens of the model.
        model: usize,
    },
    /// The vocabulary has no token with this id.
    #[error("the vocabulary of {tokens} tokens has no token {token}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// The number of tokens.
        tokens: usize,
    },
    /// The special tokens leave no space for text.
    #[error(
        "a maximum of {max_tokens} tokens leaves no space for text: the tokenizer adds {special} special tokens"
    )]
    NoSpace {
        /// The maximum number of tokens.
        max_tokens: usize,
        /// The number of special tokens that the tokenizer adds.
        special: usize,
    },
    /// The crate `tokenizers` failed.
    #[error("{action}: {message}", message = printable(message))]
    Library {
        /// The attempted action.
        action: &'static str,
        /// The message of the crate.
        message: String,
    },
    /// The file has no chat template.
    #[error("{}: the file has no chat_template", printable(path.display()))]
    NoTemplate {
        /// The file.
        path: PathBuf,
    },
    /// A conversation cannot be a sample for fine-tuning.
    #[error("{problem}", problem = printable(problem))]
    BadPair {
        /// The violated rule.
        problem: String,
    },
    /// A chat template is invalid, or it rejects the messages.
    #[error("chat template, line {line}: {message}", message = printable(message))]
    Template {
        /// The line, counted from 1; 0 if unknown.
        line: usize,
        /// The message of the template engine or of the template.
        message: String,
    },
}

bfc_core::debug_as_message!(TextError);

impl From<TextError> for Error {
    fn from(error: TextError) -> Self {
        Self::Custom { op: "text", message: error.to_string() }
    }
}
