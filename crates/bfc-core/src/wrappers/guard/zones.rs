//! Where a guarded block lies in the block that the inner allocator gave: in numbers alone.

use crate::base::memory::{Block, Span};
use crate::base::units::round_up;

/// A guarded block: the user's bytes, and what lies before and after them in the inner block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Zones {
    /// The inner allocator's block.
    pub(super) inner: Block,
    /// Bytes before the user's.
    front: u64,
    /// The user's bytes.
    bytes: u64,
}

impl Zones {
    /// How many bytes lie before the user's, and how many are needed in all: whole alignments before, so that the user's
    /// address is aligned if the inner one is, and at least `zone` after. `None` if that leaves the address space. The
    /// alignment is a power of two.
    pub(super) fn plan(bytes: u64, alignment: u64, zone: u64) -> Option<(u64, u64)> {
        let front = round_up(zone, alignment)?;
        let total = front.checked_add(bytes)?.checked_add(zone)?;
        Some((front, total))
    }

    /// The user's `bytes` bytes, `front` bytes into `inner`, which [`plan`](Self::plan) has sized.
    pub(super) const fn new(inner: Block, front: u64, bytes: u64) -> Self {
        Self { inner, front, bytes }
    }

    /// What the user may use.
    pub(super) const fn user(&self) -> Span {
        Span { address: self.inner.address + self.front, bytes: self.bytes }
    }

    /// What lies before it.
    pub(super) const fn before(&self) -> Span {
        Span { address: self.inner.address, bytes: self.front }
    }

    /// What lies after it, to the end of the inner block: what that allocator granted beyond its request is guarded too.
    pub(super) const fn after(&self) -> Span {
        let start = self.front + self.bytes;
        Span { address: self.inner.address + start, bytes: self.inner.bytes - start }
    }

    /// Bytes of the inner block that are not the user's.
    pub(super) const fn overhead(&self) -> u64 {
        self.inner.bytes - self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_bytes_are_aligned_and_surrounded_by_guards() {
        for (bytes, alignment, zone) in
            [(1, 1, 64), (1000, 64, 64), (100, 4096, 64), (7, 256, 100), (5, 8, 0)]
        {
            let (front, total) = Zones::plan(bytes, alignment, zone).unwrap();
            let inner = Block { address: 1 << 20, bytes: total + 24, ..Block::EMPTY };
            let zones = Zones::new(inner, front, bytes);
            assert_eq!(zones.user().address % alignment, 0);
            assert_eq!(zones.before().end(), Some(zones.user().address));
            assert_eq!(zones.user().end(), Some(zones.after().address));
            assert_eq!(zones.after().end(), inner.span().end());
            assert!(zones.before().bytes >= zone && zones.after().bytes >= zone);
            assert_eq!(zones.overhead(), zones.before().bytes + zones.after().bytes);
        }
    }

    #[test]
    fn sizes_that_leave_the_address_space_have_no_plan() {
        assert_eq!(Zones::plan(u64::MAX - 100, 64, 64), None);
        assert_eq!(Zones::plan(1, 1 << 63, u64::MAX), None);
        assert_eq!(Zones::plan(1 << 63, 1 << 63, 64), None);
    }
}
