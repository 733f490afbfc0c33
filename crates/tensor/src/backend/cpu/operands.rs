//! The operands of a kernel: what one, two or three views hold, gone through together.
//!
//! The innermost loops are over slices where all operands have stride 1 or 0, so that the compiler can vectorise them;
//! other operands are gone through in tiles, so that a transposed one does not fetch every cache line many times.
//! The function applied to an element never depends on which loop it is in, so values do not either.

use std::ops::Range;

use super::dispatch::host;
use super::fold::{Sum, fold_zipped, sum_of};
use super::number::Number;
use super::parallel::Workers;
use super::simd;
use super::walk::{Segment, Walk};
use crate::dtype::RawElement;
use crate::error::Result;
use crate::storage::View;

/// Rows gone through together where they are columns in memory: those of a cache line.
const TOGETHER: usize = 16;

/// Elements of one view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a, A> {
    data: &'a [A],
    walk: Walk<1>,
}

impl<'a, A: RawElement> Source<'a, A> {
    /// The elements of `view`, which must be of type `A`.
    pub(super) fn new(op: &'static str, view: View<'a>) -> Result<Self> {
        Ok(Self { data: host(op, &view)?, walk: Walk::new([view.layout()]) })
    }

    /// The elements of `view`, but each of those repeated by broadcasting only once.
    pub(super) fn distinct(op: &'static str, view: View<'a>) -> Result<Self> {
        let layout = view.layout();
        let axes = layout.shape().dims().iter().zip(layout.strides());
        let distinct = axes.filter(|&(&size, &stride)| stride != 0 || size == 0);
        let walk = Walk::nest(distinct.map(|(&size, &stride)| (size, [stride])), [layout.offset()]);
        Ok(Self { data: host(op, &view)?, walk })
    }

    /// The elements of `view`, in reverse order along the axes that are `flipped`.
    pub(super) fn flipped(op: &'static str, view: View<'a>, flipped: &[bool]) -> Result<Self> {
        let layout = view.layout();
        let axes = layout.shape().dims().iter().zip(layout.strides()).zip(flipped);
        let last = axes.clone().filter(|&(_, &flipped)| flipped).map(|((&size, &stride), _)| {
            // Of an empty shape no element is visited.
            size.wrapping_sub(1).wrapping_mul(stride)
        });
        let start = last.fold(layout.offset(), usize::wrapping_add);
        let axes = axes.map(|((&size, &stride), &flipped)| {
            (size, [if flipped { stride.wrapping_neg() } else { stride }])
        });
        Ok(Self { data: host(op, &view)?, walk: Walk::nest(axes, [start]) })
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        self.walk.len()
    }

    /// Element number `index`.
    pub(super) fn get(&self, index: usize) -> A {
        let [place] = self.walk.at(index);
        self.data[place]
    }

