//! Decompresses gzip files within a ratio, so that a small file cannot take the time and memory of a large one.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

/// The first bytes of every gzip file.
pub const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The default ratio. MNIST has a ratio of 5, and 8 as text; gzip reaches 1,000.
pub const RATIO: u64 = 256;

/// Decompressed bytes that every file may have, at any ratio.
pub const FREE_BYTES: u64 = 64 << 20;

/// The most decompressed bytes for a number of compressed bytes.
#[must_use]
pub fn limit(compressed: u64, ratio: u64) -> u64 {
    compressed.saturating_mul(ratio).max(FREE_BYTES)
}

/// Decompresses a source. A file may consist of several members; the length and checksum of each are verified.
#[derive(Debug)]
pub struct Gzip<R> {
    decoder: MultiGzDecoder<Counted<R>>,
    read: u64,
    ratio: u64,
}

/// Counts bytes read.
#[derive(Debug)]
struct Counted<R> {
    source: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl<R: Read> Gzip<R> {
    /// A reader that fails once it decompresses more than `ratio` bytes for each byte of the source.
    pub fn new(source: R, ratio: u64) -> Self {
        Self { decoder: MultiGzDecoder::new(Counted { source, read: 0 }), read: 0, ratio }
    }
}

impl<R: Read> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(buffer)?;
        self.read += read as u64;
        if self.read > limit(self.decoder.get_ref().read, self.ratio) {
            return Err(io::Error::other(RatioExceeded { ratio: self.ratio }));
        }
        Ok(read)
    }
}

/// The decompressed bytes exceed the limit. [`Gzip`] returns it within an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {ratio} decompressed bytes for each byte of the file")]
pub struct RatioExceeded {
    /// The limit.
    pub ratio: u64,
}

impl RatioExceeded {
    /// This problem, if it caused an error.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_ratio_is_limited_beyond_what_every_file_may_have() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&vec![0; FREE_BYTES as usize + 1]).unwrap();
        let zeros = encoder.finish().unwrap();
        let read = |ratio| io::copy(&mut Gzip::new(&zeros[..], ratio), &mut io::sink());
        assert_eq!(read(2000).unwrap(), FREE_BYTES + 1);
        let error = read(100).unwrap_err();
        assert_eq!(RatioExceeded::of(&error).unwrap().ratio, 100);
    }
}
