//! Folding for processors that lack what the loops are [compiled for](crate::backend::cpu::simd): element by element, with the lanes
//! in memory, in the order of the lanes that others have in registers. Small, and compiled once for all that is folded.

use super::{BLOCK, Fold, LANES, cut, fold_into, in_any_order};
use crate::backend::cpu::number::Number;

/// The lanes of a block, as of [`lanes`](super::lanes).
pub(super) fn lanes<T: Number, F: Fold<T>, const N: usize>(
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

/// As [`short`](super::short).
#[inline(never)]
pub(super) fn short<T: Number, F: Fold<T>, const N: usize>(parts: [&[T]; N], f: &dyn Fn([T; N]) -> T) -> T {
    let len = parts[0].len();
    let mut total = lanes::<T, F, N>(cut(parts, 0..len.min(BLOCK)), f);
    for start in (BLOCK..len).step_by(BLOCK) {
        let block = cut(parts, start..len.min(start + BLOCK));
        fold_into::<T, F>(&mut total, &lanes::<T, F, N>(block, f));
    }
    across::<T, F>(&mut total)
}

/// The lanes' results in one, as of [`across`](super::across).
#[inline(never)]
fn across<T: Number, F: Fold<T>>(lanes: &mut [T]) -> T {
    let mut width = lanes.len();
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        fold_into::<T, F>(low, high);
    }
    lanes[0]
}
