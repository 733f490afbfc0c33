//! Reads files of any format, detected from their first bytes.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use super::error::{CompressedProblem, TooMuchInput};
use super::lines::{MARK, beginning};
use super::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};
use super::{lines, minimalloc, pickle, rmm, snapshot, text};
use crate::files::FileKind;
use crate::files::gzip::{self, Gzip, RatioExceeded};
use crate::record::{Recording, RecordingLimits};

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

pub(super) fn read(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let (start, reader) = sniff(reader)?;
    if start.starts_with(&gzip::MAGIC) {
        let decoder = Gzip::new(reader, options.limits.ratio.into());
        read_plain(BufReader::new(Decompressed(decoder)), options)
    } else {
        read_plain(reader, options)
    }
}

fn read_plain(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let limits = &options.limits;
    let limit = limits.input_bytes;
    let (start, mut reader) = sniff(Bounded { reader, left: limit, limit })?;
    let format = Format::of(&start)?;
    let has_devices = matches!(format, Format::Snapshot | Format::JsonSnapshot);
    if let Some(device) = options.device.filter(|_| !has_devices) {
        return Err(TracePlace::Byte(0).of(TraceProblem::NoDevices { device }));
    }
    match format {
        Format::Snapshot => snapshot::parse(reader, options),
        Format::JsonSnapshot => {
            // JSON has no byte-order mark. The first lines, which are in memory, identify this format.
            reader.consume(if start.starts_with(MARK) { MARK.len() } else { 0 });
            snapshot::parse_json(reader, options)
        }
        Format::Recording => recording(reader, limits),
        Format::Rmm => lines::parse(reader, limits, rmm::parse_line),
        Format::MiniMalloc => minimalloc::parse(reader, limits),
        Format::Text => lines::parse(reader, limits, text::parse_line),
    }
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Snapshot,
    JsonSnapshot,
    Recording,
    Rmm,
    MiniMalloc,
    /// The text format of Highwater.
    Text,
}

impl Format {
    /// Detects the format from the first bytes. A file without lines is text without events.
    fn of(start: &[u8]) -> Result<Self, TraceError> {
        match FileKind::of(start) {
            Some(FileKind::Pickle) if start.first() == Some(&pickle::MAGIC) => return Ok(Self::Snapshot),
            Some(FileKind::Recording) => return Ok(Self::Recording),
            Some(kind) => return Err(TracePlace::Byte(0).of(TraceProblem::WrongFile { kind })),
            None => {}
        }
        let start = String::from_utf8_lossy(start.strip_prefix(MARK).unwrap_or(start));
        match start.lines().map(str::trim).zip(1..).find(|(line, _)| !line.is_empty()) {
            None => Ok(Self::Text),
            Some((line, _)) if line.starts_with(['{', '[']) => Ok(Self::JsonSnapshot),
            Some((line, _)) if rmm::is_first_line(line) => Ok(Self::Rmm),
            Some((line, _)) if minimalloc::is_first_line(line) => Ok(Self::MiniMalloc),
            Some((line, _)) if ["#", "a ", "f "].iter().any(|start| line.starts_with(start)) => {
                Ok(Self::Text)
            }
            Some((line, number)) => {
                Err(TracePlace::Line(number).of(TraceProblem::UnknownFormat { found: beginning(line) }))
            }
        }
    }
}

/// The share of the memory limit for a recording, in eighths. Its trace gets the rest.
const OF_RECORDING: u64 = 5;

/// Converts a recording to a trace. A recording that was cut off has events up to the cut.
fn recording(reader: impl BufRead, limits: &TraceLimits) -> Result<Trace, TraceError> {
    let recording_limits = RecordingLimits {
        events: limits.events,
        held_bytes: limits.held_bytes,
        ..RecordingLimits::default()
    };
    let (recording, held_bytes) = Recording::read_within(reader, &recording_limits, OF_RECORDING)?;
    let limits = TraceLimits { held_bytes, ..*limits };
    Trace::from_recording_within(&recording, &limits).map_err(|problem| TracePlace::Recording.of(problem))
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
struct Bounded<R> {
    reader: R,
    left: u64,
    limit: u64,
}

impl<R: BufRead> BufRead for Bounded<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let buffer = self.reader.fill_buf()?;
        if self.left == 0 && !buffer.is_empty() {
            return Err(io::Error::new(ErrorKind::FileTooLarge, TooMuchInput { limit: self.limit }));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        Ok(&buffer[..most])
    }

    fn consume(&mut self, amount: usize) {
        self.left = self.left.saturating_sub(amount as u64);
        self.reader.consume(amount);
    }
}

impl<R: BufRead> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
