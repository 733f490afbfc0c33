//! Recordings in the forms that other people's tools open.
//!
//! | format | opens in | what it shows |
//! |---|---|---|
//! | `memory-viz` | PyTorch's memory viewer and what else reads its snapshots | every block, pool by pool, over time |
//! | `memory-viz-json` | the same viewer; programs | the same |
//! | `chrome` | Perfetto, `chrome://tracing`, readers of PyTorch's profiler | ops over time with their peaks, live bytes by category |
//! | `pprof` | `pprof`, speedscope | what was live at the peak, by owner and category |
//! | `folded` | flame graphs | the same |
//! | `svg` | browsers | live bytes by category over time |
//!
//! [`Trace::read`](crate::Trace::read) reads both forms of snapshots back.
//!
//! Snapshots and traces are written as they are made: beside the recording they hold 64 KiB of output and a number or two for
//! each event, whatever their length. The others are as small as what they show.
//!
//! How fast, by `highwater export run.hwm --format FORMAT --output /dev/null` on 21 November 2026, on two shared and busy
//! cores of an Intel Xeon at 2.8 GHz, fastest of seven, for the 145,968 events of `train_digits --record run.hwm`:
//! `memory-viz` 0.020 s (7.3 million events a second, 38 bytes each), `memory-viz-json` 0.077 s (1.9 million, 224 bytes),
//! `chrome` 0.045 s (3.2 million, 338 bytes), the others 0.002 s and less.

mod at_peak;
mod chrome;
mod encoder;
mod folded;
mod json_writer;
mod memory_viz;
mod pickle_writer;
mod pprof;
mod segments;
mod svg;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use crate::record::Recording;
use json_writer::JsonWriter;
use pickle_writer::PickleWriter;

/// A form to write a [`Recording`] in; see the table in [`export`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExportFormat {
    /// PyTorch's snapshot, as a pickle of protocol 2.
    MemoryViz,
    /// PyTorch's snapshot, as JSON.
    MemoryVizJson,
    /// A trace of Chrome's format, as JSON.
    Chrome,
    /// What was live at the peak, as a compressed `profile.proto`.
    Pprof,
    /// What was live at the peak, a line of text for each stack.
    Folded,
    /// Live bytes by category over time, as a picture.
    Svg,
}

impl ExportFormat {
    /// All formats.
    pub const ALL: [Self; 6] =
        [Self::MemoryViz, Self::MemoryVizJson, Self::Chrome, Self::Pprof, Self::Folded, Self::Svg];

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryViz => "memory-viz",
            Self::MemoryVizJson => "memory-viz-json",
            Self::Chrome => "chrome",
            Self::Pprof => "pprof",
            Self::Folded => "folded",
            Self::Svg => "svg",
        }
    }

    /// Whether it is text, which a terminal can show.
    #[must_use]
    pub const fn is_text(self) -> bool {
        !matches!(self, Self::MemoryViz | Self::Pprof)
    }
}

impl fmt::Display for ExportFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that no [`ExportFormat`] has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no export format is called {name:?}: expected {}", names())]
pub struct UnknownExportFormat {
    /// The name.
    pub name: String,
}

fn names() -> String {
    ExportFormat::ALL.map(ExportFormat::name).join(", ")
}

impl FromStr for ExportFormat {
    type Err = UnknownExportFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownExportFormat { name: name.to_owned() })
    }
}

/// Why a recording could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// It could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Two blocks of a pool that are live at the end lie over each other, which no map of the pool can show.
    #[error("blocks {first} and {second} are both live at the end at address {address:#x}")]
    Overlap {
        /// The index of one block.
        first: u32,
        /// The index of the other.
        second: u32,
        /// Where the second lies.
        address: u64,
    },
    /// A block or a region reaches beyond what the numbers of JavaScript tell apart.
    #[error("{bytes} bytes at address {address:#x} reach beyond 2^53, the end of what viewers can show")]
    TooHigh {
        /// Where it begins.
        address: u64,
        /// How long it is.
        bytes: u64,
    },
}

/// Writes a recording for another tool, and returns how many bytes that took.
///
/// A pool is a device of PyTorch's snapshots, in the order of [`Recording::pools`]. A block bears the category that it
/// had last there, and the names of its owner and of the modules above as its stack.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};
/// use highwater_tracking::{ExportFormat, Tracker, export, module};
///
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(AddressOnlyMemory::new()), config));
/// let tracker = Tracker::new();
/// tracker.start_log(Bytes::mib(1));
/// {
///     let _scope = module("net.fc1");
///     let run = tracker.begin("matmul");
///     Allocation::new(&run.track(&pool), &Request::new(1000).with_category(Category::Output))?;
/// }
/// let mut text = Vec::new();
/// export(&tracker.take_log(), ExportFormat::Folded, &mut text)?;
/// assert_eq!(text, b"net;fc1;matmul;[output] 1024\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of the writer; for snapshots also [`ExportError::Overlap`], and for them and Chrome traces
/// [`ExportError::TooHigh`], before anything is written.
pub fn export(recording: &Recording, format: ExportFormat, out: impl Write) -> Result<u64, ExportError> {
    let mut out = Output::new(out);
    match format {
        ExportFormat::MemoryViz => memory_viz::write(recording, PickleWriter::new(), &mut out)?,
        ExportFormat::MemoryVizJson => memory_viz::write(recording, JsonWriter::new(), &mut out)?,
        ExportFormat::Chrome => chrome::write(recording, &mut out)?,
        ExportFormat::Pprof => pprof::write(recording, &mut out)?,
        ExportFormat::Folded => folded::write(recording, &mut out)?,
        ExportFormat::Svg => svg::write(recording, &mut out)?,
    }
    out.out.flush()?;
    Ok(out.bytes)
}

/// How many bytes are gathered before they are written.
const CHUNK_BYTES: usize = 1 << 16;

/// Where an export goes. What is made is gathered in a buffer, which cannot fail, and poured out when it is full.
struct Output<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Output<W> {
    const fn new(out: W) -> Self {
        Self { out, bytes: 0 }
    }

    /// Writes what was gathered if it is enough to be worth it.
    fn pour(&mut self, gathered: &mut Vec<u8>) -> io::Result<()> {
        if gathered.len() < CHUNK_BYTES { Ok(()) } else { self.pour_out(gathered) }
    }

    /// Writes what was gathered.
    fn pour_out(&mut self, gathered: &mut Vec<u8>) -> io::Result<()> {
        self.out.write_all(gathered)?;
        self.bytes += gathered.len() as u64;
        gathered.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
