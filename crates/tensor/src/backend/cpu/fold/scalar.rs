//! Reduction without vector instructions, for processors that lack those of [`simd`](crate::backend::cpu::simd).
//!
//! The lanes are in memory instead of registers, and the order of the operations is the same, so results are equal bit for
//! bit. The code is compact because the closures are trait objects.

use super::{BLOCK, LANES, ReduceOp, fold_into, in_any_order, slice_parts};
use crate::backend::cpu::number::Number;

/// Reduces a block to lanes, like [`lanes`](super::lanes).
pub(super) fn lanes<T: Number, F: ReduceOp<T>, const N: usize>(
    block: [&[T]; N],
    f: &dyn Fn([T; N]) -> T,
) -> [T; LANES] {
    let mut lanes = [F::IDENTITY; LANES];
    if T::ORDERLESS {
        lanes[0] = in_any_order::<T, F, N>(block, f);
        return lanes;
    }
    let len = block[0].len();
    for i in 0..len.next_multiple_of(LANES) {
        let element = if i < len { f(block.map(|part| part[i])) } else { F::IDENTITY };
        lanes[i % LANES] = F::fold(lanes[i % LANES], element);
    }
    lanes
}

/// Reduces a short sequence, like [`short`](super::short).
#[inline(never)]
pub(super) fn short<T: Number, F: ReduceOp<T>, const N: usize>(
    parts: [&[T]; N],
    f: &dyn Fn([T; N]) -> T,
) -> T {
    let len = parts[0].len();
    let mut total = lanes::<T, F, N>(slice_parts(parts, 0..len.min(BLOCK)), f);
    for start in (BLOCK..len).step_by(BLOCK) {
        let block = slice_parts(parts, start..len.min(start + BLOCK));
        fold_into::<T, F>(&mut total, &lanes::<T, F, N>(block, f));
    }
    reduce_lanes::<T, F>(&mut total)
}

/// The lanes' results in one, as of [`across`](super::across).
#[inline(never)]
fn reduce_lanes<T: Number, F: ReduceOp<T>>(lanes: &mut [T]) -> T {
    let mut width = lanes.len();
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        fold_into::<T, F>(low, high);
    }
    lanes[0]
}
