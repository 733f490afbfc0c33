//! Pairwise reduction of many elements to one, in an order that depends only on their number.
//!
//! Sixteen elements are reduced to a partial result, sixteen partial results to the next level, and so on. So the rounding
//! error of a sum grows with the logarithm of its length, for one more addition per sixteen elements.

mod ops;

use std::marker::PhantomData;
use std::slice;

use super::number::Number;
use super::simd::{self, Loop};

pub(crate) use ops::{FastMax, Max, Min, Product, ReduceOp, Sum, SumMagnitudes, SumSquares};

/// The number of elements per accumulator before its result moves to the next level.
pub(crate) const RADIX: usize = 16;

/// The number of levels. The top level accumulates all results from RADIX⁴ elements on, which are few in practice.
const LEVELS: usize = 5;

/// The number of vector lanes. They span several registers, to hide the latency of additions.
const LANES: usize = 32;

/// The number of rows of lanes that are combined before they are added to the lanes, to hide the latency of reductions.
const GROUP: usize = 4;

/// The number of elements in a group.
const GROUP_ELEMENTS: usize = GROUP * LANES;

/// The number of elements in a block, which is reduced to [`LANES`] partial results.
pub(crate) const BLOCK: usize = RADIX * LANES;

/// The largest number of elements that need only one level.
const SHORT: usize = RADIX * BLOCK;

/// The loops of an operation. Whatever calls them is compiled once for each type, and not for each operation too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldLoops<T> {
    pub(crate) identity: T,
    /// Whether results do not depend on the order of elements.
    any_order: bool,
    /// `older[i] = fold(older[i], element(newer[i]))`.
    pub(crate) fold_row: fn(&mut [T], &[T]),
    /// Reduces [`RADIX`] rows with a stride, like as many calls of `fold_row`.
    fold_radix: fn(&mut [T], &[T], usize),
    /// `older[i] = fold(older[i], newer[i])`.
    pub(crate) fold_into: fn(&mut [T], &[T]),
    /// Reduces at most [`BLOCK`] elements to lanes.
    block: fn(&[T]) -> [T; LANES],
    /// Reduces lanes to one value.
    lanes: fn([T; LANES]) -> T,
    /// [`fold_rows`].
    pub(crate) fold_rows: fn(&mut [T], &[T], usize, usize),
}

/// The loops of an operation.
pub(crate) const fn loops<T: Number, F: ReduceOp<T>>() -> FoldLoops<T> {
    FoldLoops {
        identity: F::IDENTITY,
        any_order: F::ANY_ORDER,
        fold_row: |older, newer| {
            simd::zip(older, newer, |older, newer| *older = F::fold(*older, F::element(newer)));
        },
        fold_radix: |older, data, step| simd::run(RadixRows::<T, F> { older, data, step, fold: PhantomData }),
        fold_into: |older, newer| simd::zip(older, newer, |older, newer| *older = F::fold(*older, newer)),
        block: |block| simd::run(Block::<T, F> { block, fold: PhantomData }),
        lanes: reduce_lanes::<T, F>,
        fold_rows: fold_rows::<T, F>,
    }
}

/// Reduces rows of up to `W` elements, column by column.
#[derive(Debug)]
pub(crate) struct Cascade<T, const W: usize> {
    /// Level 0 holds the rows since the last multiple of RADIX, level 1 those since the last multiple of RADIX², and so on.
    levels: [[T; W]; LEVELS],
    /// The number of columns in use.
    width: usize,
    rows: usize,
    /// The highest level in use.
    top: usize,
    loops: FoldLoops<T>,
}

impl<T: Number, const W: usize> Cascade<T, W> {
    /// Creates an empty cascade for rows of `width` elements, at most `W`.
    pub(crate) fn new(loops: FoldLoops<T>, width: usize) -> Self {
        Self { levels: [[loops.identity; W]; LEVELS], width: width.min(W), rows: 0, top: 0, loops }
    }

    /// Adds a row of elements.
    pub(crate) fn push(&mut self, row: &[T]) {
        (self.loops.fold_row)(&mut self.levels[0][..self.width], row);
        self.count();
    }

    /// Adds `rows` rows of elements with stride `step`. In the order of [`push`](Self::push).
    pub(crate) fn push_rows(&mut self, data: &[T], step: usize, rows: usize) {
        let mut row = 0;
        while row < rows {
            let data = &data[row * step..];
            if self.rows.is_multiple_of(RADIX) && row + RADIX <= rows {
                (self.loops.fold_radix)(&mut self.levels[0][..self.width], data, step);
                self.rows += RADIX - 1;
                self.count();
                row += RADIX;
            } else {
                self.push(&data[..self.width]);
                row += 1;
            }
        }
    }

