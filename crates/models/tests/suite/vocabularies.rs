//! Tokenizers from GGUF vocabularies.

use highwater_models::text::{TokenType, Vocabulary};
use highwater_models::{SpecialTokens, TextError, Tokenizer};

const OMIT: SpecialTokens = SpecialTokens::Omit;
const INCLUDE: SpecialTokens = SpecialTokens::Include;

/// The character of a byte in the alphabet of GPT-2: printable characters stay, others follow from U+0100.
fn byte_character(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let number = (0..byte).filter(|byte| !is_printable(*byte)).count() as u32;
    char::from_u32(0x100 + number).unwrap()
}

/// The tokens of all bytes, which are their ids, then `<|start|>` (256), `<|end|>` (257) and the merged tokens.
pub(crate) fn vocabulary(merges: &[&str]) -> Vocabulary {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_character(byte).to_string()).collect();
    tokens.extend(["<|start|>", "<|end|>"].map(str::to_owned));
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut token_types = vec![TokenType::Normal; tokens.len()];
    token_types[256..258].fill(TokenType::Control);
    Vocabulary {
        tokens,
        token_types,
        merges: merges.iter().map(|&merge| merge.to_owned()).collect(),
        bos: Some(256),
        eos: Some(257),
        ..Vocabulary::new("gpt2")
    }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn every_text_survives_a_round_trip() {
    let tokenizer =
        Tokenizer::from_vocabulary(vocabulary(&["h e", "l l", "he ll", "hell o", "Ġ w"])).unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 263);
    assert_eq!(
        tokenizer.encode("hello world", OMIT, None).unwrap(),
        [&[261, 262][..], &bytes("orld")].concat()
    );
    for text in
        ["", " ", "hello  \n\tworld\r\n", "Größe", "日本語", "👩‍👩‍👧 🇩🇪", "\u{0}\u{7f}\u{85}\u{a0}", "1234 5 ²³"]
    {
        let tokens = tokenizer.encode(text, OMIT, None).unwrap();
        assert_eq!(tokenizer.decode(&tokens, OMIT).unwrap(), text);
    }
}

#[test]
fn merges_apply_by_rank_and_within_words() {
    // "ab" ranks before "bc", so "abc" is "ab" and "c".
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&["a b", "b c"])).unwrap();
    assert_eq!(tokenizer.encode("abc", OMIT, None).unwrap(), [258, u32::from(b'c')]);
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&["b c", "a b"])).unwrap();
    assert_eq!(tokenizer.encode("abc", OMIT, None).unwrap(), [u32::from(b'a'), 258]);
    // A word begins with its space. Words do not merge with the next.
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&["a Ġ", "Ġ b", "a !"])).unwrap();
    assert_eq!(tokenizer.encode("a b!a!", OMIT, None).unwrap(), [&[97, 259][..], &bytes("!a!")].concat());
}

#[test]
fn special_tokens_are_recognized_and_omitted() {
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&[])).unwrap();
    let tokens = tokenizer.encode("<|start|>a<|end|>b", OMIT, None).unwrap();
    assert_eq!(tokens, [256, 97, 257, 98]);
    assert_eq!(tokenizer.decode(&tokens, OMIT).unwrap(), "ab");
    assert_eq!(tokenizer.decode(&tokens, INCLUDE).unwrap(), "<|start|>a<|end|>b");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.unknown()), (Some(256), Some(257), None));
    assert_eq!(tokenizer.token_id("<|end|>"), Some(257));
    assert_eq!(tokenizer.token(257).as_deref(), Some("<|end|>"));
    // Tokens that a user defines are text.
    let mut user_defined = vocabulary(&[]);
    user_defined.token_types[256] = TokenType::UserDefined;
    let tokenizer = Tokenizer::from_vocabulary(user_defined).unwrap();
    assert_eq!(tokenizer.encode("a<|start|>", OMIT, None).unwrap(), [97, 256]);
    assert_eq!(tokenizer.decode(&[97, 256], OMIT).unwrap(), "a<|start|>");
}

#[test]
fn the_vocabulary_decides_which_special_tokens_are_added() {
    let encode = |vocabulary| {
        let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
        (tokenizer.encode("a", INCLUDE, None).unwrap(), tokenizer.encode("a", OMIT, None).unwrap())
    };
    let pre = |name: &str| Vocabulary { pre_tokenizer: Some(name.to_owned()), ..vocabulary(&[]) };
    assert_eq!(encode(vocabulary(&[])), (vec![97], vec![97]));
    assert_eq!(encode(pre("smollm")), (vec![97], vec![97]));
    assert_eq!(encode(pre("llama-bpe")), (vec![256, 97], vec![97]));
    assert_eq!(encode(Vocabulary { add_bos: Some(false), ..pre("llama-bpe") }), (vec![97], vec![97]));
    let both = Vocabulary { add_bos: Some(true), add_eos: true, ..vocabulary(&[]) };
    assert_eq!(encode(both.clone()), (vec![256, 97, 257], vec![97]));
    assert_eq!(
        encode(Vocabulary { add_space_prefix: true, ..vocabulary(&[]) }),
        (vec![32, 97], vec![32, 97])
    );

    let tokenizer = Tokenizer::from_vocabulary(both).unwrap();
    assert_eq!(tokenizer.encode("abc", INCLUDE, Some(3)).unwrap(), [256, 97, 257]);
    assert_eq!(tokenizer.encode("abc", INCLUDE, Some(2)).unwrap(), [256, 257]);
    assert!(tokenizer.encode("abc", OMIT, Some(0)).unwrap().is_empty());
    let error = tokenizer.encode("abc", INCLUDE, Some(1)).unwrap_err();
    assert_eq!(error, TextError::NoSpace { max_tokens: 1, special: 2 });
}

