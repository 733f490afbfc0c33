//! The account of a live block: its allocation number, requested bytes and tag.

use crate::base::ledger::Tag;

/// The account of the live block in a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// The allocation number, from 1 on; 0 if the slot has no live block.
    pub(crate) allocation: u64,
    /// The requested bytes; 0 if there is no live block.
    pub(crate) requested: u64,
    /// The owner and category to charge; the default if there is no live block.
    pub(crate) tag: Tag,
}
