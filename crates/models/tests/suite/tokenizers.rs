//! Tokenizers from `tokenizer.json`.

use std::fs;

use highwater_models::{SpecialTokens, TextError, Tokenizer};

const OMIT: SpecialTokens = SpecialTokens::Omit;
const INCLUDE: SpecialTokens = SpecialTokens::Include;

/// A WordPiece tokenizer like that of BERT, with padding and truncation.
pub(crate) const WORDS: &str = r###"{
    "version": "1.0",
    "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 6,
        "pad_type_id": 1, "pad_token": "[PAD]"},
    "added_tokens": [
        {"id": 1, "special": true, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
        {"id": 2, "special": true, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
        {"id": 6, "special": true, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}, "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "hello": 3, "##s": 4, "!": 5, "[PAD]": 6}}
}"###;

fn words() -> Tokenizer {
    Tokenizer::from_json(WORDS.as_bytes()).unwrap()
}

#[test]
fn padding_and_truncation_of_the_file_are_off() {
    let tokenizer = words();
    assert_eq!(tokenizer.vocabulary_size(), 7);
    assert_eq!(tokenizer.encode("Hello, HELLOS!", INCLUDE, None).unwrap(), [1, 3, 0, 3, 4, 5, 2]);
    assert_eq!(tokenizer.encode("Hello, HELLOS!", OMIT, None).unwrap(), [3, 0, 3, 4, 5]);
    assert_eq!(tokenizer.decode(&[1, 3, 5, 3, 4, 2, 6], OMIT).unwrap(), "hello! hellos");
    assert_eq!(tokenizer.eos(), None);
}

#[test]
fn truncation_keeps_the_last_special_token() {
    let tokenizer = words();
    assert_eq!(tokenizer.encode("hello hello hello", INCLUDE, Some(4)).unwrap(), [1, 3, 3, 2]);
    assert_eq!(tokenizer.encode("hello hello hello", INCLUDE, Some(5)).unwrap(), [1, 3, 3, 3, 2]);
    assert_eq!(tokenizer.encode("hello hello hello", OMIT, Some(2)).unwrap(), [3, 3]);
    assert_eq!(tokenizer.encode("hello", INCLUDE, Some(2)).unwrap(), [1, 2]);
    assert_eq!(
        tokenizer.encode("hello", INCLUDE, Some(0)),
        Err(TextError::NoSpace { max_tokens: 0, special: 2 })
    );
}

#[test]
fn batches_use_the_padding_token_of_the_file() {
    let batch = words().encode_batch(&["hello", "hellos!"], INCLUDE, None).unwrap();
    assert_eq!((batch.rows(), batch.columns()), (2, 5));
    assert_eq!(batch.ids(), [1, 3, 2, 6, 6, 1, 3, 4, 5, 2]);
    assert_eq!(batch.type_ids(), [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
    let mask: Vec<u8> = batch.mask().iter().map(|&is_token| u8::from(is_token)).collect();
    assert_eq!(mask, [1, 1, 1, 0, 0, 1, 1, 1, 1, 1]);
}

#[test]
fn files_are_read_within_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    assert!(matches!(Tokenizer::from_file(&path), Err(TextError::Io { .. })));
    assert!(matches!(Tokenizer::from_file(folder.path()), Err(TextError::Io { .. })));
    fs::write(&path, WORDS).unwrap();
    assert_eq!(Tokenizer::from_file(&path).unwrap().vocabulary_size(), 7);
    // A sparse file.
    fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    assert_eq!(Tokenizer::from_file(&path).unwrap_err(), TextError::TooLong { path, limit: 64 << 20 });
}

#[test]
fn malformed_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for text in ["", "{", "GGUF", "{}", "[1]", &"[".repeat(100_000), &WORDS[..WORDS.len() / 2]] {
        fs::write(&path, text).unwrap();
        let error = Tokenizer::from_file(&path).unwrap_err();
        assert!(matches!(error, TextError::Malformed { .. }), "{error}");
        assert!(error.to_string().len() < 600);
    }
}

/// The crate `tokenizers` panics on these files. The panics become errors.
#[test]
fn panics_of_the_library_become_errors() {
    // A merge whose result is longer than every token.
    let bpe = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}"#;
    assert!(matches!(Tokenizer::from_json(bpe.as_bytes()), Err(TextError::Library { .. })));
    // A template with a token that has no ids.
    let template = WORDS.replace(r#""[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}, "#, "");
    let result = Tokenizer::from_json(template.as_bytes()).and_then(|t| t.encode("hello", INCLUDE, None));
    assert!(matches!(result, Err(TextError::Library { .. })), "{result:?}");
}

/// Each prefix of a file, and each file without one character: no call panics.
#[test]
fn damaged_files_never_panic() {
    let characters: Vec<char> = WORDS.chars().collect();
    for at in (0..characters.len()).step_by(7) {
        let damaged: String = [&characters[..at], &characters[at + 1..]].concat().iter().collect();
        if let Ok(tokenizer) = Tokenizer::from_json(damaged.as_bytes()) {
            let _ = tokenizer
                .encode("Hello!", INCLUDE, Some(3))
                .and_then(|tokens| tokenizer.decode(&tokens, OMIT));
        }
    }
}
