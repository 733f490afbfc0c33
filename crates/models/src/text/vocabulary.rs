//! Tokenizers from the vocabularies of GGUF files.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::error::TextError;
use super::tokenizer::{SpecialIds, Tokenizer, guarded};

/// Maximum number of tokens, and of merges.
const MAX_TOKENS: usize = 1 << 21;

/// Maximum length of all tokens and merges, in bytes.
const MAX_BYTES: usize = 256 << 20;

/// Maximum length of a name from a file that an error repeats, in characters.
const MAX_SHOWN: usize = 60;

/// The only supported value of `tokenizer.ggml.model`.
const BYTE_LEVEL_BPE: &str = "gpt2";

/// The type of a token, `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenType {
    /// 1: a part of words.
    Normal,
    /// 2: the token for unknown words.
    Unknown,
    /// 3: a special token, such as `<|im_end|>`. Decoding can omit it.
    Control,
    /// 4: a token that text always contains as a whole.
    UserDefined,
    /// 5: an unused id.
    Unused,
    /// 6: a single byte.
    Byte,
}

impl TokenType {
    /// Returns the type with this number in GGUF files.
    #[must_use]
    pub fn from_gguf(number: i64) -> Option<Self> {
        let types = [Self::Normal, Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte];
        usize::try_from(number).ok()?.checked_sub(1).and_then(|at| types.get(at).copied())
    }
}

/// The vocabulary of a GGUF file: the values under `tokenizer.ggml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// `model`: the kind of tokenizer. Only `gpt2`, byte-level BPE, is supported.
    pub model: String,
    /// `pre`: the rule that splits text into words. `None` is `gpt-2`.
    pub pre_tokenizer: Option<String>,
    /// `tokens`: the text of each token, in the byte alphabet of GPT-2.
    pub tokens: Vec<String>,
    /// `token_type`: the type of each token. All tokens are normal if empty.
    pub token_types: Vec<TokenType>,
    /// `merges`: pairs of tokens, separated by a space, in the order of their ranks.
    pub merges: Vec<String>,
    /// `bos_token_id`: the token before the first token of a text.
    pub bos: Option<u32>,
    /// `eos_token_id`: the token that ends a text.
    pub eos: Option<u32>,
    /// `unknown_token_id`: the token for unknown words.
    pub unknown: Option<u32>,
    /// `padding_token_id`: the token that pads batches; 0 if `None`.
    pub padding: Option<u32>,
    /// `add_bos_token`: whether encoding adds `bos`. `None` is the default of the pre-tokenizer: true for `llama-bpe`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`: whether encoding adds `eos`.
    pub add_eos: bool,
    /// `add_space_prefix`: whether encoding puts a space before the text.
    pub add_space_prefix: bool,
}

impl Vocabulary {
    /// Returns a vocabulary without tokens for this kind of tokenizer.
    #[must_use]
    pub fn new(model: &str) -> Self {
        Self { model: model.to_owned(), ..Self::default() }
    }
}

/// A rule that splits text into words.
struct PreTokenizer {
    name: &'static str,
    /// The pattern of words; `None` is that of GPT-2.
    pattern: Option<&'static str>,
    /// Whether a word that is a token needs no merges.
    ignores_merges: bool,
    /// Whether text is normalized to NFC.
    is_normalized: bool,
    adds_bos: bool,
}

