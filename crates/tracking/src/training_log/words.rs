//! Numbers that JSON does not have, as Python's `json` writes them all the same.

/// What stands for a number that is none, and for numbers beyond all.
const WORDS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];

/// A line with `null` in the place of these words, if it has any outside of its texts. One that ends amid a word, as a line
/// that broke off may, ends before it.
pub(super) fn without_words(line: &[u8]) -> Option<Vec<u8>> {
    let (mut plain, mut rest) = (Vec::new(), line);
    let (mut in_text, mut found) = (false, false);
    while let Some(&byte) = rest.first() {
        let taken = match byte {
            b'\\' if in_text => 2,
            b'"' => {
                in_text = !in_text;
                1
            }
            b'N' | b'I' | b'-' if !in_text => {
                if let Some(word) = WORDS.iter().find(|word| rest.starts_with(word)) {
                    plain.extend_from_slice(b"null");
                    (rest, found) = (&rest[word.len()..], true);
                    continue;
                }
                if WORDS.iter().any(|word| word.starts_with(rest)) {
                    return Some(plain);
                }
                1
            }
            _ => 1,
        };
        let taken = taken.min(rest.len());
        plain.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
    found.then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(line: &str) -> Option<String> {
        without_words(line.as_bytes()).map(|plain| String::from_utf8(plain).unwrap())
    }

    #[test]
    fn words_are_null_outside_of_texts_alone() {
        let found = plain(r#"{"a": NaN, "b":-Infinity,"NaN":[Infinity],"c":-1}"#);
        assert_eq!(found.as_deref(), Some(r#"{"a": null, "b":null,"NaN":[null],"c":-1}"#));
        for none in [r#"{"NaN":"Infinity"}"#, r#"{"a\"NaN":-1}"#, r#"{"\\":nan}"#, "", "\"", "\"\\"] {
            assert_eq!(plain(none), None, "{none}");
        }
        assert_eq!(plain(r#"{"\\":NaN}"#).as_deref(), Some(r#"{"\\":null}"#));
    }

    #[test]
    fn a_word_that_broke_off_is_left_out() {
        for end in ["N", "Na", "-", "-Inf", "Infinit"] {
            assert_eq!(plain(&format!("{{\"a\":{end}")).as_deref(), Some("{\"a\":"), "{end}");
        }
        assert_eq!(plain("{\"a\":Nan"), None);
    }
}
