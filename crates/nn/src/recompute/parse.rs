//! The text form of schedules.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::schedule::{Schedule, Segment};

/// The most blocks of a schedule in text, so that a short text cannot take much memory.
const MAX_BLOCKS: usize = 1 << 16;
const TOO_MANY: &str = "it has more than 65,536 blocks";
/// The most parentheses inside each other.
const MAX_DEPTH: usize = 1 << 10;

/// A text that is no [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no schedule: {reason}. A schedule counts blocks, as \"4 (3) ((1) 2)\"")]
#[non_exhaustive]
pub struct ParseScheduleError {
    /// The beginning of the text.
    pub text: String,
    /// The reason.
    pub reason: &'static str,
}

impl FromStr for Schedule {
    type Err = ParseScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|reason| ParseScheduleError { text: text.chars().take(80).collect(), reason })
    }
}

fn parse(text: &str) -> Result<Schedule, &'static str> {
    // The parts of each open parenthesis, from the outermost on, and the factor before it.
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
                let Some((parts, factor)) = open.pop_if(|_| true).filter(|_| !open.is_empty()) else {
                    return Err("a parenthesis closes that is not open");
                };
                if parts.is_empty() {
                    return Err("a part has no blocks");
                }
                let part = Segment::Again(parts);
                if factor > 1 && !part.is_simple() {
                    return Err("a part with parentheses inside has a factor");
                }
                let more = part.blocks().checked_mul(factor - 1).filter(|more| *more <= MAX_BLOCKS - blocks);
                blocks += more.ok_or(TOO_MANY)?;
                if let Some((outer, _)) = open.last_mut() {
                    outer.extend(std::iter::repeat_n(part, factor));
                }
            }
            '0'..='9' => {
                length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                let number = rest.get(..length).and_then(|digits| digits.parse::<usize>().ok());
                let number = number.filter(|&number| number <= MAX_BLOCKS - blocks).ok_or(TOO_MANY)?;
                let after = rest.get(length..).unwrap_or("").trim_start();
                if let Some(part) = after.strip_prefix('×') {
                    factor = Some(number).filter(|number| *number > 0);
                    if factor.is_none() {
                        return Err("a factor is 0");
                    }
                    rest = part.trim_start();
                    continue;
                }
                blocks += number;
                if let Some((parts, _)) = open.last_mut() {
                    parts.extend(std::iter::repeat_n(Segment::Keep, number));
                }
            }
            _ => return Err("it has other characters than digits, spaces, × and parentheses"),
        }
        rest = rest.get(length..).unwrap_or("").trim_start();
    }
    match (open.pop(), open.is_empty(), factor) {
        (Some((parts, _)), true, None) => Ok(Schedule::new(parts)),
        (_, _, Some(_)) => Err("no parenthesis opens after ×"),
        _ => Err("a parenthesis is not closed"),
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Schedule {
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
            let schedule: Schedule = text.parse().unwrap();
            assert_eq!(schedule.to_string(), text);
            let json = serde_json::to_string(&schedule).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule);
        }
        assert_eq!(" 2(1 )0 1".parse(), Ok(Schedule::recompute(4, [2])));
        assert_eq!("1×(1) 2 × (2)".parse::<Schedule>().unwrap().to_string(), "(1) (2) (2)");
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
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains("is no schedule") && error.len() < 250, "{error}");
        }
    }
}