const LLAMA_3: PreTokenizer = PreTokenizer {
    name: "llama-bpe",
    pattern: Some(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    ignores_merges: true,
    is_normalized: false,
    adds_bos: true,
};

const GPT_2: PreTokenizer = PreTokenizer {
    name: "gpt-2",
    pattern: None,
    ignores_merges: false,
    is_normalized: false,
    adds_bos: false,
};

const PRE_TOKENIZERS: [PreTokenizer; 6] = [
    GPT_2,
    // llama.cpp also splits digits. No token of SmolLM has two ASCII digits, so this changes no ids of such text.
    PreTokenizer { name: "smollm", ..GPT_2 },
    LLAMA_3,
    PreTokenizer { name: "llama3", ..LLAMA_3 },
    PreTokenizer { name: "llama-v3", ..LLAMA_3 },
    PreTokenizer {
        name: "qwen2",
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ignores_merges: false,
        is_normalized: true,
        adds_bos: false,
    },
];

const SUPPORTED: &str = "gpt-2, smollm, llama-bpe (llama3, llama-v3), qwen2";

impl Tokenizer {
    /// Builds the tokenizer of a vocabulary.
    ///
    /// ```
    /// use highwater_models::text::{TokenType, Vocabulary};
    /// use highwater_models::{SpecialTokens, Tokenizer};
    /// let vocabulary = Vocabulary {
    ///     tokens: ["<|end|>", "h", "i", "Ġ", "hi", "Ġhi"].map(str::to_owned).to_vec(),
    ///     token_types: [&[TokenType::Control][..], &[TokenType::Normal; 5]].concat(),
    ///     merges: ["h i", "Ġ hi"].map(str::to_owned).to_vec(),
    ///     eos: Some(0),
    ///     ..Vocabulary::new("gpt2")
    /// };
    /// let tokenizer = Tokenizer::from_vocabulary(vocabulary)?;
    /// assert_eq!(tokenizer.encode("hi hi<|end|>", SpecialTokens::Omit, None)?, [4, 5, 0]);
    /// assert_eq!(tokenizer.eos(), Some(0));
    /// # Ok::<(), highwater_models::TextError>(())
    /// ```
    ///
    /// # Errors
    /// [`TextError::UnknownModel`] and [`TextError::UnknownPreTokenizer`] for unsupported kinds;
    /// [`TextError::BadVocabulary`] if tokens, types, merges and ids do not belong together; [`TextError::TooLarge`] for
    /// more than 2²¹ tokens or merges, or more than 256 MiB of them.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, TextError> {
        if vocabulary.model != BYTE_LEVEL_BPE {
            return Err(TextError::UnknownModel { model: shown(&vocabulary.model) });
        }
        let name = vocabulary.pre_tokenizer.as_deref().unwrap_or(GPT_2.name);
        let Some(pre_tokenizer) = PRE_TOKENIZERS.iter().find(|known| known.name == name) else {
            return Err(TextError::UnknownPreTokenizer { name: shown(name), supported: SUPPORTED });
        };
        check_sizes(&vocabulary)?;
        let Vocabulary { tokens, token_types, bos, eos, unknown, padding, add_space_prefix, .. } = vocabulary;
        let ids = token_ids(&tokens)?;
        let merges = merges(&vocabulary.merges, &ids)?;
        let special = SpecialIds { bos, eos, unknown };
        let adds_bos = vocabulary.add_bos.unwrap_or(pre_tokenizer.adds_bos);
        let before = bos.filter(|_| adds_bos).map(|id| ("bos", id));
        let after = eos.filter(|_| vocabulary.add_eos).map(|id| ("eos", id));
        guarded("build tokenizer", || {
            let vocabulary: Vocab = ids.iter().map(|(token, id)| ((*token).to_owned(), *id)).collect();
            let bpe = BPE::builder()
                .vocab_and_merges(vocabulary, merges)
                .ignore_merges(pre_tokenizer.ignores_merges);
            let mut inner = tokenizers::Tokenizer::new(bpe.build()?);
            if pre_tokenizer.is_normalized {
                inner.with_normalizer(Some(NFC))?;
            }
            inner.with_pre_tokenizer(Some(pre_tokenizer.build(add_space_prefix)?));
            inner.with_decoder(Some(ByteLevel::default()));
            inner.add_tokens((0..).zip(&token_types).filter_map(|(at, kind): (usize, _)| {
                let is_special = match kind {
                    TokenType::Control => true,
                    TokenType::UserDefined => false,
                    _ => return None,
                };
                Some(AddedToken::from(tokens[at].clone(), is_special).normalized(false))
            }))?;
            if before.is_some() || after.is_some() {
                let parts = [before.map(|(name, _)| name), Some("$A"), after.map(|(name, _)| name)];
                let parts: Vec<&str> = parts.into_iter().flatten().collect();
                let added = before.into_iter().chain(after).map(|(name, id)| {
                    SpecialToken::new(name.to_owned(), vec![id], vec![tokens[id as usize].clone()])
                });
                let template = TemplateProcessing::builder()
                    .try_single(parts)?
                    .special_tokens(added.collect::<tokenizers::Result<Vec<_>>>()?)
                    .build()?;
                inner.with_post_processor(Some(template));
            }
            Ok(Self::new(inner, (padding.unwrap_or(0), 0), special))
        })
    }
}

impl PreTokenizer {
    fn build(&self, add_space_prefix: bool) -> tokenizers::Result<PreTokenizerWrapper> {
        let bytes = ByteLevel::new(add_space_prefix, true, self.pattern.is_none());
        let Some(pattern) = self.pattern else { return Ok(bytes.into()) };
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
        Ok(Sequence::new(vec![split.into(), bytes.into()]).into())
    }
}

/// Returns the beginning of a text of a file.
fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

fn bad(problem: String) -> TextError {
    TextError::BadVocabulary { problem }
}

fn check_sizes(vocabulary: &Vocabulary) -> Result<(), TextError> {
    let Vocabulary { tokens, token_types, merges, .. } = vocabulary;
    for (what, list) in [("tokens", tokens), ("merges", merges)] {
        if list.len() > MAX_TOKENS {
            return Err(TextError::TooLarge { what, found: list.len(), limit: MAX_TOKENS });
        }
    }
    let bytes = tokens.iter().chain(merges).fold(0_usize, |sum, text| sum.saturating_add(text.len()));
    if bytes > MAX_BYTES {
        return Err(TextError::TooLarge {
            what: "bytes of tokens and merges",
            found: bytes,
            limit: MAX_BYTES,
        });
    }
    if tokens.is_empty() {
        return Err(bad("it has no tokens".to_owned()));
    }
    if !token_types.is_empty() && token_types.len() != tokens.len() {
        return Err(bad(format!("{} token types for {} tokens", token_types.len(), tokens.len())));
    }
    let Vocabulary { bos, eos, unknown, padding, .. } = vocabulary;
    for (name, id) in [("bos", bos), ("eos", eos), ("unknown", unknown), ("padding", padding)] {
        if let Some(id) = id.filter(|id| *id as usize >= tokens.len()) {
            return Err(bad(format!("the {name} token is {id}, but there are {} tokens", tokens.len())));
        }
    }
    Ok(())
}

/// Returns the id of each token.
fn token_ids(tokens: &[String]) -> Result<HashMap<&str, u32>, TextError> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in (0_u32..).zip(tokens) {
        if let Some(other) = ids.insert(token.as_str(), id) {
            return Err(bad(format!("tokens {other} and {id} are both {:?}", shown(token))));
        }
    }
    Ok(ids)
}

/// Splits merges into their two tokens. Both tokens and the merged one must exist: `tokenizers` panics otherwise.
fn merges(merges: &[String], ids: &HashMap<&str, u32>) -> Result<Vec<(String, String)>, TextError> {
    let mut pairs = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            let merged = [*left, *right].concat();
            [*left, *right, &merged].iter().all(|token| ids.contains_key(token))
        });
        let Some((left, right)) = pair else {
            return Err(bad(format!(
                "merge {rank}, {:?}, is not a pair of tokens that make a token",
                shown(merge)
            )));
        };
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}
