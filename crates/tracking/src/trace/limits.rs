//! How much a file from outside may make its reader hold.

use bfc_core::{GIB, MIB};

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

/// How many bytes a reader may hold for each byte of a file, once decompressed, whatever its limit.
const HELD_PER_BYTE: u64 = 8;

/// How many bytes a reader may hold after it read `input_bytes`, if its limit is `held_bytes`.
pub(crate) const fn held_limit(held_bytes: u64, input_bytes: u64) -> u64 {
    let of_input = input_bytes.saturating_mul(HELD_PER_BYTE);
    if held_bytes > of_input { held_bytes } else { of_input }
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
            ratio: 100,
        }
    }
}
