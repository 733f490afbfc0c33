//! Non-finite numbers, which JSON lacks and Python's `json` writes as bare words.

/// The words for NaN and the infinities.
const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Returns whether a string means NaN or an infinity.
pub(super) fn is_non_finite(text: &str) -> bool {
    WORDS.contains(&text)
}

/// Returns the line with quotes around these words, if any occurs outside of its strings. Cuts off an incomplete word
/// at the end of the line.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let (mut quoted, mut rest) = (Vec::new(), line);
    let (mut in_string, mut found) = (false, false);
    while let Some(&byte) = rest.first() {
        let taken = match byte {
            b'\\' if in_string => 2,
            b'"' => {
                in_string = !in_string;
                1
            }
            b'N' | b'I' | b'-' if !in_string => {
                if let Some(word) = WORDS.iter().find(|word| rest.starts_with(word.as_bytes())) {
                    quoted.extend([b"\"", word.as_bytes(), b"\""].concat());
                    (rest, found) = (&rest[word.len()..], true);
                    continue;
                }
                if WORDS.iter().any(|word| word.as_bytes().starts_with(rest)) {
                    return Some(quoted);
                }
                1
            }
            _ => 1,
        };
        let taken = taken.min(rest.len());
        quoted.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
    found.then_some(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quote(line: &str) -> Option<String> {
        quoted(line.as_bytes()).map(|quoted| String::from_utf8(quoted).unwrap())
    }

    #[test]
    fn words_outside_of_strings_are_quoted() {
        let found = quote(r#"{"a": NaN, "b":-Infinity,"NaN":[Infinity],"c":-1}"#);
        assert_eq!(found.as_deref(), Some(r#"{"a": "NaN", "b":"-Infinity","NaN":["Infinity"],"c":-1}"#));
        for none in [r#"{"NaN":"Infinity"}"#, r#"{"a\"NaN":-1}"#, r#"{"\\":nan}"#, "", "\"", "\"\\"] {
            assert_eq!(quote(none), None, "{none}");
        }
        assert_eq!(quote(r#"{"\\":NaN}"#).as_deref(), Some(r#"{"\\":"NaN"}"#));
    }

    #[test]
    fn an_incomplete_word_is_removed() {
        for end in ["N", "Na", "-", "-Inf", "Infinit"] {
            assert_eq!(quote(&format!("{{\"a\":{end}")).as_deref(), Some("{\"a\":"), "{end}");
        }
        assert_eq!(quote("{\"a\":Nan"), None);
    }
}
