//! Text as tokens: one per character or one per byte.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use highwater_tensor::{DType, Error, Layout, Place, Result, Shape, Tensor, error::DataError};

use super::shuffle::numbers_below;
use crate::file_kind;
use highwater_files::FileKind;
use highwater_tracking::module;

/// A tokenized text. A token is the index of a character among the text's characters, sorted by code point.
///
/// ```
/// use highwater::data::Text;
/// use highwater::Device;
/// let text = Text::new("a cab");
/// assert_eq!((text.classes(), text.len()), (4, 5));
/// assert_eq!(text.decode(&text.encode("bac ").unwrap()), "bac ");
/// let (x, y) = text.windows(&Device::cpu()?, 2, 3, 0, 0)?;
/// assert_eq!((x.dims(), y.dims()), (&[2, 3][..], &[2, 3][..]));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    alphabet: Alphabet,
    tokens: Vec<u32>,
}

/// The meaning of the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Alphabet {
    /// The characters of the text, sorted.
    Characters(Vec<char>),
    /// All 256 bytes, which can represent any text.
    Bytes,
}

impl Text {
    /// Tokenizes a text by character.
    #[must_use]
    pub fn new(text: &str) -> Self {
        // One bit per code point.
        let mut occurs = vec![0_u64; (char::MAX as usize + 1).div_ceil(64)];
        text.chars().for_each(|character| occurs[character as usize / 64] |= 1 << (character as u32 % 64));
        let is_there =
            |&character: &char| occurs[character as usize / 64] >> (character as u32 % 64) & 1 == 1;
        let characters: Vec<char> = ('\0'..=char::MAX).filter(is_there).collect();
        let mut tokens = Vec::with_capacity(text.chars().count());
        // Every character of the text is in the alphabet.
        let token = |character| characters.binary_search(&character).unwrap_or_default() as u32;
        tokens.extend(text.chars().map(token));
        Self { alphabet: Alphabet::Characters(characters), tokens }
    }

