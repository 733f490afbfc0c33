//! Damage to guard bytes, as data of errors and listings.

use std::fmt;

use crate::base::ledger::Tag;
use crate::base::memory::Block;

/// The kind of memory misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageKind {
    /// A write before the block's first byte.
    Underrun,
    /// A write after the block's last byte.
    Overrun,
    /// A write to a block, or near it, after its free.
    UseAfterFree,
}

impl DamageKind {
    /// Returns the name of the fault for messages.
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

/// Overwritten guard bytes: their block, owner, position and contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The block in or next to which the damage lies. Its `bytes` are the requested ones.
    pub block: Block,
    /// The owner and category that the block is or was charged to.
    pub tag: Tag,
    /// The kind of misuse.
    pub fault: DamageKind,
    /// The position of the first damaged byte, relative to the block's first byte. -1 is the byte before the block,
    /// `block.bytes` the byte after it.
    pub offset: i64,
    /// The number of damaged bytes.
    pub bytes: u64,
    /// The expected value of the first damaged byte.
    pub expected: u8,
    /// The value found there.
    pub found: u8,
}

impl fmt::Display for Damage {
    /// One line for an error message.
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
