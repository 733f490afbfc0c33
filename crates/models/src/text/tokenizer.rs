//! The tokenizer.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::{Encoding, PostProcessor, TruncationDirection};

use super::batch::TokenBatch;
use super::error::TextError;
use super::file;
use super::stream::TextStream;

/// Maximum size of a `tokenizer.json`. The largest ones in use have 33 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Maximum length of a library message that an error repeats, in characters.
const MAX_MESSAGE: usize = 300;

/// Whether special tokens, such as `[CLS]` or `<|im_end|>`, belong to the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Encoding adds the special tokens with which the model was trained, for example `[CLS]` and `[SEP]` of BERT.
    /// Decoding returns the names of special tokens.
    Include,
    /// Encoding adds no tokens. Decoding skips special tokens.
    Omit,
}

/// Special tokens that a GGUF vocabulary names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
}

/// Translates between text and tokens.
///
/// [`from_file`](Self::from_file) reads a `tokenizer.json`. [`from_gguf`](Self::from_gguf) builds the byte-level BPE
/// tokenizer of a GGUF file, and [`from_vocabulary`](Self::from_vocabulary) that of its parts.
///
/// ```
/// use highwater_models::{SpecialTokens, Tokenizer};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tokenizer.json");
/// # std::fs::write(&path, r#"{"version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
/// #   "pre_tokenizer": {"type": "Whitespace"}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
/// #   "decoder": {"type": "WordPiece", "prefix": "\u0023\u0023", "cleanup": true}, "model": {"type": "WordPiece",
/// #   "unk_token": "[UNK]", "continuing_subword_prefix": "\u0023\u0023", "max_input_chars_per_word": 100,
/// #   "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "hello": 3, "\u0023\u0023s": 4}}}"#)?;
/// let tokenizer = Tokenizer::from_file(&path)?;
/// tokenizer.check_vocabulary(5)?; // the number of rows of the model's embedding
///
/// let tokens = tokenizer.encode("Hello hellos", SpecialTokens::Include, None)?;
/// assert_eq!(tokens, [1, 3, 3, 4, 2]);
/// assert_eq!(tokenizer.decode(&tokens[1..4], SpecialTokens::Omit)?, "hello hellos");
/// assert_eq!(tokenizer.encode("Hello hellos", SpecialTokens::Include, Some(4))?, [1, 3, 3, 2]);
///
/// let batch = tokenizer.encode_batch(&["hello hello", "hello"], SpecialTokens::Include, None)?;
/// assert_eq!(batch.ids(), [1, 3, 3, 2, /* row 1 */ 1, 3, 2, 0]);
/// assert_eq!(batch.mask()[4..], [true, true, true, false]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Special tokens in the text, such as `<|im_end|>`, become these tokens. Remove them from text that you do not trust.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// One more than the largest token id.
    size: usize,
    /// The token and the type id of padding.
    padding: (u32, u32),
    special: SpecialIds,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of at most 64 MiB.
    ///
    /// # Errors
    /// [`TextError::Io`] and [`TextError::TooLong`] for the file, [`TextError::Malformed`] for its contents.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        let json = file::read(path, MAX_FILE_BYTES)?;
        let malformed = |error| match error {
            TextError::Library { message, .. } => {
                TextError::Malformed { path: path.to_owned(), problem: format!("not a tokenizer: {message}") }
            }
            other => other,
        };
        Self::from_json(&json).map_err(malformed)
    }

    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::Library`] if the contents are invalid.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        guarded("read tokenizer", || {
            let inner = tokenizers::Tokenizer::from_bytes(json)?;
            let padding = inner.get_padding().map(|padding| (padding.pad_id, padding.pad_type_id));
            Ok(Self::new(inner, padding.unwrap_or_default(), SpecialIds::default()))
        })
    }

    pub(super) fn new(mut inner: tokenizers::Tokenizer, padding: (u32, u32), special: SpecialIds) -> Self {
        inner.with_padding(None);
        // Fails only for a limit that is too small.
        let _ = inner.with_truncation(None);
        let size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        Self { inner, size, padding, special }
    }

    /// Returns the size of the vocabulary: one more than the largest token id.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        self.size
    }

    /// Checks that the tokenizer belongs to a model whose embedding has `rows` rows.
    ///
    /// Some models pad their embedding with unused rows. For these, compare
    /// [`vocabulary_size`](Self::vocabulary_size) with the documented number of tokens instead.
    ///
    /// # Errors
    /// [`TextError::WrongVocabulary`] if the numbers differ.
    pub fn check_vocabulary(&self, rows: usize) -> Result<(), TextError> {
        if rows == self.size {
            return Ok(());
        }
        Err(TextError::WrongVocabulary { tokenizer: self.size, model: rows })
    }

    /// Returns the id of a token, such as `<|im_end|>`. Tokens of byte-level tokenizers are in their byte alphabet, in
    /// which `Ġ` is a space.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the token with this id.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Returns the token before the first token of a text, if the GGUF file names one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// Returns the token that ends a text, if the GGUF file names one. A `tokenizer.json` names none; see
    /// [`token_id`](Self::token_id).
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// Returns the token for unknown words, if the GGUF file names one.
    #[must_use]
    pub fn unknown(&self) -> Option<u32> {
        self.special.unknown
    }

    /// Returns the tokens of a text, at most `max_tokens` with special tokens. Truncation removes the last tokens of the
    /// text.
    ///
    /// Byte-level BPE omits bytes that have no token, as `transformers` does. SmolLM2 lacks some control characters.
    ///
    /// # Errors
    /// [`TextError::NoSpace`] if the special tokens alone exceed `max_tokens`; [`TextError::Library`] if the tokenizer
    /// fails, for example on an unknown word without a token for unknown words.
    pub fn encode(
        &self,
        text: &str,
        special: SpecialTokens,
        max_tokens: Option<usize>,
    ) -> Result<Vec<u32>, TextError> {
        Ok(self.encoding(text, special, max_tokens)?.get_ids().to_vec())
    }

    /// Returns the tokens of a file of UTF-8 text of at most `limit` bytes, for example for
    /// [`TokenWindows`](highwater_nn::data::TokenWindows). Skips a byte-order mark.
    ///
    /// # Errors
    /// [`TextError::Io`] and [`TextError::TooLong`] for the file, [`TextError::Malformed`] for invalid UTF-8, and as
    /// [`encode`](Self::encode).
    pub fn encode_file(
        &self,
        path: impl AsRef<Path>,
        special: SpecialTokens,
        limit: u64,
    ) -> Result<Vec<u32>, TextError> {
        let path = path.as_ref();
        let bytes = file::read(path, limit)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let problem = format!("invalid UTF-8 at byte {}", error.valid_up_to());
            TextError::Malformed { path: path.to_owned(), problem }
        })?;
        self.encode(text.strip_prefix('\u{feff}').unwrap_or(text), special, None)
    }

    /// Encodes several texts into a batch. Shorter texts are padded on the right to the length of the longest. Each has at
    /// most `max_tokens` tokens, as in [`encode`](Self::encode).
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`TextError::TooLarge`] if the batch exceeds host memory.
    pub fn encode_batch(
        &self,
        texts: &[impl AsRef<str>],
        special: SpecialTokens,
        max_tokens: Option<usize>,
    ) -> Result<TokenBatch, TextError> {
        let encodings = texts
            .iter()
            .map(|text| self.encoding(text.as_ref(), special, max_tokens))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = encodings.iter().map(|encoding| (encoding.get_ids(), encoding.get_type_ids()));
        TokenBatch::padded(&rows.collect::<Vec<_>>(), self.padding)
    }

    fn encoding(
        &self,
        text: &str,
        special: SpecialTokens,
        max_tokens: Option<usize>,
    ) -> Result<Encoding, TextError> {
        let processor = self.inner.get_post_processor().filter(|_| special == SpecialTokens::Include);
        let added = processor.map_or(0, |processor| processor.added_tokens(false));
        let space = match max_tokens {
            Some(max_tokens) if added > max_tokens => {
                return Err(TextError::NoSpace { max_tokens, special: added });
            }
            max_tokens => max_tokens.map(|max_tokens| max_tokens - added),
        };
        guarded("encode", || {
            let mut encoding = self.inner.encode_fast(text, false)?;
            if let Some(space) = space {
                encoding.truncate(space, 0, TruncationDirection::Right);
                drop(encoding.take_overflowing());
            }
            match processor {
                Some(processor) => processor.process(encoding, None, true),
                None => Ok(encoding),
            }
        })
    }

    /// Returns the text of tokens. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// The texts of single tokens do not concatenate to the text of all: a character may have several tokens. Use
    /// [`stream`](Self::stream) for output piece by piece.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for an id without a token; [`TextError::Library`] if the tokenizer fails.
    pub fn decode(&self, tokens: &[u32], special: SpecialTokens) -> Result<String, TextError> {
        tokens.iter().try_for_each(|&token| self.check_token(token).map(|_| ()))?;
        self.decode_known(tokens, special)
    }

    /// Decodes tokens that the vocabulary contains.
    pub(super) fn decode_known(&self, tokens: &[u32], special: SpecialTokens) -> Result<String, TextError> {
        guarded("decode", || self.inner.decode(tokens, special == SpecialTokens::Omit))
    }

    /// Checks that the vocabulary has this token, and returns whether it is special.
    pub(super) fn check_token(&self, token: u32) -> Result<bool, TextError> {
        match self.inner.id_to_token(token) {
            Some(text) => Ok(self.inner.get_added_vocabulary().is_special_token(&text)),
            None => Err(TextError::UnknownToken { token, tokens: self.size }),
        }
    }

    /// Returns a stream that turns tokens into text while a model generates them.
    #[must_use]
    pub fn stream(&self, special: SpecialTokens) -> TextStream<'_> {
        TextStream::new(self, special)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, padding, special, .. } = self;
        f.debug_struct("Tokenizer")
            .field("vocabulary_size", size)
            .field("padding", padding)
            .field("special", special)
            .finish_non_exhaustive()
    }
}

/// Calls the crate `tokenizers`, which panics on some malformed files: the panic becomes an error.
pub(super) fn guarded<T>(
    action: &'static str,
    call: impl FnOnce() -> tokenizers::Result<T>,
) -> Result<T, TextError> {
    let message = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic_message(&*panic),
    };
    Err(TextError::Library { action, message: message.chars().take(MAX_MESSAGE).collect() })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the tokenizer panicked")
        .to_owned()
}
