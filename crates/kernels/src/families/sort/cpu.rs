//! Argsort and top-k with the unstable in-place sort of the standard library.
//!
//! Comparing the indices of equal elements makes the order stable. Elements of at most 32 bits are packed with their
//! indices into 64-bit keys, so that comparisons need no lookups. For a small top-k, only the smallest keys are kept.
//! Elements of 64 bits are looked up as bits, so that all types share one sort.

use std::cmp::Ordering;

use half::{bf16, f16};

use super::ArgSort;
use crate::cpu::dispatch::{byte_or_number, host, host_mut};
use crate::cpu::gemm::f16_to_f32;
use crate::cpu::loop_nest::LoopNest;
use crate::cpu::number::Number;
use crate::cpu::parallel::{Workers, light_runs};
use crate::error::Result;
use crate::families::RunCpu;
use crate::shape::DType;
use crate::storage::View;

/// The cost of sorting an element, in units of light work.
const COST: usize = 16;

impl RunCpu for ArgSort<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { descending, first, input, ref mut out, .. } = *self;
        let lines = Lines::new(&input);
        let out = host_mut::<i64>(op, out)?;
        let short = u32::try_from(lines.length).is_ok();
        match input.dtype() {
            DType::F32 if short => lines.each(workers, host::<f32>(op, &input)?, out, |line, out| {
                sort_packed(out, first, descending, |index| rank(line.at(index)));
            }),
            DType::F16 if short => lines.each(workers, host::<f16>(op, &input)?, out, |line, out| {
                sort_packed(out, first, descending, |index| rank(f16_to_f32(line.at(index))));
            }),
            DType::BF16 if short => lines.each(workers, host::<bf16>(op, &input)?, out, |line, out| {
                sort_packed(out, first, descending, |index| rank(line.at(index).to_f32()));
            }),
            DType::F16 => lines.each(workers, host::<f16>(op, &input)?, out, |line, out| {
                let at = |index| f16_to_f32(line.at(index));
                sort_by_lookup(out, first, descending, |i, j| compare(at(i), at(j)));
            }),
            DType::BF16 => lines.each(workers, host::<bf16>(op, &input)?, out, |line, out| {
                let at = |index| line.at(index).to_f32();
                sort_by_lookup(out, first, descending, |i, j| compare(at(i), at(j)));
            }),
            DType::I32 if short => lines.each(workers, host::<i32>(op, &input)?, out, |line, out| {
                sort_packed(out, first, descending, |index| line.at(index).cast_unsigned() ^ SIGN);
            }),
            DType::U32 if short => lines.each(workers, host::<u32>(op, &input)?, out, |line, out| {
                sort_packed(out, first, descending, |index| line.at(index));
            }),
            DType::U8 | DType::Bool if short => {
                lines.each(workers, host::<u8>(op, &input)?, out, |line, out| {
                    sort_packed(out, first, descending, |index| u32::from(line.at(index)));
                })
            }
            DType::F64 => lines.each(
                workers,
                bytemuck::cast_slice(host::<f64>(op, &input)?),
                out,
                sort_wide(first, descending, true),
            ),
            DType::I64 => lines.each(
                workers,
                bytemuck::cast_slice(host::<i64>(op, &input)?),
                out,
                sort_wide(first, descending, false),
            ),
            // Very long lines are rare: one sort for all types, with a trait object as comparison.
            dtype => {
                return byte_or_number!(op, dtype, T => {
                    lines.each(workers, host::<T>(op, &input)?, out, |line, out| {
                        let order: &dyn Fn(usize, usize) -> Ordering = &|i, j| compare(line.at(i), line.at(j));
                        sort_by_lookup(out, first, descending, order);
                    });
                    Ok(())
                });
            }
        }
        Ok(())
    }
}

/// The lines along the last axis of a view.
#[derive(Debug)]
struct Lines {
    starts: LoopNest<1>,
    length: usize,
    stride: usize,
}

