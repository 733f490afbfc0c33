//! Seeded shuffling, identical on every machine.

use highwater_tensor::{Error, Result, error::DataError};

/// The random generator SplitMix64 (Steele, Lea and Flood 2014): small, fast, and sufficient for shuffling.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound` by Lemire's multiplication (2019). Its bias is at most `bound` / 2⁶⁴.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Returns the generator of a round. It mixes both numbers, so that neighboring seeds and rounds are uncorrelated.
fn generator(seed: u64, round: u64) -> SplitMix64 {
    SplitMix64(SplitMix64(seed).next() ^ SplitMix64(!round).next().rotate_left(32))
}

/// Returns `count` uniform numbers below `bound`, determined by `seed` and `round`.
pub(super) fn numbers_below(bound: usize, count: usize, seed: u64, round: u64) -> Vec<usize> {
    let mut random = generator(seed, round);
    (0..count).map(|_| random.below(bound)).collect()
}

/// Returns a random permutation of the numbers below `count`, determined by `seed` and `round`: the Fisher-Yates
/// shuffle. Returns `None` if host memory runs out.
pub(super) fn permutation(count: usize, seed: u64, round: u64) -> Option<Vec<usize>> {
    let mut random = generator(seed, round);
    let mut order: Vec<usize> = Vec::new();
    order.try_reserve_exact(count).ok()?;
    order.extend(0..count);
    for end in (1..count).rev() {
        order.swap(end, random.below(end + 1));
    }
    Some(order)
}

/// Splits the numbers below `rows` at random into a training and a test part. The test part has the share
/// `test_fraction`, rounded.
///
/// # Errors
/// [`Error::BadArgument`] unless 0 < `test_fraction` < 1, and if the rounded share leaves a part empty.
pub(super) fn split(rows: usize, test_fraction: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
    let bad = |expected, got| Error::BadArgument { op: "split", argument: "test_fraction", expected, got };
    if !(test_fraction > 0.0 && test_fraction < 1.0) {
        return Err(bad("above 0 and below 1", test_fraction.to_string()));
    }
    let test_rows = (rows as f64 * test_fraction).round() as usize;
    if test_rows == 0 || test_rows >= rows {
        let got = format!("{test_fraction}, which takes {test_rows} of {rows} rows");
        return Err(bad("a share that leaves rows in both parts", got));
    }
    let mut test = permutation(rows, seed, 0).ok_or(DataError::NoOrder { samples: rows })?;
    let train = test.split_off(test_rows);
    Ok((train, test))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for seed 1234567 of the authors' reference code.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = SplitMix64(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64];
        assert_eq!(expected.map(|_| random.next()), expected);
    }

    #[test]
    fn every_number_comes_once() {
        for count in [0, 1, 2, 100] {
            let mut order = permutation(count, 3, 1).unwrap();
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seed_and_round_decide_the_order() {
        assert_eq!(permutation(50, 1, 2), permutation(50, 1, 2));
        assert_ne!(permutation(50, 1, 2), permutation(50, 2, 1));
        assert_ne!(permutation(50, 1, 2), permutation(50, 1, 3));
        assert_ne!(permutation(50, 1, 2), permutation(50, 2, 2));
    }

    #[test]
    fn every_order_of_three_is_about_as_frequent() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..6000 {
            *counts.entry(permutation(3, seed, 0)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Six standard deviations of a binomial count with mean 1000.
        assert!(counts.values().all(|count| (1000_i32 - count).abs() < 174), "{counts:?}");
    }
}
