//! The order of elements: a stable merge sort of their indices.
//!
//! Short runs are sorted by insertion, then neighbouring runs are merged into longer ones, to and fro between the output
//! and the workspace (Knuth, The Art of Computer Programming 3, 5.2.4). So no memory is taken but what was stated.

use super::dispatch::{any, host, host_mut, scratch};
use super::number::Number;
use super::parallel::{Workers, light_runs};
use super::walk::Walk;
use crate::error::Result;
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// Indices sorted by insertion before runs are merged.
const RUN: usize = 16;

/// See [`Workspace::ArgSort`](crate::backend::Workspace::ArgSort).
pub(super) fn workspace(shape: &Shape) -> usize {
    shape.elements().saturating_mul(size_of::<i64>())
}

/// See [`Kernel::ArgSort`](crate::backend::Kernel::ArgSort).
pub(super) fn arg_sort(
    workers: &Workers,
    op: &'static str,
    descending: bool,
    input: View<'_>,
    workspace: ViewMut<'_>,
    out: ViewMut<'_>,
) -> Result<()> {
    let layout = *input.layout();
    let elements = layout.shape().elements();
    if elements == 0 {
        return Ok(());
    }
    let (length, stride) = match (layout.shape().dims(), layout.strides()) {
        ([.., length], [.., stride]) => (*length, *stride),
        _ => (1, 1),
    };
    let lines = Walk::nest(
        (0..layout.shape().rank().saturating_sub(1))
            .map(|axis| (layout.shape()[axis], [layout.strides()[axis]])),
        [layout.offset()],
    );
    let out = host_mut::<i64>(op, out)?;
    let spare = scratch::<i64>(op, workspace, elements)?;
    any!(input.dtype(), T => {
        let data = host::<T>(op, &input)?;
        workers.chunks2([out, spare], light_runs(length * RUN) * length, &|first, [out, spare]| {
            let lines_here = out.chunks_mut(length).zip(spare.chunks_mut(length));
            for (line, (out, spare)) in (first / length..).zip(lines_here) {
                let [start] = lines.at(line);
                let at = |index: i64| data[start + index as usize * stride];
                if descending {
                    sort(out, spare, &|i, j| less(at(j), at(i)));
                } else {
                    sort(out, spare, &|i, j| less(at(i), at(j)));
                }
            }
        });
    });
    Ok(())
}

/// Whether `a` is smaller than `b`; NaN is larger than all numbers.
fn less<T: Number>(a: T, b: T) -> bool {
    a < b || b.is_nan() && !a.is_nan()
}

/// The indices 0, 1, … in the order of their elements; `before` says whether the first must come before the second.
fn sort(out: &mut [i64], spare: &mut [i64], before: &impl Fn(i64, i64) -> bool) {
    (0..).zip(&mut *out).for_each(|(index, place)| *place = index);
    out.chunks_mut(RUN).for_each(|run| insert(run, before));
    let (mut from, mut to) = (&mut *out, &mut *spare);
    let (mut run, mut merges) = (RUN, 0);
    while run < from.len() {
        for (from, to) in from.chunks(2 * run).zip(to.chunks_mut(2 * run)) {
            let (first, second) = from.split_at(run.min(from.len()));
            merge(first, second, to, before);
        }
        std::mem::swap(&mut from, &mut to);
        run = run.saturating_mul(2);
        merges += 1;
    }
    if merges % 2 == 1 {
        // The last merge went to the workspace.
        to.copy_from_slice(from);
    }
}

fn insert(run: &mut [i64], before: &impl Fn(i64, i64) -> bool) {
    for end in 1..run.len() {
        let mut place = end;
        while place > 0 && before(run[place], run[place - 1]) {
            run.swap(place, place - 1);
            place -= 1;
        }
    }
}

/// Two sorted runs as one; of equals, those of the first come first.
fn merge(first: &[i64], second: &[i64], to: &mut [i64], before: &impl Fn(i64, i64) -> bool) {
    let (mut first, mut second) = (first.iter().copied().peekable(), second.iter().copied().peekable());
    for place in to {
        let take_second = match (first.peek(), second.peek()) {
            (Some(&a), Some(&b)) => before(b, a),
            (first, _) => first.is_none(),
        };
        let next = if take_second { second.next() } else { first.next() };
        // The runs have as many indices as there are places.
        *place = next.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_keep_their_order_at_every_length() {
        for length in (0..70).chain([255, 256, 257, 1000]) {
            let keys: Vec<u8> = (0..length).map(|i: usize| (i * 7919 % 13) as u8).collect();
            let mut expected: Vec<i64> = (0..length as i64).collect();
            expected.sort_by_key(|&i| keys[i as usize]);
            let (mut out, mut spare) = (vec![0; length], vec![0; length]);
            sort(&mut out, &mut spare, &|i, j| less(keys[i as usize], keys[j as usize]));
            assert_eq!(out, expected, "{length}");
        }
    }
}