/// The elements of a line.
#[derive(Clone, Copy, Debug)]
struct Line<'a, T> {
    data: &'a [T],
    start: usize,
    stride: usize,
}

impl<T: Copy> Line<'_, T> {
    fn at(&self, index: usize) -> T {
        self.data[self.start + index * self.stride]
    }
}

impl Lines {
    fn new(input: &View<'_>) -> Self {
        let layout = input.layout();
        let (dims, strides) = (layout.shape().dims(), layout.strides());
        let axes = dims.iter().zip(strides).take(dims.len().saturating_sub(1));
        Self {
            starts: LoopNest::from_axes(axes.map(|(&size, &stride)| (size, [stride])), [layout.offset()]),
            length: dims.last().copied().unwrap_or(1),
            stride: strides.last().copied().unwrap_or(1),
        }
    }

    /// Calls `sort` with each line and its part of `out`.
    fn each<T: Copy + Sync>(
        &self,
        workers: &Workers,
        data: &[T],
        out: &mut [i64],
        sort: impl Fn(Line<'_, T>, &mut [i64]) + Sync,
    ) {
        // Lines of length 0 have no chunks.
        let (length, stride) = (self.length.max(1), self.stride);
        workers.chunks(out, light_runs(length.saturating_mul(COST)) * length, &|first, part| {
            for (line, out) in (first / length..).zip(part.chunks_mut(length)) {
                let [start] = self.starts.at(line);
                sort(Line { data, start, stride }, out);
            }
        });
    }
}

const SIGN: u32 = 1 << 31;

/// Maps an element to an integer with the same order; NaN is the largest.
fn rank(element: f32) -> u32 {
    if element.is_nan() {
        return u32::MAX;
    }
    // Adding 0 converts -0 to 0. Flips all bits of negative values and the sign of others, without an unpredictable branch.
    let bits = (element + 0.0).to_bits();
    bits ^ ((bits.cast_signed() >> 31).cast_unsigned() | SIGN)
}

const WIDE_SIGN: u64 = 1 << 63;

/// Like [`rank`], for the bits of an f64.
fn wide_rank(bits: u64) -> u64 {
    let element = f64::from_bits(bits);
    if element.is_nan() {
        return u64::MAX;
    }
    let bits = (element + 0.0).to_bits();
    bits ^ ((bits.cast_signed() >> 63).cast_unsigned() | WIDE_SIGN)
}

/// Sorts indices by rank, as 64-bit keys of rank and index.
fn sort_packed(out: &mut [i64], first: usize, descending: bool, rank: impl Fn(usize) -> u32) {
    let keys: &mut [u64] = bytemuck::cast_slice_mut(out);
    let flip = if descending { u32::MAX } else { 0 };
    let all = (0..keys.len()).map(|index| u64::from(rank(index) ^ flip) << 32 | index as u64);
    let kept = if first > 0 && first <= keys.len() / SELECT_FRACTION {
        select_smallest(keys, first, all)
    } else {
        keys.iter_mut().zip(all).for_each(|(place, of)| *place = of);
        keys
    };
    sort_first(kept, first, u64::cmp);
    kept.iter_mut().for_each(|place| *place &= u64::from(u32::MAX));
}

/// A top-k is small if k is at most this fraction of the line. Then only the smallest keys are kept.
const SELECT_FRACTION: usize = 4;

/// Moves the `first` smallest of distinct numbers, and some others, to the start of `places`.
///
/// A buffer of twice the size collects the numbers below a bound. When it is full, the larger half is dropped and the bound
/// decreases.
fn select_smallest(places: &mut [u64], first: usize, all: impl Iterator<Item = u64>) -> &mut [u64] {
    let room = (2 * first).max(32).min(places.len());
    let places = &mut places[..room];
    let (mut kept, mut bound) = (0, u64::MAX);
    for number in all {
        if number < bound {
            places[kept] = number;
            kept += 1;
            if kept == room {
                bound = *places.select_nth_unstable_by(first - 1, &u64::cmp).1;
                kept = first;
            }
        }
    }
    &mut places[..kept]
}

/// Sorts lines of 64-bit elements, floats or signed integers.
fn sort_wide(first: usize, descending: bool, floats: bool) -> impl Fn(Line<'_, u64>, &mut [i64]) + Sync {
    move |line, out| {
        let rank = |index| if floats { wide_rank(line.at(index)) } else { line.at(index) ^ WIDE_SIGN };
        sort_by_lookup(out, first, descending, |i, j| rank(i).cmp(&rank(j)));
    }
}

/// Sorts indices with a comparison that looks up the elements.
fn sort_by_lookup(out: &mut [i64], first: usize, descending: bool, order: impl Fn(usize, usize) -> Ordering) {
    (0..).zip(&mut *out).for_each(|(index, place)| *place = index);
    sort_first(out, first, |&i, &j| {
        let of_elements = order(i as usize, j as usize);
        let turned = if descending { of_elements.reverse() } else { of_elements };
        turned.then(i.cmp(&j))
    });
}

/// Sorts the `first` smallest values to the front.
fn sort_first<T>(all: &mut [T], first: usize, order: impl Fn(&T, &T) -> Ordering) {
    let all = match first {
        0 => return,
        _ if first < all.len() => {
            all.select_nth_unstable_by(first - 1, &order);
            &mut all[..first]
        }
        _ => all,
    };
    all.sort_unstable_by(order);
}

/// Compares two elements; NaN is larger than all numbers.
fn compare<T: Number>(a: T, b: T) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_order_of_their_elements() {
        let inf = f32::INFINITY;
        let sorted =
            [-inf, f32::MIN, -1.0, -f32::from_bits(1), 0.0, f32::from_bits(1), 0.5, f32::MAX, inf, f32::NAN];
        assert!(sorted.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(-0.0), rank(0.0));
        assert_eq!(rank(-f32::NAN), rank(f32::NAN));
        let inf = f64::INFINITY;
        let sorted =
            [-inf, f64::MIN, -1.0, -f64::from_bits(1), 0.0, f64::from_bits(1), 0.5, f64::MAX, inf, f64::NAN];
        let wide = |element: f64| wide_rank(element.to_bits());
        assert!(sorted.windows(2).all(|pair| wide(pair[0]) < wide(pair[1])));
        assert!(sorted.windows(2).all(|pair| compare(pair[0], pair[1]).is_lt()));
        assert_eq!(wide(-0.0), wide(0.0));
        assert_eq!(wide(-f64::NAN), wide(f64::NAN));
        assert_eq!(compare(-f64::NAN, f64::NAN), Ordering::Equal);
    }