#[test]
fn pre_tokenizers_differ_in_digits() {
    let encode = |name: &str| {
        let merges = ["1 2", "12 3", "123 4"];
        let vocabulary = Vocabulary { pre_tokenizer: Some(name.to_owned()), ..vocabulary(&merges) };
        Tokenizer::from_vocabulary(vocabulary).unwrap().encode("1234", OMIT, None).unwrap()
    };
    assert_eq!(encode("gpt-2"), [260]);
    assert_eq!(encode("llama3"), [259, u32::from(b'4')]);
    assert_eq!(encode("qwen2"), bytes("1234"));
}

#[test]
fn batches_are_padded() {
    let tokenizer = Tokenizer::from_vocabulary(Vocabulary { padding: Some(257), ..vocabulary(&[]) }).unwrap();
    let batch = tokenizer.encode_batch(&["ab", "", "abcd"], INCLUDE, Some(3)).unwrap();
    assert_eq!((batch.rows(), batch.columns()), (3, 3));
    assert_eq!(batch.ids(), [97, 98, 257, 257, 257, 257, 97, 98, 99]);
    let (t, f) = (true, false);
    assert_eq!(batch.mask(), [t, t, f, f, f, f, t, t, t]);
    assert_eq!(batch.type_ids(), [0; 9]);
    let empty = tokenizer.encode_batch(&[] as &[&str], INCLUDE, None).unwrap();
    assert_eq!((empty.rows(), empty.columns(), empty.ids().len()), (0, 0, 0));
}

#[test]
fn bytes_without_a_token_are_omitted() {
    let tokens = ["a", "b"].map(str::to_owned).to_vec();
    let tokenizer = Tokenizer::from_vocabulary(Vocabulary { tokens, ..Vocabulary::new("gpt2") }).unwrap();
    assert_eq!(tokenizer.encode("azb\u{4}", OMIT, None).unwrap(), [0, 1]);
}

#[test]
fn a_wrong_vocabulary_is_an_error() {
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&[])).unwrap();
    tokenizer.check_vocabulary(258).unwrap();
    let error = tokenizer.check_vocabulary(49_152).unwrap_err();
    assert_eq!(error, TextError::WrongVocabulary { tokenizer: 258, model: 49_152 });
    assert_eq!(tokenizer.decode(&[97, 258], OMIT), Err(TextError::UnknownToken { token: 258, tokens: 258 }));
}

#[test]
fn unsupported_kinds_are_errors() {
    let model = |model: &str| {
        Tokenizer::from_vocabulary(Vocabulary { model: model.to_owned(), ..vocabulary(&[]) }).unwrap_err()
    };
    assert_eq!(model("llama"), TextError::UnknownModel { model: "llama".to_owned() });
    assert!(model(&"x".repeat(1000)).to_string().len() < 200);
    let pre = Vocabulary { pre_tokenizer: Some("tekken\u{1b}".to_owned()), ..vocabulary(&[]) };
    let error = Tokenizer::from_vocabulary(pre).unwrap_err();
    let text = r#"the pre-tokenizer "tekken\u{1b}" is not supported; supported: gpt-2, smollm, llama-bpe (llama3, llama-v3), qwen2"#;
    assert_eq!(error.to_string(), text);
}

#[test]
fn parts_that_do_not_belong_together_are_errors() {
    let problem = |change: &dyn Fn(&mut Vocabulary)| {
        let mut changed = vocabulary(&["a b"]);
        change(&mut changed);
        match Tokenizer::from_vocabulary(changed) {
            Err(TextError::BadVocabulary { problem }) => problem,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(problem(&|v| v.tokens.clear()), "it has no tokens");
    assert_eq!(problem(&|v| v.token_types.truncate(2)), "2 token types for 259 tokens");
    assert_eq!(problem(&|v| v.eos = Some(259)), "the eos token is 259, but there are 259 tokens");
    assert_eq!(
        problem(&|v| v.padding = Some(u32::MAX)),
        "the padding token is 4294967295, but there are 259 tokens"
    );
    assert_eq!(problem(&|v| v.tokens[258] = "a".to_owned()), "tokens 97 and 258 are both \"a\"");
    for merge in ["ab", "a  b", "a x y", "a z", "日 a", ""] {
        let problem = problem(&|v| v.merges[0] = merge.to_owned());
        assert!(problem.ends_with("is not a pair of tokens that make a token"), "{problem}");
    }
    let too_many = Vocabulary { merges: vec![String::new(); (1 << 21) + 1], ..vocabulary(&[]) };
    let error = Tokenizer::from_vocabulary(too_many).unwrap_err();
    assert!(matches!(error, TextError::TooLarge { what: "merges", .. }), "{error}");
}

#[test]
fn gguf_numbers_of_token_types() {
    let types = [1, 2, 3, 4, 5, 6].map(TokenType::from_gguf);
    use TokenType::{Byte, Control, Normal, Unknown, Unused, UserDefined};
    assert_eq!(types, [Normal, Unknown, Control, UserDefined, Unused, Byte].map(Some));
    assert_eq!([0, 7, -1, i64::MIN].map(TokenType::from_gguf), [None; 4]);
}
