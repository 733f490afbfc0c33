//! Detection of the delimiter.

/// The candidates; the first of several equally frequent ones wins.
const CANDIDATES: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Returns the candidate that is most frequent outside of quotes in the first line that is not blank; a comma if the
/// line has no candidates.
pub(super) fn detect(start: &[u8]) -> u8 {
    let mut counts = [0_usize; CANDIDATES.len()];
    let (mut is_quoted, mut is_blank) = (false, true);
    for &byte in start {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\n' | b'\r' if !is_quoted && !is_blank => break,
            _ if is_quoted => {}
            _ => {
                if let Some(at) = CANDIDATES.iter().position(|&candidate| candidate == byte) {
                    counts[at] += 1;
                }
            }
        }
        is_blank &= matches!(byte, b'\n' | b'\r' | b' ');
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    counts.iter().position(|&count| count == most).map_or(b',', |at| CANDIDATES[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_delimiter_outside_of_quotes_wins() {
        for (text, expected) in [
            ("a,b,c\n1;2;3;4;5\n", b','),
            ("\n\r\n  \na;b;\"c,d,e,f\"\n", b';'),
            ("a\tb, c\td\n", b'\t'),
            ("a|b", b'|'),
            ("\"a\n,,,\";b\n,,,,", b';'),
            ("a,b;c", b','),
            ("single\n1;2", b','),
            ("", b','),
            ("\"open;;;", b','),
        ] {
            assert_eq!(detect(text.as_bytes()), expected, "{text:?}");
        }
    }
}
