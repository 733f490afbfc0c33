//! Reads files of any format, detected from their first bytes.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use super::error::{CompressedProblem, TooMuchInput};
use super::lines::{MARK, beginning};
use super::profile::{heap_text, heaptrack, memray, pprof, recording_limits};
use super::{Trace, TraceError, TraceLimits, TracePlace, TraceProblem};
use super::{lines, minimalloc, pickle, profiler, rmm, snapshot, text, timeline};
use crate::files::FileKind;
use crate::files::gzip::{self, Gzip, RatioExceeded};
use crate::record::Recording;

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
    open(reader, options, |Opened { format, reader, start, .. }| {
        let limits = &options.limits;
        let (recording, held_bytes) = match format {
            Format::Recording => read_recording(reader, limits, OF_RECORDING)?,
            Format::Profile(profile) => profile.read(reader, limits, OF_RECORDING)?,
            Format::Trace(format) => return format.read(reader, options, start),
        };
        let limits = TraceLimits { held_bytes, ..*limits };
        Trace::from_recording_within(&recording, &limits).map_err(|problem| TracePlace::Recording.of(problem))
    })
}

/// The share of the memory limit for a recording, in eighths. The trace that is made of it gets the rest.
const OF_RECORDING: u64 = 5;

/// A decompressed file.
pub(super) struct Opened<'a> {
    pub(super) format: Format,
    pub(super) reader: &'a mut dyn BufRead,
    /// The first bytes.
    pub(super) start: &'a [u8],
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
    let format = Format::of(&start)?;
    if let Some(device) = options.device.filter(|_| !format.has_devices()) {
        return Err(TracePlace::Byte(0).of(TraceProblem::NoDevices { device }));
    }
    read(Opened { format, reader: &mut reader, start: &start, bytes: &bytes })
}

/// Reads a recording within so many eighths of the memory limit. Also returns the bytes of the other eighths.
pub(super) fn read_recording(
    reader: &mut dyn BufRead,
    limits: &TraceLimits,
    eighths: u64,
) -> Result<(Recording, u64), TraceError> {
    Ok(Recording::read_within(reader, &recording_limits(limits), eighths)?)
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Recording,
    Profile(ProfileFormat),
    Trace(TraceFormat),
}

/// The format of a heap profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProfileFormat {
    Pprof,
    /// The text of tcmalloc and jemalloc.
    HeapText,
    Heaptrack,
    Memray,
}

/// The format of a list of allocations and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceFormat {
    Snapshot,
    JsonSnapshot,
    /// PyTorch's profiler in the format of Chrome's traces.
    Profiler,
    /// PyTorch's memory timeline.
    Timeline,
    Rmm,
    MiniMalloc,
    /// The text format of Highwater.
    Text,
}

impl ProfileFormat {
    /// Reads a profile within so many eighths of the memory limit. Also returns the bytes of the other eighths.
    pub(super) fn read(
        self,
        reader: &mut dyn BufRead,
        limits: &TraceLimits,
        eighths: u64,
    ) -> Result<(Recording, u64), TraceError> {
        match self {
            Self::Pprof => pprof::read(reader, limits, eighths),
            Self::HeapText => heap_text::read(reader, limits, eighths),
            Self::Heaptrack => heaptrack::read(reader, limits, eighths),
            Self::Memray => memray::read(reader, limits, eighths),
        }
    }
}

impl TraceFormat {
    pub(super) fn read(
        self,
        reader: &mut dyn BufRead,
        options: &ReadOptions,
        start: &[u8],
    ) -> Result<Trace, TraceError> {
        let limits = &options.limits;
        // JSON has no byte-order mark. The first lines, which are in memory, identify this format.
        if matches!(self, Self::JsonSnapshot | Self::Profiler | Self::Timeline) && start.starts_with(MARK) {
            reader.consume(MARK.len());
        }
        match self {
            Self::Snapshot => snapshot::parse(reader, options),
            Self::JsonSnapshot => snapshot::parse_json(reader, options),
            Self::Profiler => profiler::parse(reader, options),
            Self::Timeline => timeline::parse(reader, limits),
            Self::Rmm => lines::parse(reader, limits, rmm::parse_line),
            Self::MiniMalloc => minimalloc::parse(reader, limits),
            Self::Text => lines::parse(reader, limits, text::parse_line),
        }
    }

    /// The name of the format, for reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Snapshot | Self::JsonSnapshot => "a PyTorch snapshot",
            Self::Profiler => "PyTorch's profiler",
            Self::Timeline => "a PyTorch memory timeline",
            Self::Rmm => "an RMM log",
            Self::MiniMalloc => "a MiniMalloc problem",
            Self::Text => "an allocation trace",
        }
    }
}

impl Format {
    /// Detects the format from the first bytes. A file without lines is text without events.
    fn of(start: &[u8]) -> Result<Self, TraceError> {
        use {ProfileFormat as Profile, TraceFormat as Trace};
        match FileKind::of(start) {
            Some(FileKind::Pickle) if start.first() == Some(&pickle::MAGIC) => {
                return Ok(Self::Trace(Trace::Snapshot));
            }
            Some(FileKind::Recording) => return Ok(Self::Recording),
            Some(kind) => return Err(TracePlace::Byte(0).of(TraceProblem::WrongFile { kind })),
            None if pprof::is_start(start) => return Ok(Self::Profile(Profile::Pprof)),
            None => {}
        }
        let start = String::from_utf8_lossy(start.strip_prefix(MARK).unwrap_or(start));
        Ok(match start.lines().map(str::trim).zip(1..).find(|(line, _)| !line.is_empty()) {
            None => Self::Trace(Trace::Text),
            Some((line, _)) if line.starts_with('{') && profiler::is_start(&start) => {
                Self::Trace(Trace::Profiler)
            }
            Some((line, _)) if line.starts_with("[[") => Self::Trace(Trace::Timeline),
            Some((line, _)) if line.starts_with(['{', '[']) => Self::Trace(Trace::JsonSnapshot),
            Some((line, _)) if rmm::is_first_line(line) => Self::Trace(Trace::Rmm),
            Some((line, _)) if minimalloc::is_first_line(line) => Self::Trace(Trace::MiniMalloc),
            Some((line, _)) if memray::is_first_line(line) => Self::Profile(Profile::Memray),
            Some((line, _)) if heap_text::is_first_line(line) => Self::Profile(Profile::HeapText),
            Some((line, _)) if heaptrack::is_first_line(line) => Self::Profile(Profile::Heaptrack),
            Some((line, _)) if ["#", "a ", "f "].iter().any(|start| line.starts_with(start)) => {
                Self::Trace(Trace::Text)
            }
            Some((line, number)) => {
                let problem = TraceProblem::UnknownFormat { found: beginning(line) };
                return Err(TracePlace::Line(number).of(problem));
            }
        })
    }

    const fn has_devices(self) -> bool {
        use TraceFormat::{JsonSnapshot, Profiler, Snapshot};
        matches!(self, Self::Trace(Snapshot | JsonSnapshot | Profiler))
    }
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
