//! Text piece by piece, while a model generates its tokens.

use super::error::TextError;
use super::tokenizer::{SpecialTokens, Tokenizer};

/// What incomplete UTF-8 decodes to.
const REPLACEMENT: char = '\u{fffd}';

/// An incomplete character has at most three bytes, so at most three tokens.
const INCOMPLETE_TOKENS: usize = 3;

/// The number of tokens that may wait for the end of a character.
const MAX_WAITING: usize = 8;

/// Turns tokens into pieces of text for streaming output. Each piece consists of complete characters, also where a
/// character has several tokens. The pieces concatenate to the text of all tokens.
///
/// Decoding looks at the last few tokens only, so a piece costs the same at the end of a long text.
///
/// ```
/// use highwater_models::text::{TokenType, Vocabulary};
/// use highwater_models::{SpecialTokens, Tokenizer};
/// // "é" has two bytes, which are the tokens `Ã` and `©` in the alphabet of byte-level tokenizers.
/// let tokens = ["c", "a", "f", "Ã", "©"].map(str::to_owned).to_vec();
/// let tokenizer = Tokenizer::from_vocabulary(Vocabulary { tokens, ..Vocabulary::new("gpt2") })?;
///
/// let mut stream = tokenizer.stream(SpecialTokens::Omit);
/// let pieces: Vec<String> = [0, 1, 2, 3, 4].iter().map(|&token| stream.push(token)).collect::<Result<_, _>>()?;
/// assert_eq!(pieces, ["c", "a", "f", "", "é"]);
/// assert_eq!(stream.finish()?, "");
/// # Ok::<(), highwater_models::TextError>(())
/// ```
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    special: SpecialTokens,
    /// The last tokens: those of the previous piece, whose text some decoders need as context, and the waiting ones.
    window: Vec<u32>,
    /// The number of tokens in the window whose text is complete.
    complete: usize,
    /// The length of the window's text that earlier pieces contain, in bytes.
    sent: usize,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, special: SpecialTokens) -> Self {
        Self { tokenizer, special, window: Vec::new(), complete: 0, sent: 0 }
    }

    /// Adds a token, and returns the text that is complete with it. The piece is empty if the token ends within a
    /// character, or if it is a special token that the stream omits.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`]. The stream is unchanged then.
    pub fn push(&mut self, token: u32) -> Result<String, TextError> {
        let is_special = self.tokenizer.check_token(token)?;
        if is_special && self.special == SpecialTokens::Omit {
            return Ok(String::new());
        }
        self.window.push(token);
        self.advance().inspect_err(|_| {
            self.window.pop();
        })
    }

    fn advance(&mut self) -> Result<String, TextError> {
        let text = self.text(0)?;
        let waiting = self.window.len() - self.complete;
        let is_complete = !text.ends_with(REPLACEMENT);
        // A token without text leaves the context to the next one.
        if is_complete && (text.len() > self.sent || waiting > MAX_WAITING) {
            let sent = self.text(self.complete)?.len();
            let piece = text.get(self.sent..).unwrap_or_default().to_owned();
            self.window.drain(..self.complete);
            (self.complete, self.sent) = (self.window.len(), sent);
            return Ok(piece);
        }
        if waiting <= MAX_WAITING {
            return Ok(String::new());
        }
        // The bytes are no UTF-8. Only the last replacement character may become another one, and its bytes are in the
        // last tokens.
        let start = self.window.len() - INCOMPLETE_TOKENS;
        let rest = self.text(start)?;
        let length = REPLACEMENT.len_utf8();
        let piece = text.get(self.sent..text.len() - length).unwrap_or_default().to_owned();
        self.window.drain(..start);
        (self.complete, self.sent) = (0, rest.len().saturating_sub(length));
        Ok(piece)
    }

    /// Returns the text of the window from a token on.
    fn text(&self, start: usize) -> Result<String, TextError> {
        self.tokenizer.decode_known(&self.window[start..], self.special)
    }

    /// Ends the stream and returns the rest of the text: U+FFFD if it ends within a character.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String, TextError> {
        let text = self.text(0)?;
        Ok(text.get(self.sent..).unwrap_or_default().to_owned())
    }
}
