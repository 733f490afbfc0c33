//! The zones of a guarded block in its inner block, as numbers.

use crate::base::memory::{Block, Span};
use crate::base::units::round_up;

/// A guarded block: the user's bytes, and the zones before and after them in the inner block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Zones {
    /// The inner block.
    pub(super) inner: Block,
    /// Bytes before the user's.
    front: u64,
    /// The user's bytes.
    bytes: u64,
}

impl Zones {
    /// Returns the bytes before the user's and the total. The front is a multiple of the alignment, a power of two, so
    /// that an aligned inner block gives an aligned user address. At least `zone` bytes follow. `None` if the total
    /// exceeds the address space.
    pub(super) fn measure(bytes: u64, alignment: u64, zone: u64) -> Option<(u64, u64)> {
        let front = round_up(zone, alignment)?;
        let total = front.checked_add(bytes)?.checked_add(zone)?;
        Some((front, total))
    }

    /// Creates the zones of `bytes` user bytes, `front` bytes into `inner`, which [`measure`](Self::measure) has sized.
    pub(super) const fn new(inner: Block, front: u64, bytes: u64) -> Self {
        Self { inner, front, bytes }
    }

    /// Returns the user's span.
    pub(super) const fn user(&self) -> Span {
        Span { address: self.inner.address + self.front, bytes: self.bytes }
    }

    /// Returns the zone before it.
    pub(super) const fn before(&self) -> Span {
        Span { address: self.inner.address, bytes: self.front }
    }

    /// Returns the zone after it, up to the end of the inner block, including its rounding.
    pub(super) const fn after(&self) -> Span {
        let start = self.front + self.bytes;
        Span { address: self.inner.address + start, bytes: self.inner.bytes - start }
    }

    /// Returns the bytes of the inner block outside of the user's.
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
            let (front, total) = Zones::measure(bytes, alignment, zone).unwrap();
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
    fn sizes_that_leave_the_address_space_have_no_zones() {
        assert_eq!(Zones::measure(u64::MAX - 100, 64, 64), None);
        assert_eq!(Zones::measure(1, 1 << 63, u64::MAX), None);
        assert_eq!(Zones::measure(1 << 63, 1 << 63, 64), None);
    }
}
