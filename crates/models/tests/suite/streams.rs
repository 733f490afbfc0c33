//! Text piece by piece.

use highwater_models::{SpecialTokens, TextError, Tokenizer};

use crate::vocabularies::vocabulary;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocabulary(vocabulary(&["h i", "Ġ hi", "ð Ł", "Ã ©"])).unwrap()
}

/// The pieces of the tokens, and the rest.
fn pieces(tokenizer: &Tokenizer, tokens: &[u32], special: SpecialTokens) -> Vec<String> {
    let mut stream = tokenizer.stream(special);
    let mut pieces: Vec<String> = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn characters_of_several_tokens_come_as_a_whole() {
    let tokenizer = tokenizer();
    // U+1F600 has the bytes F0 9F 98 80; the first two are one token.
    let tokens = tokenizer.encode("hi hi😀é!", SpecialTokens::Omit, None).unwrap();
    assert_eq!(tokens, [258, 259, 260, 0x98, 0x80, 261, 33]);
    assert_eq!(pieces(&tokenizer, &tokens, SpecialTokens::Omit), ["hi", " hi", "", "", "😀", "é", "!", ""]);
    // A sequence of several code points comes by code point.
    let family = tokenizer.encode("👩‍👧", SpecialTokens::Omit, None).unwrap();
    let pieces = pieces(&tokenizer, &family, SpecialTokens::Omit);
    let shown: Vec<_> = pieces.iter().filter(|piece| !piece.is_empty()).collect();
    assert_eq!(shown, ["👩", "\u{200d}", "👧"]);
}

#[test]
fn special_tokens_within_a_character_do_not_break_it() {
    let tokenizer = tokenizer();
    let tokens = [258, 257, 0xc3, 256, 0xa9, 257];
    assert_eq!(pieces(&tokenizer, &tokens, SpecialTokens::Omit), ["hi", "", "", "", "é", "", ""]);
    let shown = pieces(&tokenizer, &[256, 258, 257], SpecialTokens::Include);
    assert_eq!(shown, ["<|start|>", "hi", "<|end|>", ""]);
}

#[test]
fn an_incomplete_end_is_a_replacement_character() {
    assert_eq!(pieces(&tokenizer(), &[258, 0xf0, 0x9f], SpecialTokens::Omit), ["hi", "", "", "\u{fffd}"]);
}

/// Random bytes, mostly no UTF-8: the pieces make the text of all bytes.
#[test]
fn pieces_concatenate_to_the_whole_text() {
    let tokenizer = tokenizer();
    let characters = "aé😀日\u{fffd}".as_bytes();
    let mut state = 1_u64;
    for round in 0..300 {
        let mut next = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let bytes: Vec<u8> = match round % 3 {
            0 => (0..60).map(|_| next(256) as u8).collect(),
            1 => (0..60).map(|_| characters[next(characters.len())]).collect(),
            _ => [0xf0, 0x9f, 0xff, 0x98, 0xc3].repeat(20)[next(5)..][..60].to_vec(),
        };
        let tokens: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
        let pieces = pieces(&tokenizer, &tokens, SpecialTokens::Omit);
        assert_eq!(pieces.concat(), String::from_utf8_lossy(&bytes), "{bytes:x?}");
        // The rest is short: a stream does not wait for the end.
        assert!(pieces.last().unwrap().chars().count() <= 9, "{pieces:?}");
    }
}

/// The decoder of BERT puts spaces between words, and needs the previous word for it.
#[test]
fn words_keep_their_spaces() {
    let tokenizer = Tokenizer::from_json(crate::tokenizers::WORDS.as_bytes()).unwrap();
    let tokens = [1, 3, 4, 2, 3, 5];
    let whole = tokenizer.decode(&tokens, SpecialTokens::Omit).unwrap();
    assert_eq!(whole, "hellos hello!");
    assert_eq!(pieces(&tokenizer, &tokens, SpecialTokens::Omit).concat(), whole);
}

#[test]
fn an_unknown_token_leaves_the_stream_unchanged() {
    let tokenizer = tokenizer();
    let mut stream = tokenizer.stream(SpecialTokens::Omit);
    stream.push(0xc3).unwrap();
    assert_eq!(stream.push(9999), Err(TextError::UnknownToken { token: 9999, tokens: 262 }));
    assert_eq!(stream.push(0xa9).unwrap(), "é");
}
