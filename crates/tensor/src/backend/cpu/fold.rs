//! Pairwise reduction of many elements to one, in an order that depends only on their number.
//!
//! Sixteen elements are reduced to a partial result, sixteen partial results to the next level, and so on. So the rounding
//! error of a sum grows with the logarithm of its length, for one more addition per sixteen elements.

mod ops;
mod scalar;

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use super::number::Number;
use super::simd::{self, Loop};

pub(super) use ops::{FastMax, Max, Min, Product, ReduceOp, Sum, SumMagnitudes, SumSquares};

/// The number of elements per accumulator before its result moves to the next level.
pub(super) const RADIX: usize = 16;

/// The number of levels. The top level accumulates all results from RADIX⁴ elements on, which are few in practice.
const LEVELS: usize = 5;

/// The number of vector lanes. They span several registers, to hide the latency of additions.
const LANES: usize = 32;

/// The number of elements in a block of a [`BlockReducer`].
pub(super) const BLOCK: usize = RADIX * LANES;

/// The largest number of elements that need only one level.
pub(super) const SHORT: usize = RADIX * BLOCK;

/// Reduces rows of up to `W` elements, column by column.
#[derive(Debug)]
pub(super) struct Cascade<T, const W: usize> {
    /// Level 0 holds the rows since the last multiple of RADIX, level 1 those since the last multiple of RADIX², and so on.
    levels: [[T; W]; LEVELS],
    /// The number of columns in use.
    width: usize,
    rows: usize,
    /// The highest level in use.
    top: usize,
}

impl<T: Number, const W: usize> Cascade<T, W> {
    /// Creates an empty cascade for rows of `width` elements, at most `W`.
    pub(super) fn new<F: ReduceOp<T>>(width: usize) -> Self {
        Self { levels: [[F::IDENTITY; W]; LEVELS], width: width.min(W), rows: 0, top: 0 }
    }

    /// Adds a row of elements.
    pub(super) fn push<F: ReduceOp<T>>(&mut self, row: &[T]) {
        fold_row::<T, F>(&mut self.levels[0][..self.width], row);
        self.count::<F>();
    }

    /// Adds a row of partial results.
    pub(super) fn push_folded<F: ReduceOp<T>>(&mut self, row: &[T; W]) {
        fold_into::<T, F>(&mut self.levels[0][..self.width], row);
        self.count::<F>();
    }

    /// Counts a row, and moves complete results to the next level.
    fn count<F: ReduceOp<T>>(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(RADIX) {
            self.carry::<F>();
        }
    }

    /// Moves complete results to the next level. Not inlined, because calls are rare and in many places.
    #[inline(never)]
    fn carry<F: ReduceOp<T>>(&mut self) {
        let (mut rows, mut level) = (self.rows, 0);
        while rows.is_multiple_of(RADIX) && level + 1 < LEVELS {
            self.raise::<F>(level);
            self.levels[level][..self.width].fill(F::IDENTITY);
            rows /= RADIX;
            level += 1;
        }
    }

    /// Returns the results of the columns.
    pub(super) fn finish<F: ReduceOp<T>>(&mut self) -> &[T] {
        for level in 0..self.top {
            self.raise::<F>(level);
        }
        &self.levels[self.top][..self.width]
    }

    /// Combines a level with the next level, which holds older results.
    fn raise<F: ReduceOp<T>>(&mut self, level: usize) {
        let (below, above) = self.levels.split_at_mut(level + 1);
        fold_into::<T, F>(&mut above[0][..self.width], &below[level]);
        self.top = self.top.max(level + 1);
    }
}

/// `older[i] = fold(older[i], element(newer[i]))`. Compiled once for all widths of cascades.
fn fold_row<T: Number, F: ReduceOp<T>>(older: &mut [T], newer: &[T]) {
    simd::zip(older, newer, |older, newer| *older = F::fold(*older, F::element(newer)));
}

/// `older[i] = fold(older[i], newer[i])`.
pub(super) fn fold_into<T: Number, F: ReduceOp<T>>(older: &mut [T], newer: &[T]) {
    older.iter_mut().zip(newer).for_each(|(older, &newer)| *older = F::fold(*older, newer));
}

