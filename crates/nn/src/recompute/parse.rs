//! The text form of recomputations.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::recomputation::{Recomputation, Segment};

/// The most blocks of a recomputation in text, so that a short text cannot take much memory.
const MAX_BLOCKS: usize = 1 << 16;
const TOO_MANY: &str = "it has more than 65,536 blocks";
/// The most parentheses inside each other.
const MAX_DEPTH: usize = 1 << 10;

/// A text that is no [`Recomputation`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no recomputation: {reason}. A recomputation counts blocks, as \"4 (3) ((1) 2)\"")]
#[non_exhaustive]
pub struct ParseRecomputationError {
    /// The beginning of the text.
    pub text: String,
    /// The reason.
    pub reason: &'static str,
}

impl FromStr for Recomputation {
    type Err = ParseRecomputationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .map_err(|reason| ParseRecomputationError { text: text.chars().take(80).collect(), reason })
    }
}

fn parse(text: &str) -> Result<Recomputation, &'static str> {
    // The segments of each open parenthesis, from the outermost on, and the factor before it.
    let mut open = vec![(Vec::new(), 1)];
    let (mut blocks, mut factor) = (0, None);
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '(' if open.len() > MAX_DEPTH => return Err("it has too many parentheses inside each other"),
            '(' => open.push((Vec::new(), factor.take().unwrap_or(1))),
            _ if factor.is_some() => return Err("no parenthesis opens after ×"),
            ')' => {
                let Some((segments, factor)) = open.pop_if(|_| true).filter(|_| !open.is_empty()) else {
                    return Err("a parenthesis closes that is not open");
                };
                if segments.is_empty() {
                    return Err("a segment has no blocks");
                }
                let segment = Segment::Again(segments);
                if factor > 1 && !segment.is_simple() {
                    return Err("a segment with parentheses inside has a factor");
                }
                let more =
                    segment.blocks().checked_mul(factor - 1).filter(|more| *more <= MAX_BLOCKS - blocks);
                blocks += more.ok_or(TOO_MANY)?;
                if let Some((outer, _)) = open.last_mut() {
                    outer.extend(std::iter::repeat_n(segment, factor));
                }
            }
            '0'..='9' => {
                length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                let number = rest.get(..length).and_then(|digits| digits.parse::<usize>().ok());
                let number = number.filter(|&number| number <= MAX_BLOCKS - blocks).ok_or(TOO_MANY)?;
                let after = rest.get(length..).unwrap_or("").trim_start();
                if let Some(segment) = after.strip_prefix('×') {
                    factor = Some(number).filter(|number| *number > 0);
                    if factor.is_none() {
                        return Err("a factor is 0");
                    }
                    rest = segment.trim_start();
                    continue;
                }
                blocks += number;
                if let Some((segments, _)) = open.last_mut() {
                    segments.extend(std::iter::repeat_n(Segment::Keep, number));
                }
            }
            _ => return Err("it has other characters than digits, spaces, × and parentheses"),
        }
        rest = rest.get(length..).unwrap_or("").trim_start();
    }
    match (open.pop(), open.is_empty(), factor) {
        (Some((segments, _)), true, None) => Ok(Recomputation::new(segments)),
        (_, _, Some(_)) => Err("no parenthesis opens after ×"),
        _ => Err("a parenthesis is not closed"),
    }
}

impl Serialize for Recomputation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Recomputation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_returns_as_it_was() {
        for text in
            ["", "1", "12", "(1)", "4 (3) (2 (1))", "(((1) 1) 1) 2 (5)", "(2) (2) 3×(1) 4", "(5×(1) 2) (1)"]
        {
            let recomputation: Recomputation = text.parse().unwrap();
            assert_eq!(recomputation.to_string(), text);
            let json = serde_json::to_string(&recomputation).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Recomputation>(&json).unwrap(), recomputation);
        }
        assert_eq!(" 2(1 )0 1".parse(), Ok(Recomputation::of_blocks(4, [2])));
        assert_eq!("1×(1) 2 × (2)".parse::<Recomputation>().unwrap().to_string(), "(1) (2) (2)");
    }

    #[test]
    fn other_texts_are_errors() {
        let deep = "(".repeat(100_000);
        for text in [
            "(",
            ")",
            "()",
            "1)",
            "(1",
            "x",
            "1, 2",
            "-1",
            "65537",
            "65536 1",
            "99999999999999999999",
            "3×",
            "3×2",
            "×(1)",
            "0×(1)",
            "2×((1) 1)",
            "2×3×(1)",
            "65536×(2)",
            "(65536×(1) 1)",
            &deep,
        ] {
            let error = text.parse::<Recomputation>().unwrap_err().to_string();
            assert!(error.contains("is no recomputation") && error.len() < 250, "{error}");
        }
    }
}
