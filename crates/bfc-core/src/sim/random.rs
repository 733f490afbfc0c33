//! Deterministic pseudorandom numbers: SplitMix64 (Steele, Lea, Flood 2014).

/// Returns the `index`-th number of the sequence `seed`.
pub(super) const fn nth(seed: u64, index: u64) -> u64 {
    let mut bits = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A sequence, read from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random {
    seed: u64,
    index: u64,
}

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, index: 0 }
    }

    /// Returns a number below `bound`, which is not 0.
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        self.index += 1;
        nth(self.seed, self.index) % bound
    }
}
