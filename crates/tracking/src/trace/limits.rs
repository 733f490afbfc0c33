//! How much a trace from outside may contain, and how much its reader may hold.

use bfc_core::{GIB, MIB};

use crate::files::gzip;

/// How large a trace may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLimits {
    /// The longest line, in bytes.
    pub line_bytes: usize,
    /// Most events.
    pub events: u32,
    /// Most different labels. Where a reader makes the labels itself, those beyond the limit become one.
    pub labels: u32,
    /// Most comment lines.
    pub comments: u32,
    /// Most lines that tell of no event: blank ones, comments, headers, requests that a log says were refused.
    pub idle_lines: u32,
    /// Most bytes of the file, once decompressed.
    pub input_bytes: u64,
    /// Most bytes of memory that a reader may hold, or eight times the decompressed bytes of the file if that is more.
    pub held_bytes: u64,
    /// How many times longer than its compressed bytes a file may be, once decompressed; a file of up to 64 MiB may be of
    /// any ratio.
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