    /// The elements numbered `range` as a slice, if they lie side by side.
    pub(super) fn slice(&self, range: Range<usize>) -> Option<&'a [A]> {
        // By far the most common, and asked for row by row.
        if let Some(offset) = self.walk.gapless() {
            return Some(&self.data[offset + range.start..offset + range.end]);
        }
        let segment = self.walk.segments(range.clone()).next();
        match segment {
            None => Some(&[]),
            Some(Segment { starts: [start], len }) if self.walk.inner() == [1] && len == range.len() => {
                Some(&self.data[start..start + len])
            }
            Some(_) => None,
        }
    }

    /// Copies the elements from number `start` on.
    pub(super) fn load(&self, start: usize, out: &mut [A]) {
        match self.slice(start..start + out.len()) {
            Some(values) => out.copy_from_slice(values),
            None => self.each(start, out, |out, value| *out = value),
        }
    }

    /// How many rows should be gone through together, as those next to each other lie in the same cache lines.
    pub(super) fn rows_together(&self) -> usize {
        let [stride] = self.walk.inner();
        if stride > 1 { TOGETHER } else { 1 }
    }

    /// Calls `f` with the elements numbered `range` in order, as slices of `N` elements (the last may have fewer).
    pub(super) fn blocks<const N: usize>(&self, range: Range<usize>, mut f: impl FnMut(Range<usize>, &[A])) {
        let blocks = range.clone().step_by(N).map(|start| start..range.end.min(start + N));
        if let Some(whole) = self.slice(range.clone()) {
            blocks.zip(whole.chunks(N)).for_each(|(range, block)| f(range, block));
            return;
        }
        let mut buffer = [A::default(); N];
        for range in blocks {
            let block = &mut buffer[..range.len()];
            self.load(range.start, block);
            f(range, block);
        }
    }

    /// Calls `f` with each element of `out` and the element of this source that belongs to it, from number `start` on.
    pub(super) fn each<U>(&self, start: usize, mut out: &mut [U], f: impl Fn(&mut U, A)) {
        let range = start..start + out.len();
        if let Some(offset) = self.walk.gapless() {
            simd::zip(out, &self.data[offset + range.start..offset + range.end], f);
            return;
        }
        if let Some((offset, times)) = self.walk.repeats() {
            // The first element may belong to the pieces before.
            let head = (range.start.next_multiple_of(times) - range.start).min(out.len());
            let (first, rest) = out.split_at_mut(head);
            let values = &self.data[offset + range.start / times..];
            first.iter_mut().for_each(|out| f(out, values[0]));
            simd::zip_repeated(rest, &values[usize::from(head > 0)..], times, f);
            return;
        }
        let [stride] = self.walk.inner();
        let stride = stride as isize;
        if stride.unsigned_abs() > 1 {
            self.walk.tiles(range, |first, Segment { starts: [a], len }| {
                let out = out[first..first + len].iter_mut();
                if stride > 0 {
                    let values = self.data[a..].iter().step_by(stride.unsigned_abs());
                    out.zip(values).for_each(|(out, &a)| f(out, a));
                } else {
                    let values = self.data[..=a].iter().rev().step_by(stride.unsigned_abs());
                    out.zip(values).for_each(|(out, &a)| f(out, a));
                }
            });
            return;
        }
        for Segment { starts: [a], len } in self.walk.segments(range) {
            let Some(now) = out.split_off_mut(..len) else { return };
            match stride {
                1 => simd::zip(now, &self.data[a..a + len], &f),
                0 => {
                    let a = self.data[a];
                    simd::each(now, |out| f(out, a));
                }
                _ => simd::zip_back(now, &self.data[a + 1 - len..=a], &f),
            }
        }
    }

    /// The sum of what `f` makes of the elements from number `start` on, each with one of `others`.
    pub(super) fn sum_with(&self, start: usize, others: &[A], f: impl Fn(A, A) -> A + Copy) -> A
    where
        A: Number,
    {
        if let Some(values) = self.slice(start..start + others.len()) {
            return fold_zipped::<A, Sum>(values, others, f);
        }
        sum_of(others.len(), |first, block| {
            self.load(start + first, block);
            simd::zip(block, &others[first..][..block.len()], |value, other| *value = f(*value, other));
        })
    }

    /// out = f(a) for all elements.
    pub(super) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A) -> U + Sync,
    ) {
        workers.chunks(out, chunk, &|start, part| self.each(start, part, |out, a| *out = f(a)));
    }
}

/// Elements of two views of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a, A, B> {
    a: &'a [A],
    b: &'a [B],
    walk: Walk<2>,
}

impl<'a, A: RawElement, B: RawElement> Pair<'a, A, B> {
    /// The elements of the views, which must be of types `A` and `B`.
    pub(super) fn new(op: &'static str, a: View<'a>, b: View<'a>) -> Result<Self> {
        Ok(Self { a: host(op, &a)?, b: host(op, &b)?, walk: Walk::new([a.layout(), b.layout()]) })
    }

