//! The sizes of PyTorch's blocks.
//!
//! PyTorch rounds a request, takes the start of a free block, and splits off the rest if that is large enough. A free
//! block extends to the next block in use or to the end of its region, so the gap behind an address is the size of the
//! free block that was there.
//!
//! Source: the documentation of `PYTORCH_CUDA_ALLOC_CONF` in "CUDA semantics".

use bfc_core::{KIB, MIB};

/// The smallest block, and the unit of sizes.
pub(super) const UNIT: u64 = 512;

/// The largest small request. A rest of at most so many bytes stays with a large block.
const SMALL: u64 = MIB;

/// The size of a segment for small requests.
pub(super) const SMALL_SEGMENT: u64 = 2048 * KIB;

/// The number of ranges with divisions of their own: up to 1 MiB, 2 MiB, ...
const RANGES: usize = 16;

/// The settings that decide the sizes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// The steps between two powers of two, by the power of two of the request from 1 MiB on; 0 without rounding.
    pub(super) divisions: [u64; RANGES],
    /// A block of at least this size is never split.
    pub(super) max_split_size: u64,
}

impl Default for Rounding {
    fn default() -> Self {
        Self { divisions: [0; RANGES], max_split_size: u64::MAX }
    }
}

impl Rounding {
    /// Returns the rounded size of a request.
    pub(crate) fn round(&self, bytes: u64) -> u64 {
        if bytes < UNIT {
            return UNIT;
        }
        let range = bytes.ilog2().saturating_sub(MIB.ilog2()) as usize;
        let divisions = self.divisions[range.min(RANGES - 1)];
        if divisions > 1 && bytes > UNIT.saturating_mul(divisions) {
            let floor = 1 << bytes.ilog2();
            let step = (floor / divisions).max(1);
            return bytes.checked_next_multiple_of(step).unwrap_or(bytes);
        }
        bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes)
    }

    /// Returns whether a free block is split after its first `rounded` bytes.
    pub(super) const fn splits(&self, region: Kind, rounded: u64, rest: u64) -> bool {
        if region.is_small || region.is_expandable {
            rest >= UNIT
        } else {
            rounded < self.max_split_size && rest > SMALL
        }
    }

    /// Returns the size of the block of a request in a free block of `gap` bytes.
    pub(super) fn granted(&self, region: Kind, requested: u64, gap: u64) -> u64 {
        let rounded = self.round(requested);
        match gap.checked_sub(rounded) {
            Some(rest) if self.splits(region, rounded, rest) => rounded,
            Some(_) => gap,
            // The file contradicts the rounding, so the block has at least its request.
            None => gap.max(requested),
        }
    }
}

/// The properties of a region that decide how its blocks are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) is_small: bool,
    pub(super) is_expandable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_to_units_or_to_divisions_of_powers_of_two() {
        let plain = Rounding::default();
        assert_eq!([1, 511, 512, 513, 1000].map(|bytes| plain.round(bytes)), [512, 512, 512, 1024, 1024]);
        // The example of the documentation: 1200 with four divisions becomes 1280, if it is large enough.
        let four = Rounding { divisions: [4; RANGES], ..plain };
        assert_eq!(four.round(1200), 1536, "small requests keep the unit");
        assert_eq!(four.round(1200 * KIB), 1280 * KIB);
        assert_eq!(four.round(1024 * KIB), 1024 * KIB);
        assert_eq!(four.round(1900 * KIB), 2048 * KIB);
        let mut large_only = plain;
        large_only.divisions[1] = 2;
        assert_eq!(large_only.round(1100 * KIB), 1100 * KIB);
        assert_eq!(large_only.round(2100 * KIB), 3072 * KIB);
    }

    #[test]
    fn a_large_block_keeps_a_small_rest() {
        let plain = Rounding::default();
        let (large, small) = (Kind::default(), Kind { is_small: true, ..Kind::default() });
        let expandable = Kind { is_expandable: true, ..Kind::default() };
        assert_eq!(plain.granted(large, 11 * MIB, 12 * MIB), 12 * MIB);
        assert_eq!(plain.granted(large, 10 * MIB, 12 * MIB), 10 * MIB);
        assert_eq!(plain.granted(expandable, 11 * MIB, 12 * MIB), 11 * MIB);
        assert_eq!(plain.granted(small, 1000, 4096), 1024);
        assert_eq!(plain.granted(small, 1000, 1000), 1000, "a file that contradicts the rounding");
        let whole = Rounding { max_split_size: 8 * MIB, ..plain };
        assert_eq!(whole.granted(large, 10 * MIB, 40 * MIB), 40 * MIB);
    }
}