    /// Adds a row of partial results.
    pub(crate) fn push_folded(&mut self, row: &[T; W]) {
        (self.loops.fold_into)(&mut self.levels[0][..self.width], row);
        self.count();
    }

    /// Counts a row, and moves complete results to the next level if the order of operations matters.
    fn count(&mut self) {
        self.rows += 1;
        if !self.loops.any_order && self.rows.is_multiple_of(RADIX) {
            self.carry();
        }
    }

    /// Moves complete results to the next level. Not inlined, because calls are rare and in many places.
    #[inline(never)]
    fn carry(&mut self) {
        let (mut rows, mut level) = (self.rows, 0);
        while rows.is_multiple_of(RADIX) && level + 1 < LEVELS {
            self.raise(level);
            self.levels[level][..self.width].fill(self.loops.identity);
            rows /= RADIX;
            level += 1;
        }
    }

    /// Returns the results of the columns.
    pub(crate) fn finish(&mut self) -> &[T] {
        for level in 0..self.top {
            self.raise(level);
        }
        &self.levels[self.top][..self.width]
    }

    /// Combines a level with the next level, which holds older results.
    fn raise(&mut self, level: usize) {
        let (below, above) = self.levels.split_at_mut(level + 1);
        (self.loops.fold_into)(&mut above[0][..self.width], &below[level]);
        self.top = self.top.max(level + 1);
    }
}

/// Reduces [`RADIX`] rows of `data` with stride `step` into `older`.
struct RadixRows<'a, T, F> {
    older: &'a mut [T],
    data: &'a [T],
    step: usize,
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>> Loop for RadixRows<'_, T, F> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let len = self.older.len();
        // Few rows at a time: the columns of more rows would evict each other from the L1 cache.
        for first in (0..RADIX).step_by(GROUP) {
            let mut rows = [&self.data[..len]; GROUP];
            for (number, row) in (first..).zip(&mut rows) {
                *row = &self.data[number * self.step..][..len];
            }
            for (i, older) in self.older.iter_mut().enumerate() {
                let [a, b, c, d] = [rows[0][i], rows[1][i], rows[2][i], rows[3][i]];
                let [a, b, c, d] = [F::element(a), F::element(b), F::element(c), F::element(d)];
                *older = if F::ANY_ORDER {
                    F::fold_group(*older, [a, b, c, d])
                } else {
                    F::fold(F::fold(F::fold(F::fold(*older, a), b), c), d)
                };
            }
        }
    }
}

/// Reduces a sequence of blocks. Each has [`BLOCK`] elements; the last may have fewer.
#[derive(Debug)]
pub(crate) struct BlockReducer<T>(Cascade<T, LANES>);

impl<T: Number> BlockReducer<T> {
    /// Creates a reducer without blocks.
    pub(crate) fn new(loops: FoldLoops<T>) -> Self {
        Self(Cascade::new(loops, LANES))
    }

    /// Adds the next block.
    pub(crate) fn push(&mut self, block: &[T]) {
        let lanes = (self.0.loops.block)(block);
        self.0.push_folded(&lanes);
    }

    /// Returns the result.
    pub(crate) fn finish(mut self) -> T {
        let mut lanes = [self.0.loops.identity; LANES];
        lanes.copy_from_slice(self.0.finish());
        (self.0.loops.lanes)(lanes)
    }
}

/// A reduction of one block to lanes.
struct Block<'a, T, F> {
    block: &'a [T],
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>> Loop for Block<'_, T, F> {
    type Element = T;
    type Output = [T; LANES];

    #[inline(always)]
    fn run(self) -> [T; LANES] {
        lanes::<T, F, 1>([self.block], |[value]| F::element(value))
    }
}

