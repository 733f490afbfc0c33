//! Tokenizers and chat templates of GGUF files.

use std::collections::BTreeMap;
use std::fs::File;

use highwater_models::text::Vocabulary;
use highwater_models::{ChatTemplate, Message, SpecialTokens, TextError, Tokenizer};
use highwater_nn::io::{Array, Arrays, Gguf, GgufArray, GgufLimits, GgufValue, write_gguf_to};

use crate::vocabularies::vocabulary;

type Metadata = BTreeMap<String, GgufValue>;

/// Writes a file with this metadata, and opens it.
fn written<T>(metadata: &Metadata, read: impl FnOnce(&Gguf) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let tensors = Arrays::from([("x".to_owned(), Array::from_slice(&[1.0_f32], [1]).unwrap())]);
    write_gguf_to(File::create(&path).unwrap(), metadata, &tensors).unwrap();
    read(&Gguf::open(&path, &GgufLimits::default()).unwrap())
}

/// The metadata of the vocabulary of the tests.
fn metadata() -> Metadata {
    let Vocabulary { model, tokens, merges, .. } = vocabulary(&["h i", "Ġ hi"]);
    let mut types = vec![1; tokens.len()];
    types[256..258].fill(3);
    let values = [
        ("ggml.model", GgufValue::String(model)),
        ("ggml.pre", GgufValue::String("smollm".to_owned())),
        ("ggml.tokens", GgufValue::Array(GgufArray::String(tokens))),
        ("ggml.token_type", GgufValue::Array(GgufArray::I32(types))),
        ("ggml.merges", GgufValue::Array(GgufArray::String(merges))),
        ("ggml.bos_token_id", GgufValue::U32(256)),
        ("ggml.eos_token_id", GgufValue::U32(257)),
        ("ggml.add_bos_token", GgufValue::Bool(true)),
        (
            "chat_template",
            GgufValue::String("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}".to_owned()),
        ),
    ];
    values.into_iter().map(|(key, value)| (format!("tokenizer.{key}"), value)).collect()
}

#[test]
fn files_hold_tokenizers_and_templates() {
    let (tokenizer, template) = written(&metadata(), |file| {
        (Tokenizer::from_gguf(file).unwrap(), ChatTemplate::from_gguf(file).unwrap())
    });
    assert_eq!(tokenizer.encode("hi hi<|end|>", SpecialTokens::Include, None).unwrap(), [256, 258, 259, 257]);
    assert_eq!((tokenizer.vocabulary_size(), tokenizer.eos()), (260, Some(257)));
    assert_eq!(template.render(&[Message::user("Hi")], true).unwrap(), "<|start|>Hi<|end|>");
}

#[test]
fn missing_and_mistyped_values_are_errors() {
    let problem = |key: &str, value: Option<GgufValue>| {
        let mut metadata = metadata();
        let key = format!("tokenizer.ggml.{key}");
        match value {
            Some(value) => metadata.insert(key, value),
            None => metadata.remove(&key),
        };
        match written(&metadata, Tokenizer::from_gguf) {
            Err(TextError::BadVocabulary { problem }) => problem,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(problem("tokens", None), "the file has no tokenizer.ggml.tokens");
    assert_eq!(problem("model", None), "the file has no tokenizer.ggml.model");
    let number = || Some(GgufValue::I32(-1));
    assert_eq!(problem("model", number()), "tokenizer.ggml.model is not a text");
    assert_eq!(problem("merges", number()), "tokenizer.ggml.merges is not an array of texts");
    assert_eq!(problem("eos_token_id", number()), "tokenizer.ggml.eos_token_id is not a token id");
    assert_eq!(problem("add_bos_token", number()), "tokenizer.ggml.add_bos_token is not a boolean");
    let types = Some(GgufValue::Array(GgufArray::I32(vec![9; 260])));
    assert_eq!(problem("token_type", types), "tokenizer.ggml.token_type is not an array of types 1 to 6");

    let mut without = metadata();
    without.remove("tokenizer.chat_template");
    assert!(matches!(written(&without, ChatTemplate::from_gguf), Err(TextError::NoTemplate { .. })));
}