/// Reduces a sequence of blocks. Each has [`BLOCK`] elements; the last may have fewer.
#[derive(Debug)]
pub(super) struct BlockReducer<T>(Cascade<T, LANES>);

impl<T: Number> BlockReducer<T> {
    /// Creates a reducer without blocks.
    pub(super) fn new<F: ReduceOp<T>>() -> Self {
        Self(Cascade::new::<F>(LANES))
    }

    /// Adds the next block.
    pub(super) fn push<F: ReduceOp<T>>(&mut self, block: &[T]) {
        let block =
            Block::<T, F, _, 1> { parts: [block], f: |[value]: [T; 1]| F::element(value), fold: PhantomData };
        self.0.push_folded::<F>(&simd::run(block));
    }

    /// Returns the result.
    pub(super) fn finish<F: ReduceOp<T>>(self) -> T {
        finish::<T, F>(self.0)
    }
}

/// Reduces a block of `N` inputs of equal length to `W` lanes.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "by index the lanes stay in registers: twice as fast as by iterators"
)]
fn lanes<T: Number, F: ReduceOp<T>, const N: usize, const W: usize>(
    block: [&[T]; N],
    f: impl Fn([T; N]) -> T,
) -> [T; W] {
    let mut lanes = [F::IDENTITY; W];
    if T::ORDERLESS {
        lanes[0] = in_any_order::<T, F, N>(block, f);
        return lanes;
    }
    // Loops and not `map`, whose closures would be compiled for each operation.
    let mut rows = [block[0].as_chunks::<W>().0; N];
    let mut rests = [block[0].as_chunks::<W>().1; N];
    for part in 1..N {
        (rows[part], rests[part]) = block[part].as_chunks::<W>();
    }
    for number in 0..rows[0].len() {
        let mut row = [&rows[0][number]; N];
        for part in 1..N {
            row[part] = &rows[part][number];
        }
        for i in 0..W {
            let mut element = [row[0][i]; N];
            for part in 1..N {
                element[part] = row[part][i];
            }
            lanes[i] = F::fold(lanes[i], f(element));
        }
    }
    if rests[0].is_empty() {
        return lanes;
    }
    // Padded to a full row, so that the lanes stay in registers.
    let mut last = [F::IDENTITY; W];
    for i in 0..rests[0].len() {
        let mut element = [rests[0][i]; N];
        for part in 1..N {
            element[part] = rests[part][i];
        }
        last[i] = f(element);
    }
    for i in 0..W {
        lanes[i] = F::fold(lanes[i], last[i]);
    }
    lanes
}

/// Reduces the lanes to one value.
#[inline(always)]
fn reduce_lanes<T: Number, F: ReduceOp<T>, const W: usize>(mut lanes: [T; W]) -> T {
    let mut width = W;
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        fold_into::<T, F>(low, high);
    }
    lanes[0]
}

/// Reduces elements whose order does not matter (integers) with a simple loop, which is as fast and a tenth of the code.
#[inline(always)]
fn in_any_order<T: Number, F: ReduceOp<T>, const N: usize>(parts: [&[T]; N], f: impl Fn([T; N]) -> T) -> T {
    let parts = slice_parts(parts, 0..parts[0].len());
    let mut folded = F::IDENTITY;
    for (i, &first) in parts[0].iter().enumerate() {
        let mut element = [first; N];
        for part in 1..N {
            element[part] = parts[part][i];
        }
        folded = F::fold(folded, f(element));
    }
    folded
}

/// Slices each input by the same range.
#[inline]
fn slice_parts<T, const N: usize>(mut parts: [&[T]; N], range: Range<usize>) -> [&[T]; N] {
    // Not with `map`, whose closure would be compiled for each operation.
    for part in &mut parts {
        *part = &part[range.clone()];
    }
    parts
}

/// Reduces a slice, in the order of a [`BlockReducer`].
pub(super) fn fold_slice<T: Number, F: ReduceOp<T>>(values: &[T]) -> T {
    // Reuses the loops of rows and blocks, so that no more code is compiled.
    if T::ORDERLESS {
        // Separate, so that the code below is not compiled for integers.
        return as_row::<T, F>(values);
    }
    if values.len() <= SHORT {
        return as_row::<T, F>(values);
    }
    let mut folder = BlockReducer::new::<F>();
    values.chunks(BLOCK).for_each(|block| folder.push::<F>(block));
    folder.finish::<F>()
}

