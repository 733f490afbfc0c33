//! `.hwm` files: a recording on disk.
//!
//! A file is eight bytes of magic (`89 48 57 4d 0d 0a 1a 0a`: not text, and damaged by whatever turns line ends round),
//! the version as two bytes, and blocks. A block is
//!
//! | bytes | what |
//! |---|---|
//! | 1 | its kind: `F`acts, `E`vents, `S`ummary; kinds in small letters may be skipped by those who do not know them |
//! | 4 | the length of its contents |
//! | 4 | CRC-32 of the five bytes before and of the contents |
//! | … | contents |
//!
//! with numbers in little endian. Facts come first and the summary last; both are JSON objects
//! ([`RunFacts`], [`RunSummary`]). Between them stand blocks of events. Each event is one byte of kind and flags, and
//! numbers of seven bits a byte, lowest first:
//!
//! | kind | event | fields |
//! |---|---|---|
//! | 0 | alloc | time, [number], address, [owner], category (1 byte), bytes asked for, [bytes granted above that] |
//! | 1 | free | time, number |
//! | 2 | retag | time, number, [owner], category (1 byte) |
//! | 3 | enter | time, [owner] |
//! | 4 | leave | time, high-water mark, bytes outliving |
//! | 5 | failed | time, [owner], category (1 byte), bytes asked for |
//! | 6 | region | time, address, bytes |
//! | 7 | mark | time, text |
//! | 8 | lost | events lost before this one |
//! | 9 | switch | thread, pool, stream of the events that follow |
//! | 10 | owner | number, number of the owner above, phase (1 byte: none, forward, backward, optimizer), name |
//! | 11 | pool | number, kind of memory, name |
//! | 12 | report | of the failure just before, a JSON object ([`OomReport`](bfc_core::OomReport)) |
//!
//! A time is nanoseconds since the last event; an alloc's number and address are differences from those of the last
//! alloc, and so is the number in a free and a retag, counted backwards; differences are in zigzag. Fields in brackets
//! are left out under flags: `10` the owner is the last one, `20` the number follows the last one, `80` nothing more was
//! granted; under `40` the address counts in 64 bytes, and a region's `10` says that it was taken. Texts are a length and
//! UTF-8. At the start of each block everything counts from zero. Owners and pools are numbered from 0 up, owner 0 being
//! the root, and named before they are used.

mod blocks;
mod read;
mod write;

#[cfg(doc)]
use super::RunSummary;
#[cfg(doc)]
use crate::report::RunFacts;
pub(super) use blocks::{BlockReader, Piece};
pub use read::{HwmError, HwmProblem};
pub(super) use write::HwmWriter;
pub use write::Written;

/// The first bytes of every file.
pub(crate) const MAGIC: [u8; 8] = *b"\x89HWM\r\n\x1a\n";

/// What this crate writes, and the only version that it reads.
const VERSION: u16 = 1;

/// What a block holds.
mod kind {
    pub(super) const FACTS: u8 = b'F';
    pub(super) const EVENTS: u8 = b'E';
    pub(super) const SUMMARY: u8 = b'S';
}

/// The bytes of a block before its contents.
const HEAD_BYTES: usize = 9;

/// The longest contents of a block of each kind.
const fn most_bytes(kind: u8) -> u32 {
    match kind {
        // A block is closed at 64 KiB, and the last event may be a long name with all those above it.
        kind::EVENTS => 1 << 20,
        _ => 1 << 26,
    }
}

/// The five bytes that say what a block is.
fn label(kind: u8, length: u32) -> [u8; 5] {
    let [a, b, c, d] = length.to_le_bytes();
    [kind, a, b, c, d]
}

/// The checksum of a block.
fn checksum(label: [u8; 5], contents: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&label);
    hasher.update(contents);
    hasher.finalize()
}

#[cfg(test)]
mod tests;
