//! The parser of equations such as `ij,jk->ik`.

use crate::error::{Error, Result};
use crate::ops::einsum::OP;
use crate::shape::MAX_RANK;

/// The length limit. Longer equations are rejected before parsing.
const MAX_BYTES: usize = 256;

/// The labels of one tensor's axes: letters, or a label for `...`.
pub(super) type Labels = Vec<u8>;

/// The label of `...`.
const ELLIPSIS: u8 = b'.';

/// Returns the number of labels that are letters.
pub(super) fn letters(labels: &[u8]) -> usize {
    labels.iter().filter(|&&label| label != ELLIPSIS).count()
}

/// The labels of the operands and of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Equation {
    pub(super) operands: Vec<Labels>,
    pub(super) output: Labels,
}

impl Equation {
    /// Parses an equation. Without an arrow, the result has the axes under `...`, then the letters that occur once, in
    /// alphabetical order.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let refused = |position, reason| {
            // The error omits an equation that is too long.
            let equation = text.chars().take(MAX_BYTES).collect();
            Err(Error::BadEquation { op: OP, equation, position, reason })
        };
        if text.len() > MAX_BYTES {
            return refused(MAX_BYTES, "the equation is too long");
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
                b'.' if !bytes[position..].starts_with(b"...") => {
                    return refused(position, "axes without a letter are written ...");
                }
                b'.' if tensors[labels].contains(&ELLIPSIS) => {
                    return refused(position, "... twice in one tensor");
                }
                b'.' => {
                    tensors[labels].push(ELLIPSIS);
                    position += 2;
                }
                letter if !letter.is_ascii_alphabetic() => return refused(position, "expected a letter"),
                letter if arrow.is_some() && tensors[labels].contains(&letter) => {
                    return refused(position, "a letter twice in the result");
                }
                letter if arrow.is_some() && !tensors[..labels].iter().any(|of| of.contains(&letter)) => {
                    return refused(position, "a letter of the result that no operand has");
                }
                _ if letters(&tensors[labels]) == MAX_RANK => {
                    return refused(position, "more axes than a tensor can have");
                }
                letter => tensors[labels].push(letter),
            }
            position += 1;
        }
        let output = match arrow {
            Some(_) => tensors.pop().unwrap_or_default(),
            None => {
                let times = |letter: u8| tensors.iter().flatten().filter(|&&label| label == letter).count();
                let dots = (times(ELLIPSIS) > 0).then_some(ELLIPSIS);
                dots.into_iter()
                    .chain((b'A'..=b'Z').chain(b'a'..=b'z').filter(|&letter| times(letter) == 1))
                    .collect()
            }
        };
        if letters(&output) > MAX_RANK {
            return refused(text.len(), "more axes than a tensor can have");
        }
        Ok(Self { operands: tensors, output })
    }

    /// Whether an operand of `rank` axes matches its labels: one axis per letter, and more only with `...`.
    pub(super) fn accepts_rank(labels: &[u8], rank: usize) -> bool {
        if labels.contains(&ELLIPSIS) { letters(labels) <= rank } else { labels.len() == rank }
    }

    /// Replaces `...` by one label per axis, for operands of ranks that their labels [accept](Self::accepts_rank). The labels count
    /// from the last axis, as in broadcasting: an operand with fewer axes lacks the first ones.
    pub(super) fn with_ellipsis_labels(mut self, text: &str, ranks: &[usize]) -> Result<Self> {
        let unnamed = |(labels, rank): (&Labels, &usize)| rank - letters(labels);
        let unnamed: Vec<usize> = self.operands.iter().zip(ranks).map(unnamed).collect();
        let most = unnamed.iter().copied().max().unwrap_or(0);
        if most > 0 && !self.output.contains(&ELLIPSIS) {
            let (equation, reason) = (text.to_owned(), "the result has no ... for axes that operands have");
            return Err(Error::BadEquation { op: OP, equation, position: text.len(), reason });
        }
        let tensors = self.operands.iter_mut().zip(unnamed).chain([(&mut self.output, most)]);
        for (labels, unnamed) in tensors {
            if let Some(place) = labels.iter().position(|&label| label == ELLIPSIS) {
                // Letters are above MAX_RANK, so labels that count axes differ from them.
                labels.splice(place..=place, (most - unnamed..most).map(|axis| axis as u8));
            }
        }
        if self.output.len() > MAX_RANK {
            return Err(Error::RankTooLarge { op: "einsum", rank: self.output.len() });
        }
        Ok(self)
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
    fn einsum_without_an_arrow_infers_its_output() {
        assert_eq!(parsed("kj,ji").1, "ik");
        assert_eq!(parsed("ba").1, "ab");
        assert_eq!(parsed("i,i").1, "");
        assert_eq!(parsed("ii").1, "");
        assert_eq!(parsed("iij,k").1, "jk");
        assert_eq!(parsed("b...a,a").1, ".b");
    }

    #[test]
    fn axes_without_letters_are_counted_from_the_last() {
        let spelled =
            |text: &str, ranks: &[usize]| Equation::parse(text).unwrap().with_ellipsis_labels(text, ranks);
        let equation = spelled("i...,...j->...ij", &[3, 2]).unwrap();
        assert_eq!(equation.operands, [vec![b'i', 0, 1], vec![1, b'j']]);
        assert_eq!(equation.output, [0, 1, b'i', b'j']);
        assert_eq!(spelled("...i,i->...i", &[1, 1]).unwrap().output, [b'i']);
        assert_eq!(spelled("i->...i", &[1]).unwrap().output, [b'i']);
        let lost = spelled("...i->i", &[2]).unwrap_err().to_string();
        assert_eq!(
            lost,
            "einsum: the result has no ... for axes that operands have at position 7 of \"...i->i\""
        );
        let many = spelled("abcde...,f...", &[8, 4]);
        assert!(matches!(many, Err(Error::RankTooLarge { rank: 9, .. })), "{many:?}");
        assert!(
            Equation::accepts_rank(b"i.", 1)
                && Equation::accepts_rank(b"i.", 4)
                && !Equation::accepts_rank(b"ij.", 1)
        );
        assert!(Equation::accepts_rank(b"ij", 2) && !Equation::accepts_rank(b"ij", 3));
    }

    #[test]
    fn what_cannot_be_followed_is_named_with_its_place() {
        let message = |text: &str| Equation::parse(text).unwrap_err().to_string();
        for (text, reason) in [
            ("ij->ijk", "a letter of the result that no operand has at position 6"),
            ("ij->ii", "a letter twice in the result at position 5"),
            ("ij,jk-ik", "an arrow is written -> at position 5"),
            ("i->->i", "there is a second arrow at position 3"),
            ("i->i,i", "the result is one tensor at position 4"),
            ("i..->i", "axes without a letter are written ... at position 1"),
            ("...i...->i", "... twice in one tensor at position 4"),
            ("......->", "... twice in one tensor at position 3"),
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
