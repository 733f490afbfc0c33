//! Equations such as `ij,jk->ik`: which axis of which operand is which.

use crate::error::{Error, Result};
use crate::ops::einsum::OP;
use crate::shape::MAX_RANK;

/// More than any equation over tensors needs: longer ones are refused before they are read.
const MOST_BYTES: usize = 256;

/// The axes of one tensor: a letter each.
pub(super) type Labels = Vec<u8>;

/// The axes of the operands and of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Equation {
    pub(super) operands: Vec<Labels>,
    pub(super) output: Labels,
}

impl Equation {
    /// Reads an equation. Without an arrow, the result has the letters that stand there once, in alphabetical order.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let refused = |position, reason| {
            // What is too long to be read is too long to be shown.
            let equation = text.chars().take(MOST_BYTES).collect();
            Err(Error::BadEquation { op: OP, equation, position, reason })
        };
        if text.len() > MOST_BYTES {
            return refused(MOST_BYTES, "the equation is too long");
        }
        let mut tensors = vec![Labels::new()];
        let mut arrow = None;
        let bytes = text.as_bytes();
        let mut position = 0;
        while let Some(&byte) = bytes.get(position) {
            let labels = tensors.len() - 1;
            match byte {
                b' ' => {}
                b',' if arrow.is_some() => return refused(position, "the result is one tensor"),
                b',' => tensors.push(Labels::new()),
                b'-' if bytes.get(position + 1) != Some(&b'>') => {
                    return refused(position, "an arrow is written ->");
                }
                b'-' if arrow.is_some() => return refused(position, "there is a second arrow"),
                b'-' => {
                    arrow = Some(position);
                    tensors.push(Labels::new());
                    position += 1;
                }
                b'.' => return refused(position, "axes without a letter (...) are not supported"),
                letter if !letter.is_ascii_alphabetic() => return refused(position, "expected a letter"),
                letter if tensors[labels].contains(&letter) => {
                    let reason = match arrow {
                        None => "a letter twice in one operand (a diagonal) is not supported",
                        Some(_) => "a letter twice in the result",
                    };
                    return refused(position, reason);
                }
                letter if arrow.is_some() && !tensors[..labels].iter().any(|of| of.contains(&letter)) => {
                    return refused(position, "a letter of the result that no operand has");
                }
                _ if tensors[labels].len() == MAX_RANK => {
                    return refused(position, "more axes than a tensor can have");
                }
                letter => tensors[labels].push(letter),
            }
            position += 1;
        }
        let output = match arrow {
            Some(_) => tensors.pop().unwrap_or_default(),
            None => {
                let once = |letter: &u8| tensors.iter().filter(|of| of.contains(letter)).count() == 1;
                (b'A'..=b'Z').chain(b'a'..=b'z').filter(once).collect()
            }
        };
        if output.len() > MAX_RANK {
            return refused(text.len(), "more axes than a tensor can have");
        }
        Ok(Self { operands: tensors, output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Vec<String>, String) {
        let equation = Equation::parse(text).unwrap();
        let word = |labels: Labels| String::from_utf8(labels).unwrap();
        (equation.operands.into_iter().map(word).collect(), word(equation.output))
    }

    #[test]
    fn operands_stand_before_the_arrow_and_the_result_behind() {
        assert_eq!(parsed("ij,jk->ik"), (vec!["ij".into(), "jk".into()], "ik".into()));
        assert_eq!(parsed(" b i j -> j b"), (vec!["bij".into()], "jb".into()));
        assert_eq!(parsed("i,->"), (vec!["i".into(), String::new()], String::new()));
    }

    #[test]
    fn without_an_arrow_the_letters_that_stand_once_are_the_result_in_order() {
        assert_eq!(parsed("kj,ji").1, "ik");
        assert_eq!(parsed("ba").1, "ab");
        assert_eq!(parsed("i,i").1, "");
    }

    #[test]
    fn what_cannot_be_followed_is_named_with_its_place() {
        let message = |text: &str| Equation::parse(text).unwrap_err().to_string();
        for (text, reason) in [
            ("ii->i", "a letter twice in one operand (a diagonal) is not supported at position 1"),
            ("ij->ijk", "a letter of the result that no operand has at position 6"),
            ("ij->ii", "a letter twice in the result at position 5"),
            ("ij,jk-ik", "an arrow is written -> at position 5"),
            ("i->->i", "there is a second arrow at position 3"),
            ("i->i,i", "the result is one tensor at position 4"),
            ("...i->i", "axes without a letter (...) are not supported at position 0"),
            ("i2->i", "expected a letter at position 1"),
            ("äi->i", "expected a letter at position 0"),
            ("abcdefghi->a", "more axes than a tensor can have at position 8"),
            ("abcdef,ghijkl", "more axes than a tensor can have at position 13"),
        ] {
            assert_eq!(message(text), format!("einsum: {reason} of \"{text}\""));
        }
        assert!(message(&"a,".repeat(1000)).starts_with("einsum: the equation is too long at position 256"));
    }
}
