//! Memory that something wrote outside of its block, as data of errors and listings.

use std::fmt;

use crate::base::ledger::Tag;
use crate::base::memory::Block;

/// How memory was misused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageKind {
    /// Something wrote before the block's first byte.
    Underrun,
    /// Something wrote after the block's last byte.
    Overrun,
    /// Something wrote to the block, or near it, after it was given back.
    UseAfterFree,
}

impl DamageKind {
    /// The fault's name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Underrun => "write before the start",
            Self::Overrun => "write past the end",
            Self::UseAfterFree => "write after the free",
        }
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes that are not as the guard left them: where, whose, and what was found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The block next to which, or in which, the damage lies; its `bytes` are those that were asked for.
    pub block: Block,
    /// What the block is or was charged to.
    pub tag: Tag,
    /// What must have happened.
    pub fault: DamageKind,
    /// Where the first damaged byte lies, counted from the block's first byte: -1 is the byte before it, `block.bytes`
    /// the byte after its last.
    pub offset: i64,
    /// How many bytes are damaged.
    pub bytes: u64,
    /// What the first damaged byte was left as.
    pub expected: u8,
    /// What it was found as.
    pub found: u8,
}

impl fmt::Display for Damage {
    /// One line, fit for an error message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, tag, fault, offset, bytes, expected, found } = self;
        write!(
            f,
            "{fault} of block {:#x} (allocation {}, {} bytes, {} of {}): byte {offset} is {found:#04x} and was left as \
             {expected:#04x}; damaged bytes: {bytes}",
            block.address,
            block.id,
            block.bytes,
            tag.category.name(),
            tag.owner,
        )
    }
}