    /// Tokenizes bytes: always 256 classes, so a model can be used on any other text.
    ///
    /// ```
    /// use highwater::data::Text;
    /// let text = Text::of_bytes("né".as_bytes());
    /// assert_eq!((text.classes(), text.len()), (256, 3));
    /// assert_eq!(text.encode("é").unwrap(), [0xc3, 0xa9]);
    /// assert_eq!(text.decode(&[110, 0xc3, 0xa9]), "né");
    /// ```
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { alphabet: Alphabet::Bytes, tokens: bytes.iter().map(|&byte| u32::from(byte)).collect() }
    }

    /// Reads and tokenizes a file of UTF-8 text of at most `limit` bytes. Skips a byte-order mark.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::TooLong`], [`DataError::NotText`] for invalid UTF-8, [`DataError::WrongFile`]
    /// for a known binary format, [`DataError::Empty`].
    pub fn read(path: impl AsRef<Path>, limit: u64) -> std::result::Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| failed(path, &error))?;
        Self::read_from(file, path, limit)
    }

    /// Reads text from any reader. Errors show `name` as the file.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_from(
        source: impl Read,
        name: impl AsRef<Path>,
        limit: u64,
    ) -> std::result::Result<Self, DataError> {
        let path = name.as_ref();
        let bytes = read_bytes(source, path, limit)?;
        // A Git LFS pointer is text too, but never the intended text.
        if let Some(FileKind::LfsPointer { .. }) = FileKind::of(&bytes)
            && let Some(problem) = file_kind::mistaken(&bytes, "the text itself")
        {
            return Err(DataError::WrongFile { path: path.to_owned(), problem });
        }
        let not_text = |offset: usize| DataError::NotText { path: path.to_owned(), offset: offset as u64 };
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            match file_kind::mistaken(&bytes, "text in UTF-8") {
                Some(problem) => DataError::WrongFile { path: path.to_owned(), problem },
                None => not_text(error.valid_up_to()),
            }
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.is_empty() { Err(DataError::Empty { path: path.to_owned() }) } else { Ok(Self::new(text)) }
    }

    /// Reads a file of at most `limit` bytes as byte tokens; see [`of_bytes`](Self::of_bytes).
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::TooLong`], [`DataError::Empty`].
    pub fn read_bytes(path: impl AsRef<Path>, limit: u64) -> std::result::Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| failed(path, &error))?;
        Ok(Self::of_bytes(&read_bytes(file, path, limit)?))
    }

    /// Returns the characters of the tokens in order; `None` for bytes. A model can only process texts with the same
    /// alphabet.
    ///
    /// ```
    /// use highwater::data::Text;
    /// assert_eq!(Text::new("a cab").alphabet().as_deref(), Some(" abc"));
    /// assert_eq!(Text::of_bytes(b"a cab").alphabet(), None);
    /// ```
    #[must_use]
    pub fn alphabet(&self) -> Option<String> {
        match &self.alphabet {
            Alphabet::Characters(characters) => Some(characters.iter().collect()),
            Alphabet::Bytes => None,
        }
    }

    /// Returns the number of distinct tokens.
    #[must_use]
    pub const fn classes(&self) -> usize {
        match &self.alphabet {
            Alphabet::Characters(characters) => characters.len(),
            Alphabet::Bytes => 256,
        }
    }

    /// Returns the number of tokens.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the text has no tokens.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokenizes another text with this alphabet; `None` if it contains other characters.
    #[must_use]
    pub fn encode(&self, text: &str) -> Option<Vec<i64>> {
        match &self.alphabet {
            Alphabet::Characters(characters) => {
                let token = |character| characters.binary_search(&character).ok().map(|place| place as i64);
                text.chars().map(token).collect()
            }
            Alphabet::Bytes => Some(text.bytes().map(i64::from).collect()),
        }
    }

    /// Converts tokens to text. Skips invalid tokens, and shows bytes that form no character as �.
    #[must_use]
    pub fn decode(&self, tokens: &[i64]) -> String {
        match &self.alphabet {
            Alphabet::Characters(characters) => {
                let character =
                    |&token: &i64| usize::try_from(token).ok().and_then(|place| characters.get(place));
                tokens.iter().filter_map(character).collect()
            }
            Alphabet::Bytes => {
                let bytes = tokens.iter().filter_map(|&token| u8::try_from(token).ok());
                String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
            }
        }
    }

    /// Splits the text into its beginning and the last `fraction` of it. Both parts keep the alphabet.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < fraction < 1, and if a part would be empty.
    pub fn split(mut self, fraction: f64) -> Result<(Self, Self)> {
        let bad = |expected, got| Error::BadArgument { op: "split", argument: "fraction", expected, got };
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(bad("above 0 and below 1", fraction.to_string()));
        }
        let cut = (self.len() as f64 * fraction) as usize;
        let kept = self.len() - cut;
        if cut == 0 || kept == 0 {
            let got = format!("{fraction}, which takes {cut} of {} tokens", self.len());
            return Err(bad("a share that leaves tokens in both parts", got));
        }
        let tokens = self.tokens.split_off(kept);
        let alphabet = self.alphabet.clone();
        Ok((self, Self { alphabet, tokens }))
    }

    /// Returns `count` random windows of `len` tokens (`[count, len]`, i64), and the next token of each token. They
    /// depend only on the seed and the number of the step: window i of a step is the window `step · count + i` of the
    /// seed. So the micro-batches of a step have the windows of the whole batch. Both tensors have the category input in
    /// the scope `data`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the text is longer than a window, [`Error::Allocation`] and
    /// [`Error::NoHostMemory`] if there is no memory.
    pub fn windows(
        &self,
        place: &impl Place,
        count: usize,
        len: usize,
        seed: u64,
        step: u64,
    ) -> Result<(Tensor, Tensor)> {
        let _scope = module("data");
        let Some(starts) = self.len().checked_sub(len).filter(|&starts| starts > 0) else {
            return Err(Error::BadArgument {
                op: "windows",
                argument: "len",
                expected: "less than the length of the text",
                got: format!("{len} for {} tokens", self.len()),
            });
        };
        // Rejects more tokens than any memory holds before it allocates.
        let shape = Shape::new(&[count, len])?;
        Layout::contiguous("windows", shape, DType::I64)?;
        let mut room: Vec<i64> = Vec::new();
        let no_room = |_| Error::NoHostMemory { op: "windows", shape, dtype: DType::I64 };
        room.try_reserve_exact(count.saturating_mul(len.max(1))).map_err(no_room)?;
        let first = step.wrapping_mul(count as u64);
        let starts: Vec<usize> = (0..count as u64)
            .flat_map(|window| numbers_below(starts, 1, seed, first.wrapping_add(window)))
            .collect();
        let mut make = |offset: usize| {
            let windows = starts.iter().flat_map(|start| &self.tokens[start + offset..][..len]);
            room.clear();
            room.extend(windows.map(|&token| i64::from(token)));
            Tensor::from_slice(place, &room, [count, len])
        };
        Ok((make(0)?, make(1)?))
    }
}

