//! The sums of a depthwise convolution over a padded plane, with stride 1.
//!
//! Each block of outputs stays in registers while all taps are added. A block covers parts of several rows, so that several
//! additions run at a time.

use super::Stored;
use crate::cpu::simd::Loop;
use crate::families::matmul::cpu::Gemm;

/// The number of rows of a block.
const ROWS: usize = 4;

/// `out[y][x] = Σ filter[tap] · padded[y][x + offset of the tap]`.
pub(super) struct Correlate<'a, T, I> {
    pub(super) padded: &'a [T],
    /// The length of a row of the padded plane.
    pub(super) stride: usize,
    /// The offsets of the taps, or only those of the first taps of each three that are adjacent.
    pub(super) offsets: &'a [usize],
    pub(super) filter: &'a [I],
    /// Whether the filter's taps have the opposite order.
    pub(super) reversed: bool,
    /// The length of a row of the output.
    pub(super) width: usize,
    pub(super) out: &'a mut [I],
}

impl<T: Gemm, I: Stored<T>> Loop for Correlate<'_, T, I> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        match self.width {
            16.. => self.of_width::<16>(),
            4..=15 => self.of_width::<4>(),
            _ => self.of_width::<1>(),
        }
    }
}

impl<T: Gemm, I: Stored<T>> Correlate<'_, T, I> {
    #[inline(always)]
    fn of_width<const LEN: usize>(&mut self) {
        if self.filter.len() == 3 * self.offsets.len() {
            self.all_rows::<LEN, 3>();
        } else {
            self.all_rows::<LEN, 1>();
        }
    }

    #[inline(always)]
    fn all_rows<const LEN: usize, const ACROSS: usize>(&mut self) {
        let rows = self.out.len() / self.width;
        let in_blocks = rows - rows % ROWS;
        for row in (0..in_blocks).step_by(ROWS) {
            self.some_rows::<LEN, ACROSS, ROWS>(row);
        }
        for row in in_blocks..rows {
            self.some_rows::<LEN, ACROSS, 1>(row);
        }
    }

    /// Computes rows in blocks of `LEN` columns. The last block overlaps with the one before it.
    #[inline(always)]
    fn some_rows<const LEN: usize, const ACROSS: usize, const COUNT: usize>(&mut self, first: usize) {
        for column in (0..self.width).step_by(LEN) {
            let column = column.min(self.width - LEN);
            let sums = self.block::<LEN, ACROSS, COUNT>(first * self.stride + column);
            for (row, sums) in (first..).zip(&sums) {
                let out = &mut self.out[row * self.width + column..][..LEN];
                out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = I::from_sum(sum));
            }
        }
    }

    /// The sums of `COUNT` rows. `start` is the place of the first sum in the padded plane.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "loops by index vectorize")]
    fn block<const LEN: usize, const ACROSS: usize, const COUNT: usize>(
        &self,
        start: usize,
    ) -> [[T; LEN]; COUNT] {
        let mut sums = [[T::ZERO; LEN]; COUNT];
        let taps = self.filter.as_chunks::<ACROSS>().0;
        for (number, &offset) in self.offsets.iter().enumerate() {
            let factors = taps[if self.reversed { taps.len() - 1 - number } else { number }];
            let mut factors = factors.map(|factor| factor.pack(I::default()));
            if self.reversed {
                factors.reverse();
            }
            let seen = &self.padded[start + offset..];
            for row in 0..COUNT {
                let seen = &seen[row * self.stride..][..LEN + ACROSS - 1];
                for across in 0..ACROSS {
                    let seen = &seen[across..across + LEN];
                    for i in 0..LEN {
                        sums[row][i] = seen[i].fused(factors[across], sums[row][i]);
                    }
                }
            }
        }
        sums
    }
}