/// Reduces a slice as a single row.
#[inline(always)]
fn as_row<T: Number, F: ReduceOp<T>>(values: &[T]) -> T {
    let mut out = F::IDENTITY;
    fold_rows::<T, F>(slice::from_mut(&mut out), values, 0, values.len());
    out
}

/// Reduces rows of `len` elements with stride `step`, each in the order of [`fold_slice`].
pub(super) fn fold_rows<T: Number, F: ReduceOp<T>>(out: &mut [T], data: &[T], step: usize, len: usize) {
    // Integers use a simple loop at any length.
    if T::ORDERLESS || len <= SHORT {
        return simd::run(ShortRows::<T, F> { out, data, step, len, fold: PhantomData });
    }
    let rows = (0..).map(|row| &data[row * step..row * step + len]);
    out.iter_mut().zip(rows).for_each(|(out, row)| *out = fold_slice::<T, F>(row));
}

/// The largest number of rows that a [`Cascade`] accumulates on its first level.
pub(super) const FEW: usize = RADIX - 1;

/// Reduces at most [`FEW`] rows of the length of `out`, column by column, in the order of a [`Cascade`].
pub(super) fn fold_columns<T: Number, F: ReduceOp<T>>(out: &mut [T], rows: &[T]) {
    simd::run(ColumnFold::<T, F> { out, rows, fold: PhantomData });
}

struct ColumnFold<'a, T, F> {
    out: &'a mut [T],
    rows: &'a [T],
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>> Loop for ColumnFold<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        let Self { out, rows, .. } = self;
        out.fill(F::IDENTITY);
        for row in rows.chunks_exact(out.len()) {
            for (out, &element) in out.iter_mut().zip(row) {
                *out = F::fold(*out, F::element(element));
            }
        }
    }
}

/// A reduction of rows of at most [`SHORT`] elements.
struct ShortRows<'a, T, F> {
    out: &'a mut [T],
    data: &'a [T],
    step: usize,
    len: usize,
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>> Loop for ShortRows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
        for (row, out) in self.out.iter_mut().enumerate() {
            let row = &self.data[row * self.step..][..self.len];
            *out = short::<T, F, 1, WIDE>([row], |[value]| F::element(value));
        }
    }
}

/// Reduces `f(values[i])`.
pub(super) fn fold_mapped<T: Number, F: ReduceOp<T>>(values: &[T], f: impl Fn(T) -> T) -> T {
    fold_parts::<T, F, 1>([values], |[value]| f(value))
}

/// Reduces `f(a[i], b[i])`.
pub(super) fn fold_zipped<T: Number, F: ReduceOp<T>>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> T {
    fold_parts::<T, F, 2>([a, &b[..a.len()]], |[a, b]| f(a, b))
}

fn fold_parts<T: Number, F: ReduceOp<T>, const N: usize>(parts: [&[T]; N], f: impl Fn([T; N]) -> T) -> T {
    let len = parts[0].len();
    if len <= SHORT {
        return simd::run(Short::<T, F, _, N> { parts, f, fold: PhantomData });
    }
    fold_long::<T, F, N>(parts, f)
}

/// Like [`fold_mapped`], for more than [`SHORT`] elements only.
pub(super) fn fold_mapped_long<T: Number, F: ReduceOp<T>>(values: &[T], f: impl Fn(T) -> T) -> T {
    fold_long::<T, F, 1>([values], |[value]| f(value))
}

fn fold_long<T: Number, F: ReduceOp<T>, const N: usize>(parts: [&[T]; N], f: impl Fn([T; N]) -> T) -> T {
    let len = parts[0].len();
    let mut cascade = Cascade::<T, LANES>::new::<F>(LANES);
    // `&f` has another type than the `f` of the short case. A closure type with a single call site is always inlined.
    for start in (0..len).step_by(BLOCK) {
        let parts = slice_parts(parts, start..len.min(start + BLOCK));
        cascade.push_folded::<F>(&simd::run(Block::<T, F, _, N> { parts, f: &f, fold: PhantomData }));
    }
    finish::<T, F>(cascade)
}

