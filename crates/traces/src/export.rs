//! Exports recordings to the formats of other tools, one row of a list each.
//!
//! [`Trace::read`](crate::Trace::read) reads both forms of snapshots back.
//!
//! Snapshots and traces are written in pieces. Besides the recording, an export needs 64 KiB of buffer and a few bytes
//! per event. The other formats are small.

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

use highwater_tracking::Recording;
use json_writer::JsonWriter;
use pickle_writer::PickleWriter;

/// Writes a recording in one format.
type WriteExport = fn(&Recording, &mut Output<&mut dyn Write>) -> Result<(), ExportError>;

/// A row of the list: name, help and writer of a format.
struct Row {
    name: &'static str,
    about: &'static str,
    is_text: bool,
    write: WriteExport,
}

impl Row {
    const fn text(name: &'static str, about: &'static str, write: WriteExport) -> Self {
        Self { name, about, is_text: true, write }
    }

    const fn binary(name: &'static str, about: &'static str, write: WriteExport) -> Self {
        Self { name, about, is_text: false, write }
    }
}

macro_rules! formats {
    ($($(#[$meta:meta])* $format:ident: $row:expr;)*) => {
        /// An export format of a [`Recording`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ExportFormat {
            $($(#[$meta])* $format,)*
        }

        const ROWS: &[Row] = &[$($row),*];

        impl ExportFormat {
            /// All formats.
            pub const ALL: [Self; ROWS.len()] = [$(Self::$format),*];
        }
    };
}

// The list. The command line, its help and the tests follow from it.
formats! {
    /// PyTorch's snapshot for its memory viewer, as a pickle of protocol 2: every block of each pool over time.
    MemoryViz: Row::binary(
        "memory-viz",
        "A snapshot for PyTorch's memory viewer, as a pickle",
        |recording, out| memory_viz::write(recording, PickleWriter::new(), out),
    );

    /// The same snapshot as JSON, for programs.
    MemoryVizJson: Row::text(
        "memory-viz-json",
        "A snapshot for PyTorch's memory viewer, as JSON",
        |recording, out| memory_viz::write(recording, JsonWriter::new(), out),
    );

    /// A trace in Chrome's format, as JSON: ops over time with their peaks, and live bytes by category. Opens in Perfetto.
    Chrome: Row::text("chrome", "A trace for Perfetto and chrome://tracing", |recording, out| {
        chrome::write(recording, out)
    });

    /// The holders at the peak by owner and category, as a compressed `profile.proto` for pprof and speedscope.
    Pprof: Row::binary("pprof", "What was live at the peak, for pprof and speedscope", |recording, out| {
        pprof::write(recording, out)
    });

    /// The holders at the peak, one line of text per stack, for flame graphs.
    Folded: Row::text("folded", "What was live at the peak, for flame graphs", |recording, out| {
        folded::write(recording, out)
    });

    /// Live bytes by category over time, as an SVG image.
    Svg: Row::text("svg", "A chart of live bytes by category over time", |recording, out| {
        svg::write(recording, out)
    });
}

impl ExportFormat {
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the format's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns a description of one line, for help texts.
    #[must_use]
    pub const fn about(self) -> &'static str {
        self.row().about
    }

    /// Returns the format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns whether the format is text that a terminal can show.
    #[must_use]
    pub const fn is_text(self) -> bool {
        self.row().is_text
    }
}

impl fmt::Display for ExportFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The reason why an export failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Two blocks of a pool overlap at the end, so there is no map of the pool.
    #[error("blocks {first} and {second} are both live at the end at address {address:#x}")]
    Overlap {
        /// The index of one block.
        first: u32,
        /// The index of the other.
        second: u32,
        /// The address of the second block.
        address: u64,
    },
    /// A block or a region exceeds the integer range of JavaScript.
    #[error("{bytes} bytes at address {address:#x} exceed 2^53, the limit of viewers")]
    TooHigh {
        /// Its address.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
    },
}

bfc_core::debug_as_message!(ExportError);

/// Writes a recording for another tool, and returns the number of bytes.
///
/// Pools become devices of PyTorch's snapshots, in the order of [`Recording::pools`]. A block has its last category.
/// Its stack consists of the names of its owner and of the modules above.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request};
/// use highwater_traces::{ExportFormat, export};
/// use highwater_tracking::{Tracker, module};
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
/// Errors of the writer. Snapshots may also fail with [`ExportError::Overlap`]. Snapshots and Chrome traces may fail
/// with [`ExportError::TooHigh`]. These two occur before anything is written.
pub fn export(recording: &Recording, format: ExportFormat, mut out: impl Write) -> Result<u64, ExportError> {
    let mut out = Output::<&mut dyn Write>::new(&mut out);
    (format.row().write)(recording, &mut out)?;
    out.out.flush()?;
    Ok(out.bytes)
}

/// The size of the output buffer in bytes.
const CHUNK_BYTES: usize = 1 << 16;

/// A buffered output. Writing into the buffer cannot fail; a full buffer is flushed.
struct Output<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Output<W> {
    const fn new(out: W) -> Self {
        Self { out, bytes: 0 }
    }

    /// Flushes the buffer if it is full.
    fn flush_if_full(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        if buffer.len() < CHUNK_BYTES { Ok(()) } else { self.flush(buffer) }
    }

    /// Flushes the buffer.
    fn flush(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.out.write_all(buffer)?;
        self.bytes += buffer.len() as u64;
        buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
