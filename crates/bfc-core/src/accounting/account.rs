//! The account of a live block: what is known of it beyond its place.

use crate::base::ledger::Tag;

/// The account of the live block in a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// The allocation's number, from 1 upward; 0 if the slot holds no live block.
    pub(crate) allocation: u64,
    /// Bytes requested; 0 if there is no live block.
    pub(crate) requested: u64,
    /// The tag that the block is charged to; the default if there is no live block.
    pub(crate) tag: Tag,
}
