//! How much a file from outside may make its reader hold.

use bfc_core::GIB;

/// How large a trace may be. The defaults take hours of training; a hostile file within them holds some GiB of memory.
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
    /// Most bytes of memory, roughly, that the objects of a pickle may take.
    pub held_bytes: u64,
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
            held_bytes: 2 * GIB,
        }
    }
}
