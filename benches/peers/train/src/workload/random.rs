//! The random generator of all weights and batches.

/// splitmix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0 and below `end`.
    pub fn below(&mut self, end: usize) -> i64 {
        (self.next() % end as u64) as i64
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From -1 to 1.
    pub fn signed(&mut self) -> f64 {
        self.unit() * 2.0 - 1.0
    }
}
