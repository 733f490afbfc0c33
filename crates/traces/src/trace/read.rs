//! Reads files of any format, detected from their first bytes.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use highwater_files::gzip::{self, Gzip, RatioExceeded};
use highwater_files::lines::MARK;

use super::error::{CompressedProblem, TooMuchInput};
use super::formats::{Format, Reader};
use super::{Trace, TraceError, TraceLimits, TracePlace};

/// Options for reading a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The limits.
    pub limits: TraceLimits,
    /// The device of a PyTorch snapshot. Required if several devices have events. Other formats do not support it.
    pub device: Option<u32>,
}

/// The number of bytes for the detection of a format.
const SNIFFED: u64 = 4096;

/// Reads a trace. Profiles and recordings become traces.
pub(super) fn read(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    open(reader, options, |Opened { format, reader, .. }| {
        let limits = &options.limits;
        let (recording, held_bytes) = match format.reader {
            Reader::Profile(read) => read(reader, limits, OF_RECORDING)?,
            Reader::Trace(read) => return read(reader, options),
            Reader::Snapshot(read) => {
                let snapshot = read(reader, options, OF_RECORDING)?;
                return snapshot.to_trace(options).map_err(|problem| TracePlace::Snapshot.of(problem));
            }
        };
        let limits = TraceLimits { held_bytes, ..*limits };
        Trace::from_recording_within(&recording, &limits).map_err(|problem| TracePlace::Recording.of(problem))
    })
}

/// The share of the memory limit for a recording, in eighths. The trace that is made of it gets the rest.
const OF_RECORDING: u64 = 5;

/// A decompressed file.
pub(super) struct Opened<'a> {
    pub(super) format: &'static Format,
    /// Without a byte-order mark.
    pub(super) reader: &'a mut dyn BufRead,
    /// The number of bytes that were read so far.
    pub(super) bytes: &'a Cell<u64>,
}

/// Passes a decompressed file to `read`.
pub(super) fn open<T>(
    reader: impl BufRead,
    options: &ReadOptions,
    read: impl FnOnce(Opened<'_>) -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    let (start, mut reader) = sniff(reader)?;
    if start.starts_with(&gzip::MAGIC) {
        let decoder = Gzip::new(reader, options.limits.ratio.into());
        open_plain(&mut BufReader::new(Decompressed(decoder)), options, read)
    } else {
        open_plain(&mut reader, options, read)
    }
}

fn open_plain<T>(
    reader: &mut dyn BufRead,
    options: &ReadOptions,
    read: impl FnOnce(Opened<'_>) -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    let bytes = Cell::new(0);
    let (start, mut reader) = sniff(Bounded { reader, bytes: &bytes, limit: options.limits.input_bytes })?;
    let format = Format::of(&start, options)?;
    if start.starts_with(MARK) {
        reader.consume(MARK.len());
    }
    read(Opened { format, reader: &mut reader, bytes: &bytes })
}

/// Returns the first bytes of a reader, and a reader of all bytes.
fn sniff<R: BufRead>(mut reader: R) -> Result<(Vec<u8>, impl BufRead), TraceError> {
    let mut start = Vec::new();
    let read = (&mut reader).take(SNIFFED).read_to_end(&mut start);
    read.map_err(|error| TracePlace::Byte(start.len() as u64).of(error))?;
    Ok((start.clone(), Cursor::new(start).chain(reader)))
}

/// A decoder that marks its errors as errors of compressed data.
struct Decompressed<R>(Gzip<R>);

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match RatioExceeded::of(&error) {
            Some(_) => error,
            None => CompressedProblem::extract_from(error),
        })
    }
}

/// A reader that counts its bytes.
pub(super) struct Counted<'a, R> {
    pub(super) reader: R,
    pub(super) bytes: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

/// A reader that fails after a number of bytes.
struct Bounded<'a, R> {
    reader: R,
    /// The bytes so far.
    bytes: &'a Cell<u64>,
    limit: u64,
}

impl<R: BufRead> BufRead for Bounded<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let buffer = self.reader.fill_buf()?;
        let left = self.limit.saturating_sub(self.bytes.get());
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::new(ErrorKind::FileTooLarge, TooMuchInput { limit: self.limit }));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        Ok(&buffer[..most])
    }

    fn consume(&mut self, amount: usize) {
        self.bytes.set(self.bytes.get().saturating_add(amount as u64));
        self.reader.consume(amount);
    }
}

impl<R: BufRead> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
