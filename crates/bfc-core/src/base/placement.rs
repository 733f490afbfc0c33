//! The result types of placement policies, which accounts and errors use without depending on policies.

use crate::base::printable::printable;

/// The placement of a block by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The address of the first byte, aligned as requested.
    pub address: u64,
    /// Granted bytes: at least those requested.
    pub bytes: u64,
    /// The policy's number of the block: unique among live blocks, small, and reused after a free.
    pub slot: u32,
}

/// Inconsistent records of a policy or pool: it has a bug, its memory was overwritten, or a source broke its contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{policy}: {detail}", detail = printable(detail))]
pub struct Inconsistent {
    /// The policy's name, or `pool`.
    pub policy: &'static str,
    /// The violated rule and its position.
    pub detail: String,
}

impl Inconsistent {
    /// Fails unless `holds`. Formats the detail only on failure.
    #[inline]
    pub(crate) fn unless(
        holds: bool,
        policy: &'static str,
        rule: &str,
        detail: impl FnOnce() -> String,
    ) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self { policy, detail: format!("{rule} (but {})", detail()) }) }
    }
}

/// How many allocations followed a packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackingCounts {
    /// Steps begun.
    pub steps: u64,
    /// Allocations placed by the packing.
    pub packed: u64,
    /// Expected allocations that the packing leaves to the fallback.
    pub left: u64,
    /// Expected allocations whose place was occupied or outside of the available memory.
    pub refused: u64,
    /// Allocations that the packing did not expect.
    pub unexpected: u64,
}