    /// As [`Source::each`].
    pub(super) fn each<U>(&self, start: usize, mut out: &mut [U], f: impl Fn(&mut U, A, B)) {
        let range = start..start + out.len();
        let [s, t] = self.walk.inner();
        if s > 1 || t > 1 {
            self.walk.tiles(range, |first, Segment { starts: [a, b], len }| {
                let out = out[first..first + len].iter_mut().enumerate();
                out.for_each(|(i, out)| f(out, self.a[a + i * s], self.b[b + i * t]));
            });
            return;
        }
        for Segment { starts: [a, b], len } in self.walk.segments(range) {
            let Some(now) = out.split_off_mut(..len) else { return };
            match [s, t] {
                [1, 1] => simd::zip2(now, &self.a[a..a + len], &self.b[b..b + len], &f),
                [1, 0] => {
                    let b = self.b[b];
                    simd::zip(now, &self.a[a..a + len], |out, a| f(out, a, b));
                }
                [0, 1] => {
                    let a = self.a[a];
                    simd::zip(now, &self.b[b..b + len], |out, b| f(out, a, b));
                }
                // Both stand still.
                _ => {
                    let (a, b) = (self.a[a], self.b[b]);
                    simd::each(now, |out| f(out, a, b));
                }
            }
        }
    }

    /// out = f(a, b) for all elements.
    pub(super) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A, B) -> U + Sync,
    ) {
        workers.chunks(out, chunk, &|start, part| self.each(start, part, |out, a, b| *out = f(a, b)));
    }
}

/// Elements of three views of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Triple<'a, A, B, C> {
    a: &'a [A],
    b: &'a [B],
    c: &'a [C],
    walk: Walk<3>,
}

impl<'a, A: RawElement, B: RawElement, C: RawElement> Triple<'a, A, B, C> {
    /// The elements of the views, which must be of types `A`, `B` and `C`.
    pub(super) fn new(op: &'static str, a: View<'a>, b: View<'a>, c: View<'a>) -> Result<Self> {
        let walk = Walk::new([a.layout(), b.layout(), c.layout()]);
        Ok(Self { a: host(op, &a)?, b: host(op, &b)?, c: host(op, &c)?, walk })
    }

    /// out = f(a, b, c) for all elements.
    pub(super) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A, B, C) -> U + Sync,
    ) {
        workers.chunks(out, chunk, &|start, part| self.each(start, part, |out, a, b, c| *out = f(a, b, c)));
    }

    fn each<U>(&self, start: usize, mut out: &mut [U], f: impl Fn(&mut U, A, B, C)) {
        let range = start..start + out.len();
        let [s, t, u] = self.walk.inner();
        if !matches!([s, t, u], [1, 0 | 1, 0 | 1]) {
            self.walk.tiles(range, |first, Segment { starts: [a, b, c], len }| {
                let out = out[first..first + len].iter_mut().enumerate();
                out.for_each(|(i, out)| f(out, self.a[a + i * s], self.b[b + i * t], self.c[c + i * u]));
            });
            return;
        }
        for Segment { starts: [a, b, c], len } in self.walk.segments(range) {
            let Some(now) = out.split_off_mut(..len) else { return };
            let first = &self.a[a..a + len];
            match [t, u] {
                [1, 1] => {
                    let others = self.b[b..b + len].iter().zip(&self.c[c..c + len]);
                    now.iter_mut()
                        .zip(first.iter().zip(others))
                        .for_each(|(out, (&a, (&b, &c)))| f(out, a, b, c));
                }
                // One stands still, as a constant.
                [1, _] => {
                    let c = self.c[c];
                    simd::zip2(now, first, &self.b[b..b + len], |out, a, b| f(out, a, b, c));
                }
                [_, 1] => {
                    let b = self.b[b];
                    simd::zip2(now, first, &self.c[c..c + len], |out, a, c| f(out, a, b, c));
                }
                _ => {
                    let (b, c) = (self.b[b], self.c[c]);
                    simd::zip(now, first, |out, a| f(out, a, b, c));
                }
            }
        }
    }
}