    #[test]
    fn sorting_is_stable_in_both_directions_at_every_length() {
        for length in (0..70).chain([255, 256, 257, 1000]) {
            let keys: Vec<f32> = (0..length).map(|i| (i * 7919 % 13) as f32 - 6.0).collect();
            for descending in [false, true] {
                let mut expected: Vec<i64> = (0..length as i64).collect();
                let order = |i: &i64, j: &i64| keys[*i as usize].total_cmp(&keys[*j as usize]);
                expected.sort_by(|i, j| if descending { order(j, i) } else { order(i, j) });
                for first in [length, length / 3, length / 4, length / 9, 1, 0] {
                    let (mut packed, mut other, mut bits) =
                        (vec![0; length], vec![0; length], vec![0; length]);
                    sort_packed(&mut packed, first, descending, |index| rank(keys[index]));
                    sort_by_lookup(&mut other, first, descending, |i, j| compare(keys[i], keys[j]));
                    let wider: Vec<u64> = keys.iter().map(|&key| f64::from(key).to_bits()).collect();
                    sort_wide(first, descending, true)(Line { data: &wider, start: 0, stride: 1 }, &mut bits);
                    let wanted = &expected[..first.min(length)];
                    for sorted in [packed, other, bits] {
                        assert_eq!(&sorted[..wanted.len()], wanted, "{length}");
                    }
                }
            }
        }
    }
}
