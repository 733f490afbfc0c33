//! A text as consecutive windows of tokens.

use std::ops::Range;
use std::sync::Arc;

use highwater_tensor::{Error, Result, Shape};

use super::dataset::Dataset;
use super::sample::Sample;

/// The target of a position that does not count: -100, as in PyTorch and `transformers`. Give it to
/// [`CrossEntropyOptions::ignore_index`](highwater_tensor::CrossEntropyOptions::ignore_index).
pub const IGNORED_TARGET: i64 = -100;

const OP: &str = "TokenWindows";

/// A text in windows of `len` tokens, which follow each other without overlap: a data set for language models. The tokens
/// after the last whole window are dropped.
///
/// The input of a sample is a window, `[len]` (`i64`). The target of a position is the next token *of the window*, and
/// [`IGNORED_TARGET`] at the last position: the labels of `transformers`, shifted.
///
/// ```
/// use std::sync::Arc;
/// use highwater::data::{IGNORED_TARGET, TokenWindows};
/// use highwater::prelude::*;
/// let text: Vec<u32> = (0..10).collect(); // for example of a `Tokenizer`
/// let windows = Arc::new(TokenWindows::new(text, 4)?);
/// assert_eq!(windows.len(), 2);
/// let (x, y) = windows.batches(2, &Device::cpu()?)?.next().unwrap()?;
/// assert_eq!(x.to_vec::<i64>()?, [0, 1, 2, 3, /* window 1 */ 4, 5, 6, 7]);
/// assert_eq!(y.to_vec::<i64>()?, [1, 2, 3, IGNORED_TARGET, 5, 6, 7, IGNORED_TARGET]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// All batches have one shape, so dry runs and plans need no further information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWindows {
    tokens: Arc<Vec<u32>>,
    len: usize,
    windows: Range<usize>,
}

impl TokenWindows {
    /// Creates a data set of a text's tokens.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a `len` below 2, which has no targets, or above the number of tokens.
    pub fn new(tokens: Vec<u32>, len: usize) -> Result<Self> {
        if len < 2 || len > tokens.len() {
            return Err(Error::BadArgument {
                op: OP,
                argument: "len",
                expected: "at least 2, and at most the number of tokens",
                got: format!("{len} for {} tokens", tokens.len()),
            });
        }
        let windows = 0..tokens.len() / len;
        Ok(Self { tokens: Arc::new(tokens), len, windows })
    }

    /// Splits into the beginning of the text, and the last `fraction` of the windows, rounded. Copies no tokens.
    ///
    /// ```
    /// use highwater::data::TokenWindows;
    /// use highwater::prelude::*;
    /// let (train, validation) = TokenWindows::new(vec![7; 1000], 10)?.split(0.1)?;
    /// assert_eq!((train.len(), validation.len()), (90, 10));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < fraction < 1, and if a part would be empty.
    pub fn split(self, fraction: f64) -> Result<(Self, Self)> {
        let bad = |expected, got| Error::BadArgument { op: "split", argument: "fraction", expected, got };
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(bad("above 0 and below 1", fraction.to_string()));
        }
        let last = (self.len() as f64 * fraction).round() as usize;
        if last == 0 || last >= self.len() {
            let got = format!("{fraction}, which takes {last} of {} windows", self.len());
            return Err(bad("a share that leaves windows in both parts", got));
        }
        let Range { start, end } = self.windows;
        let rest = Self { windows: end - last..end, ..self.clone() };
        Ok((Self { windows: start..end - last, ..self }, rest))
    }

    /// Returns the tokens of a window.
    #[must_use]
    pub const fn window_len(&self) -> usize {
        self.len
    }

    /// Returns the tokens of all windows, in the order of the text.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[self.windows.start * self.len..self.windows.end * self.len]
    }
}

impl Dataset for TokenWindows {
    fn len(&self) -> usize {
        self.windows.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let Some(window) = self.tokens().chunks_exact(self.len).nth(index) else {
            let (expected, got) = ("below the number of windows", format!("{index} of {}", self.len()));
            return Err(Error::BadArgument { op: OP, argument: "index", expected, got });
        };
        let input: Vec<i64> = window.iter().map(|&token| token.into()).collect();
        let targets = input[1..].iter().copied().chain([IGNORED_TARGET]).collect::<Vec<_>>();
        Sample::new(&input, [self.len])?.with_target(&targets, [self.len])
    }

    fn sample_shape(&self) -> Option<Shape> {
        Shape::new(&[self.len]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_keeps_the_order_of_the_text() {
        let windows = TokenWindows::new((0..23).collect(), 4).unwrap();
        let (train, test) = windows.clone().split(0.4).unwrap();
        assert_eq!((train.tokens().len(), test.tokens()), (12, &(12..20).collect::<Vec<_>>()[..]));
        let (_, last) = test.split(0.5).unwrap();
        assert_eq!(last.get(0).unwrap().input.to_vec::<i64>().unwrap(), [16, 17, 18, 19]);
        for fraction in [0.0, 1.0, 0.05, 0.95, f64::NAN] {
            let split = windows.clone().split(fraction);
            assert!(matches!(split, Err(Error::BadArgument { op: "split", .. })), "{split:?}");
        }
        assert!(matches!(windows.get(5), Err(Error::BadArgument { .. })));
    }

    #[test]
    fn windows_that_do_not_fit_the_text_are_errors() {
        for (tokens, len) in [(10, 11), (10, 1), (10, 0), (0, 2)] {
            let refused = TokenWindows::new(vec![0; tokens], len);
            assert!(matches!(refused, Err(Error::BadArgument { argument: "len", .. })), "{refused:?}");
        }
        assert_eq!(TokenWindows::new(vec![0; 10], 10).unwrap().len(), 1);
    }
}
