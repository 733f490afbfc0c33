//! Size classes: finer than bins, so that a class seldom holds more than a few free chunks.
//!
//! Up to 128 granules (32 KiB) every size is a class of its own; above, each power of two is divided into 64 classes of
//! equal width. Source of the division: Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for
//! real-time systems", 2004, with its first level folded into the numbering.

use super::super::chunk::GRANULE;

/// The binary logarithm of the classes that a power of two is divided into. With 6, the classes of one power of two
/// share one word of the bitmap.
const DIVISION: u32 = 6;

/// Classes that share one word of the bitmap.
pub(super) const PER_WORD: usize = 1 << DIVISION;

/// How many classes there are: enough for every size below 2^64.
pub(crate) const CLASS_COUNT: usize = class_of(u64::MAX) + 1;

/// How many words of the bitmap there are.
pub(super) const WORD_COUNT: usize = CLASS_COUNT / PER_WORD;

// One word more says which words are not empty.
const _: () = assert!(WORD_COUNT <= 64 && CLASS_COUNT.is_multiple_of(PER_WORD));

/// The class of chunks of `bytes` bytes. Larger chunks never have a lower class.
#[inline]
pub(crate) const fn class_of(bytes: u64) -> usize {
    let granules = bytes / GRANULE;
    // The leading bit decides how many trailing bits do not matter; the rest, leading bit included, counts on.
    let ignored = (granules | PER_WORD as u64).ilog2() - DIVISION;
    ((ignored as usize) << DIVISION) + (granules >> ignored) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_have_a_class_each_and_larger_ones_share_one_with_at_most_a_64th_more() {
        for granules in 1..128 {
            assert_eq!(class_of(granules * GRANULE), granules as usize);
        }
        assert_eq!(class_of(128 * GRANULE), 128);
        assert_eq!(class_of(129 * GRANULE), 128);
        assert_eq!(class_of(130 * GRANULE), 129);
        assert_eq!(class_of(255 * GRANULE), 191);
        assert_eq!(class_of(256 * GRANULE), 192);
        for bytes in [1 << 20, 1 << 30, 1 << 63] {
            assert_eq!(class_of(bytes), class_of(bytes + bytes / 64 - GRANULE));
            assert_eq!(class_of(bytes) + 1, class_of(bytes + bytes / 64));
            assert_eq!(class_of(bytes), class_of(bytes - GRANULE) + 1);
        }
        assert_eq!(class_of(u64::MAX), CLASS_COUNT - 1);
    }
}