/// Reduces a block of `N` inputs of equal length to lanes.
///
/// Loops run over the lanes of whole arrays, by index: only then the compiler keeps vectors in registers. Loops and not
/// `map` build the inputs, because closures would be compiled for each operation.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "loops by index vectorize")]
fn lanes<T: Number, F: ReduceOp<T>, const N: usize>(block: [&[T]; N], f: impl Fn([T; N]) -> T) -> [T; LANES] {
    let mut lanes = [F::IDENTITY; LANES];
    let mut groups = [block[0].as_chunks::<GROUP_ELEMENTS>(); N];
    for part in 1..N {
        groups[part] = block[part].as_chunks();
    }
    for number in 0..groups[0].0.len() {
        let mut rows = [&groups[0].0[number]; N];
        for part in 1..N {
            rows[part] = &groups[part].0[number];
        }
        for i in 0..LANES {
            let mut mapped = [T::ZERO; GROUP];
            for row in 0..GROUP {
                let mut element = [rows[0][row * LANES + i]; N];
                for part in 1..N {
                    element[part] = rows[part][row * LANES + i];
                }
                mapped[row] = f(element);
            }
            lanes[i] = F::fold_group(lanes[i], mapped);
        }
    }
    let mut rests = [groups[0].1; N];
    for part in 1..N {
        rests[part] = groups[part].1;
    }
    let mut rows = [rests[0].as_chunks::<LANES>(); N];
    for part in 1..N {
        rows[part] = rests[part].as_chunks();
    }
    for number in 0..rows[0].0.len() {
        let mut row = [&rows[0].0[number]; N];
        for part in 1..N {
            row[part] = &rows[part].0[number];
        }
        for i in 0..LANES {
            let mut element = [row[0][i]; N];
            for part in 1..N {
                element[part] = row[part][i];
            }
            lanes[i] = F::fold(lanes[i], f(element));
        }
    }
    // In a copy, so that the lanes above stay in registers.
    let mut all = lanes;
    for part in 0..N {
        rests[part] = rows[part].1;
    }
    fold_rest::<T, F, N>(&mut all, rests, f);
    all
}

/// Reduces fewer than [`LANES`] elements into the first lanes.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "loops by index vectorize")]
fn fold_rest<T: Number, F: ReduceOp<T>, const N: usize>(
    lanes: &mut [T; LANES],
    mut rests: [&[T]; N],
    f: impl Fn([T; N]) -> T,
) {
    let count = rests[0].len().min(LANES);
    for rest in &mut rests {
        *rest = &rest[..count];
    }
    for i in 0..count {
        let mut element = [rests[0][i]; N];
        for part in 1..N {
            element[part] = rests[part][i];
        }
        lanes[i] = F::fold(lanes[i], f(element));
    }
}

/// Reduces the lanes to one value.
#[inline(always)]
fn reduce_lanes<T: Number, F: ReduceOp<T>>(lanes: [T; LANES]) -> T {
    let lanes = fold_halves::<T, F, LANES, 16>(lanes);
    let lanes = fold_halves::<T, F, 16, 8>(lanes);
    let lanes = fold_halves::<T, F, 8, 4>(lanes);
    let [first, second] = fold_halves::<T, F, 4, 2>(lanes);
    F::fold(first, second)
}

/// Combines the first and the second part of an array. The sizes are constants, so that all values stay in registers.
#[inline(always)]
fn fold_halves<T: Number, F: ReduceOp<T>, const ALL: usize, const HALF: usize>(lanes: [T; ALL]) -> [T; HALF] {
    let mut folded = [F::IDENTITY; HALF];
    for i in 0..HALF {
        folded[i] = F::fold(lanes[i], lanes[i + HALF]);
    }
    folded
}

/// Reduces `f` of the elements of `N` inputs of equal length, in the order of a [`BlockReducer`]. Inlined into loops that
/// are compiled for the widest instruction set.
#[inline(always)]
pub(crate) fn fold<T: Number, F: ReduceOp<T>, const N: usize>(
    parts: [&[T]; N],
    f: impl Fn([T; N]) -> T,
) -> T {
    let len = parts[0].len();
    if F::ANY_ORDER {
        return reduce_lanes::<T, F>(lanes::<T, F, N>(parts, f));
    }
    let mut levels = None;
    for start in (0..len).step_by(SHORT) {
        let mut run = parts;
        for part in &mut run {
            *part = &part[start..len.min(start + SHORT)];
        }
        let lanes = fold_blocks::<T, F, N>(run, &f);
        if len <= SHORT {
            return reduce_lanes::<T, F>(lanes);
        }
        // A copy, because calls would keep the sums of short inputs in memory.
        let copy = lanes;
        levels.get_or_insert_with(|| BlockReducer::new(loops::<T, F>())).0.push_folded(&copy);
    }
    levels.map_or(F::IDENTITY, BlockReducer::finish)
}

