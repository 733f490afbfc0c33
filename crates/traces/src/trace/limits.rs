//! Limits of external traces and of their readers' memory.

use bfc_core::{GIB, MIB};
use highwater_files::gzip;

/// Limits of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLimits {
    /// The longest line, in bytes.
    pub line_bytes: usize,
    /// Most events.
    pub events: u32,
    /// The most distinct labels. Generated labels beyond the limit become one label.
    pub labels: u32,
    /// Most comment lines.
    pub comments: u32,
    /// The most lines without an event: blank lines, comments, headers and failed requests.
    pub idle_lines: u32,
    /// The most decompressed bytes of the file.
    pub input_bytes: u64,
    /// The most bytes of memory for a reader. If eight times the decompressed bytes of the file is more, that applies.
    pub held_bytes: u64,
    /// The highest compression ratio. It does not apply to files of up to 64 MiB.
    pub ratio: u32,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self {
            line_bytes: 4096,
            events: 20_000_000,
            labels: 1 << 16,
            comments: 1 << 16,
            idle_lines: 1 << 22,
            input_bytes: 2 * GIB,
            held_bytes: 64 * MIB,
            ratio: gzip::RATIO as u32,
        }
    }
}
