//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011.
//!
//! A block of random bits is a pure function of a key and a counter. So any thread and any device can compute any part of a
//! stream.

use std::array;

use crate::families::RandomKey;

/// The number of rounds that the authors recommend.
const ROUNDS: usize = 10;

/// The multipliers of counter words 0 and 2.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// The increments of the key per round: the golden ratio and √3 - 1, as 32-bit fractions.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Generates 128 random bits for each of `L` counters. Words are stored lane by lane, so that the loop vectorizes.
#[inline(always)]
fn philox4x32<const L: usize>(mut counter: [[u32; L]; 4], mut key: [u32; 2]) -> [[u32; L]; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let before = counter;
        for i in 0..L {
            let [low, high] = low_high(u64::from(before[0][i]) * u64::from(MULTIPLIERS[0]));
            let [other_low, other_high] = low_high(u64::from(before[2][i]) * u64::from(MULTIPLIERS[1]));
            counter[0][i] = other_high ^ before[1][i] ^ key[0];
            counter[1][i] = other_low;
            counter[2][i] = high ^ before[3][i] ^ key[1];
            counter[3][i] = low;
        }
    }
    counter
}

/// Generates `L` blocks, starting at number `first`. The seed is the key; the block's number and the sequence are the
/// counter.
#[inline(always)]
pub(crate) fn blocks<const L: usize>(key: RandomKey, first: u64) -> [[u32; L]; 4] {
    let numbers: [[u32; 2]; L] = array::from_fn(|i| low_high(first.wrapping_add(i as u64)));
    let [c, d] = low_high(key.sequence);
    philox4x32(
        [numbers.map(|[low, _]| low), numbers.map(|[_, high]| high), [c; L], [d; L]],
        low_high(key.seed),
    )
}

/// The low and the high 32 bits.
const fn low_high(wide: u64) -> [u32; 2] {
    [wide as u32, (wide >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_reproduces_the_published_vectors() {
        // From the test vectors of the authors' Random123 library, `kat_vectors`.
        let ones = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter.map(|word| [word]), key), expected.map(|word| [word]));
        }
    }

    #[test]
    fn vectorized_blocks_equal_single_blocks() {
        let key = RandomKey { seed: 12_345_678_901_234, sequence: 98_765_432_109_876 };
        for first in [0, 7, u64::from(u32::MAX) - 5] {
            let many = blocks::<16>(key, first);
            for i in 0..16 {
                assert_eq!(many.map(|words| [words[i]]), blocks::<1>(key, first + i as u64));
            }
        }
    }

    #[test]
    fn seed_sequence_and_block_each_change_every_word() {
        let key = RandomKey { seed: 1, sequence: 2 };
        let block = |key, number| blocks::<1>(key, number);
        let base = block(key, 3);
        for other in [
            block(RandomKey { seed: 1 << 40, ..key }, 3),
            block(RandomKey { sequence: 1 << 40, ..key }, 3),
            block(key, 1 << 40),
        ] {
            assert!(base.iter().zip(other).all(|(&a, b)| a != b));
        }
    }
}