/// Reduces the lanes of at most [`RADIX`] blocks in order.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "loops by index vectorize")]
fn fold_blocks<T: Number, F: ReduceOp<T>, const N: usize>(
    parts: [&[T]; N],
    f: &impl Fn([T; N]) -> T,
) -> [T; LANES] {
    let len = parts[0].len();
    let mut total = [F::IDENTITY; LANES];
    let mut start = 0;
    while start < len {
        let end = len.min(start + BLOCK);
        let mut block = parts;
        for part in &mut block {
            *part = &part[start..end];
        }
        let lanes = lanes::<T, F, N>(block, f);
        for i in 0..LANES {
            total[i] = F::fold(total[i], lanes[i]);
        }
        start = end;
    }
    total
}

/// Reduces a slice.
pub(crate) fn fold_slice<T: Number, F: ReduceOp<T>>(values: &[T]) -> T {
    let mut out = F::IDENTITY;
    fold_rows::<T, F>(slice::from_mut(&mut out), values, 0, values.len());
    out
}

/// Reduces rows of `len` elements with stride `step`, each in the order of [`fold_slice`].
pub(crate) fn fold_rows<T: Number, F: ReduceOp<T>>(out: &mut [T], data: &[T], step: usize, len: usize) {
    match (len, step == len) {
        (2, true) => simd::run(ShortRows::<T, F, 2> { out, data, fold: PhantomData }),
        (4, true) => simd::run(ShortRows::<T, F, 4> { out, data, fold: PhantomData }),
        _ => simd::run(Rows::<T, F> { out, data, step, len, fold: PhantomData }),
    }
}

/// Contiguous rows of 2 or 4 elements. One vector reduces many of them.
struct ShortRows<'a, T, F, const LEN: usize> {
    out: &'a mut [T],
    data: &'a [T],
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>, const LEN: usize> Loop for ShortRows<'_, T, F, LEN> {
    type Element = T;
    type Output = ();

    // In the order of `reduce_lanes`.
    #[inline(always)]
    fn run(self) {
        for (out, row) in self.out.iter_mut().zip(self.data.as_chunks::<LEN>().0) {
            let mut sums = [F::element(row[0]), F::element(row[1])];
            for i in 2..LEN {
                sums[i % 2] = F::fold(sums[i % 2], F::element(row[i]));
            }
            *out = F::fold(F::IDENTITY, F::fold(sums[0], sums[1]));
        }
    }
}

struct Rows<'a, T, F> {
    out: &'a mut [T],
    data: &'a [T],
    step: usize,
    len: usize,
    fold: PhantomData<F>,
}

impl<T: Number, F: ReduceOp<T>> Loop for Rows<'_, T, F> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (row, out) in self.out.iter_mut().enumerate() {
            let row = &self.data[row * self.step..][..self.len];
            *out = fold::<T, F, 1>([row], |[value]| F::element(value));
        }
    }
}

/// Sums `f(a[i], b[i])`.
pub(crate) fn sum_products<T: Number>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> T {
    simd::run(Products { a, b: &b[..a.len()], f })
}

struct Products<'a, T, M> {
    a: &'a [T],
    b: &'a [T],
    f: M,
}

impl<T: Number, M: Fn(T, T) -> T> Loop for Products<'_, T, M> {
    type Element = T;
    type Output = T;

    #[inline(always)]
    fn run(self) -> T {
        fold::<T, Sum, 2>([self.a, self.b], |[a, b]| (self.f)(a, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn slices_are_reduced_in_the_order_of_a_cascade() {
        for len in
            (0..=BLOCK).chain((BLOCK..=RADIX * BLOCK + 1).step_by(77)).chain([RADIX * BLOCK, 70_000, 200_003])
        {
            let values: Vec<f32> = (0..len).map(|i| (i as f32).cos()).collect();
            let mut folder = BlockReducer::new(loops::<_, Sum>());
            values.chunks(BLOCK).for_each(|block| folder.push(block));
            assert_eq!(folder.finish().to_bits(), fold_slice::<_, Sum>(&values).to_bits());
        }
        let mut folder = BlockReducer::new(loops::<_, Sum>());
        folder.push(&[-0.0_f64]);
        assert_eq!(folder.finish().to_bits(), fold_slice::<_, Sum>(&[-0.0_f64]).to_bits());
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
            let mut cascade = Cascade::<i64, 4>::new(loops::<_, Sum>(), 3);
            (0..rows).for_each(|i| cascade.push(&[1, i, -i]));
            let total = rows * (rows - 1) / 2;
            assert_eq!(cascade.finish(), [rows, total, -total]);
        }
    }
}