/// Reduces `f` of at most [`SHORT`] elements, inlined into code that is compiled for the widest instruction set.
#[inline(always)]
pub(super) fn short<T: Number, F: ReduceOp<T>, const N: usize, const WIDE: bool>(
    parts: [&[T]; N],
    f: impl Fn([T; N]) -> T,
) -> T {
    if !WIDE {
        return scalar::short::<T, F, N>(parts, &f);
    }
    if T::ORDERLESS {
        return in_any_order::<T, F, N>(parts, f);
    }
    let len = parts[0].len();
    let mut total = lanes::<T, F, N, LANES>(slice_parts(parts, 0..len.min(BLOCK)), &f);
    let mut start = BLOCK;
    while start < len {
        let end = len.min(start + BLOCK);
        fold_into::<T, F>(&mut total, &lanes::<T, F, N, LANES>(slice_parts(parts, start..end), &f));
        start = end;
    }
    reduce_lanes::<T, F, LANES>(total)
}

/// A reduction of at most [`SHORT`] elements.
struct Short<'a, T, F, M, const N: usize> {
    parts: [&'a [T]; N],
    f: M,
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>, M: Fn([T; N]) -> T, const N: usize> Loop for Short<'_, T, F, M, N> {
    type Output = T;

    #[inline(always)]
    fn run<const WIDE: bool>(self) -> T {
        short::<T, F, N, WIDE>(self.parts, self.f)
    }
}

/// A reduction of one block to lanes.
struct Block<'a, T, F, M, const N: usize> {
    parts: [&'a [T]; N],
    f: M,
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>, M: Fn([T; N]) -> T, const N: usize> Loop for Block<'_, T, F, M, N> {
    type Output = [T; LANES];

    #[inline(always)]
    fn run<const WIDE: bool>(self) -> [T; LANES] {
        if !WIDE {
            return scalar::lanes::<T, F, N>(self.parts, &self.f);
        }
        lanes::<T, F, N, LANES>(self.parts, self.f)
    }
}

/// Reduces the lanes of a cascade to one value.
fn finish<T: Number, F: ReduceOp<T>>(mut cascade: Cascade<T, LANES>) -> T {
    let mut lanes = [F::IDENTITY; LANES];
    lanes.copy_from_slice(cascade.finish::<F>());
    reduce_lanes::<T, F, LANES>(lanes)
}