/// Reads all bytes of a source: at least one, and at most `limit`.
fn read_bytes(source: impl Read, path: &Path, limit: u64) -> std::result::Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    // Reads one byte beyond the limit, to detect a longer source.
    source.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| failed(path, &error))?;
    if bytes.len() as u64 > limit {
        return Err(DataError::TooLong { path: path.to_owned(), limit });
    }
    if bytes.is_empty() { Err(DataError::Empty { path: path.to_owned() }) } else { Ok(bytes) }
}

fn failed(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_tensor::Runtime;

    #[test]
    fn the_next_token_is_the_target() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let text = Text::new("the quick brown fox jumps over the lazy dog");
        for step in 0..20 {
            let (x, y) = text.windows(&device, 4, 7, 1, step).unwrap();
            let (x, y) = (x.to_vec::<i64>().unwrap(), y.to_vec::<i64>().unwrap());
            for (x, y) in x.chunks(7).zip(y.chunks(7)) {
                assert_eq!(x[1..], y[..6]);
                assert!("the quick brown fox jumps over the lazy dog".contains(&text.decode(x)));
            }
        }
        let again = |step| text.windows(&device, 4, 7, 1, step).unwrap().0.to_vec::<i64>().unwrap();
        assert_eq!(again(3), again(3));
        assert_ne!(again(3), again(4));
        let parts =
            [6, 7].map(|part| text.windows(&device, 2, 7, 1, part).unwrap().0.to_vec::<i64>().unwrap());
        assert_eq!(parts.concat(), again(3), "micro-batches have the windows of the batch");
        assert!(text.windows(&device, usize::MAX, 7, 0, 0).is_err());
        for (count, len) in [(usize::MAX, 0), (1 << 58, 1)] {
            let refused = text.windows(&device, count, len, 0, 0);
            assert!(matches!(refused, Err(Error::NoHostMemory { op: "windows", .. })), "{refused:?}");
        }
        assert_eq!(text.windows(&device, 3, 0, 0, 0).unwrap().0.dims(), [3, 0]);
        assert!(matches!(text.windows(&device, 1, 43, 0, 0), Err(Error::BadArgument { op: "windows", .. })));
    }

    #[test]
    fn a_file_that_is_no_text_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, b"ab\xffc").unwrap();
        assert_eq!(Text::read(&path, 100), Err(DataError::NotText { path: path.clone(), offset: 2 }));
        assert_eq!(Text::read(&path, 3), Err(DataError::TooLong { path: path.clone(), limit: 3 }));
        std::fs::write(&path, "").unwrap();
        assert_eq!(Text::read(&path, 3), Err(DataError::Empty { path: path.clone() }));
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(Text::read(&path, 3).unwrap().len(), 3);
        let missing = folder.path().join("none");
        assert!(matches!(Text::read(&missing, 3), Err(DataError::Io { .. })));
    }

    #[test]
    fn bytes_are_tokens_of_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, b"ab\xffc").unwrap();
        let text = Text::read_bytes(&path, 100).unwrap();
        assert_eq!((text.len(), text.classes()), (4, 256));
        assert_eq!(text.decode(&[97, 0xff, 300, -1, 98]), "a\u{fffd}b");
        assert_eq!(Text::read_bytes(&path, 3), Err(DataError::TooLong { path: path.clone(), limit: 3 }));
        let (train, test) = text.split(0.5).unwrap();
        assert_eq!((train.len(), test.len(), test.classes()), (2, 2, 256));
    }

    #[test]
    fn files_changed_at_any_byte_keep_every_promise() {
        for file in ["plain text", "mé\u{10ffff}x", ""] {
            for at in 0..file.len() {
                crate::fuzz::text(&file.as_bytes()[..at]);
                for bit in 0..8 {
                    let mut changed = file.as_bytes().to_vec();
                    changed[at] ^= 1 << bit;
                    crate::fuzz::text(&changed);
                }
            }
        }
    }

    #[test]
    fn a_split_cuts_the_end_off() {
        let (train, test) = Text::new("abcdefghij").split(0.3).unwrap();
        assert_eq!((train.len(), test.len(), test.classes()), (7, 3, 10));
    }

    #[test]
    fn a_split_with_an_empty_part_is_an_error() {
        for fraction in [0.0, 1.0, 1.5, -0.1, f64::NAN, 0.4] {
            let error = Text::new("ab").split(fraction).unwrap_err();
            assert!(matches!(error, Error::BadArgument { op: "split", argument: "fraction", .. }), "{error}");
        }
        let message = Text::new("ab").split(0.4).unwrap_err().to_string();
        let expected = "split: fraction must be a share that leaves tokens in both parts, got 0.4, which takes 0 of 2 tokens";
        assert_eq!(message, expected);
    }
}
