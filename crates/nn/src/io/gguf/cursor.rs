//! Reads the header of a GGUF file from its bytes.

use std::path::Path;

use crate::io::FileError;

/// A position in the bytes of a file, of which only the first `limit` are read.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    file: &'a [u8],
    position: usize,
    limit: u64,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(path: &'a Path, file: &'a [u8], limit: u64) -> Self {
        Self { path, file, position: 0, limit }
    }

    pub(super) const fn position(&self) -> u64 {
        self.position as u64
    }

    /// Returns the bytes that are left, at most up to the limit.
    fn left(&self) -> u64 {
        (self.file.len() as u64).min(self.limit).saturating_sub(self.position())
    }

    /// Returns the next bytes.
    pub(super) fn bytes(&mut self, count: u64) -> Result<&'a [u8], FileError> {
        if count > self.left() {
            return Err(self.cut(count));
        }
        let start = self.position;
        self.position += count as usize;
        Ok(&self.file[start..self.position])
    }

    /// Returns the error for a header that needs more bytes than are left.
    fn cut(&self, count: u64) -> FileError {
        let (path, end) = (self.path.to_owned(), self.position().saturating_add(count));
        if end > self.file.len() as u64 {
            return FileError::Truncated { path, offset: self.position(), what: "the header".to_owned() };
        }
        let (offset, what) = (self.position(), "bytes of header");
        FileError::TooLarge { path, offset, what, found: end, limit: self.limit }
    }

    /// Checks that `count` items of at least `bytes` bytes each may follow.
    pub(super) fn count(&self, count: u64, bytes: usize) -> Result<usize, FileError> {
        let needed = count.saturating_mul(bytes as u64);
        if needed > self.left() { Err(self.cut(needed)) } else { Ok(count as usize) }
    }

    pub(super) fn u32(&mut self) -> Result<u32, FileError> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn u64(&mut self) -> Result<u64, FileError> {
        let (low, high) = (self.u32()?, self.u32()?);
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    /// Returns a text that follows its length.
    pub(super) fn text(&mut self) -> Result<&'a str, FileError> {
        let length = self.u64()?;
        let start = self.position();
        let bytes = self.bytes(length)?;
        let text = std::str::from_utf8(bytes);
        text.map_err(|_| FileError::malformed(self.path, start, "a text is not valid UTF-8"))
    }

    /// Returns an error at this position.
    pub(super) fn malformed(&self, problem: String) -> FileError {
        FileError::malformed(self.path, self.position(), problem)
    }
}