/// Sums `len` elements that `load(start, block)` writes block by block. The result equals [`fold_slice`] of all elements.
pub(super) fn sum_of<T: Number>(len: usize, load: impl Fn(usize, &mut [T])) -> T {
    let mut buffer = [T::ZERO; BLOCK];
    if len <= BLOCK {
        let block = &mut buffer[..len];
        load(0, block);
        return fold_slice::<T, Sum>(block);
    }
    let mut folder = BlockReducer::new::<Sum>();
    for start in (0..len).step_by(BLOCK) {
        let block = &mut buffer[..BLOCK.min(len - start)];
        load(start, block);
        folder.push::<Sum>(block);
    }
    folder.finish::<Sum>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of a loop's result, with the widest and the baseline instruction set.
    fn both<L: Loop<Output = f64>>(of: impl Fn() -> L) -> [u64; 2] {
        [simd::run(of()).to_bits(), simd::run_baseline(of()).to_bits()]
    }

    #[test]
    fn reductions_do_not_depend_on_the_instruction_set() {
        for len in (0..100).chain([511, 512, 513, 1100, 8191, 8192]) {
            let values: Vec<f64> = (0..len).map(|i| ((i * 7919 % 1009) as f64 - 500.0) / 509.0).collect();
            let parts = [&values[..]; 2];
            let [wide, least] =
                both(|| Short::<f64, Sum, _, 2> { parts, f: |[a, b]: [f64; 2]| a * b, fold: PhantomData });
            assert_eq!(wide, least, "the products of {len}");
            let [wide, least] = both(|| Short::<f64, Min, _, 1> {
                parts: [parts[0]],
                f: |[a]: [f64; 1]| a,
                fold: PhantomData,
            });
            assert_eq!(wide, least, "the smallest of {len}");
            let rows = |out: &mut [f64; 2], wide| {
                let (data, step) = (&values[..], len / 2);
                let rows = ShortRows::<f64, Product> { out, data, step, len: step, fold: PhantomData };
                if wide { simd::run(rows) } else { simd::run_baseline(rows) }
            };
            let (mut wide, mut least) = ([9.0; 2], [8.0; 2]);
            rows(&mut wide, true);
            rows(&mut least, false);
            assert_eq!(wide.map(f64::to_bits), least.map(f64::to_bits), "two rows of {len}");
        }
    }

    #[test]
    fn sums_of_integers_are_exact_at_every_length() {
        for len in (0..1100).chain([8191, 8192, 8193, 40_000, 300_001]) {
            let values: Vec<i64> = (0..len).collect();
            assert_eq!(fold_slice::<_, Sum>(&values), len * (len - 1) / 2, "{len}");
        }
    }

    #[test]
    fn a_sum_of_many_equal_floats_keeps_its_digits() {
        // A sequential f32 sum of two million tenths is wrong by several percent.
        let values = vec![0.1_f32; 2_000_000];
        let sum = f64::from(fold_slice::<_, Sum>(&values));
        assert!((sum / 200_000.0 - 1.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn streamed_sums_equal_sums_of_slices() {
        for len in [0, 1, 511, 512, 513, 5000, 20_000] {
            let values: Vec<f32> = (0..len).map(|i| (i as f32).sin()).collect();
            let streamed =
                sum_of(len, |start, block| block.copy_from_slice(&values[start..start + block.len()]));
            assert_eq!(streamed, fold_slice::<_, Sum>(&values));
        }
    }

    #[test]
    fn short_slices_are_reduced_in_the_order_of_a_cascade() {
        for len in (0..=BLOCK).chain((BLOCK..=RADIX * BLOCK + 1).step_by(77)).chain([RADIX * BLOCK]) {
            let values: Vec<f32> = (0..len).map(|i| (i as f32).cos()).collect();
            let mut folder = BlockReducer::new::<Sum>();
            values.chunks(BLOCK).for_each(|block| folder.push::<Sum>(block));
            assert_eq!(folder.finish::<Sum>().to_bits(), fold_slice::<_, Sum>(&values).to_bits());
        }
        let mut folder = BlockReducer::new::<Sum>();
        folder.push::<Sum>(&[-0.0_f64]);
        assert_eq!(folder.finish::<Sum>().to_bits(), fold_slice::<_, Sum>(&[-0.0_f64]).to_bits());
    }

    #[test]
    fn rows_of_any_length_are_reduced_like_slices() {
        let values: Vec<f32> = (0..400).map(|i| (i as f32).cos()).collect();
        for len in 0..40 {
            for step in [0, len, len + 3] {
                let mut sums = [0.0; 8];
                fold_rows::<_, Sum>(&mut sums, &values, step, len);
                let expected = (0..8).map(|row| fold_slice::<_, Sum>(&values[row * step..row * step + len]));
                assert!(sums.iter().map(|sum| sum.to_bits()).eq(expected.map(f32::to_bits)), "{len} {step}");
            }
        }
    }

    #[test]
    fn max_and_min_are_found_at_every_position() {
        for len in [1, 31, 32, 33, 512, 3000, 9000] {
            for place in [0, len / 2, len - 1] {
                let mut values = vec![0.5_f64; len];
                values[place] = 2.0;
                assert_eq!(fold_slice::<_, Max>(&values), 2.0);
                values[place] = -2.0;
                assert_eq!(fold_slice::<_, Min>(&values), -2.0);
                values[place] = f64::NAN;
                assert!(fold_slice::<_, Max>(&values).is_nan());
                assert!(fold_slice::<_, Min>(&values).is_nan());
            }
        }
    }

    #[test]
    fn columns_are_reduced_independently() {
        for rows in [1, 15, 16, 17, 256, 70_000] {
            let mut cascade = Cascade::<i64, 4>::new::<Sum>(3);
            (0..rows).for_each(|i| cascade.push::<Sum>(&[1, i, -i]));
            let total = rows * (rows - 1) / 2;
            assert_eq!(cascade.finish::<Sum>(), [rows, total, -total]);
        }
    }
}
