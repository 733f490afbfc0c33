//! The elements of one view.

use std::ops::Range;

use super::Run;
use crate::backend::cpu::dispatch::host;
use crate::backend::cpu::fold::{Sum, fold_zipped, sum_of};
use crate::backend::cpu::number::Number;
use crate::backend::cpu::parallel::Workers;
use crate::backend::cpu::simd;
use crate::backend::cpu::walk::{Segment, TILE, Walk};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::RawElement;
use crate::storage::View;

/// Elements that are copied at a time where they do not lie side by side.
pub(super) const PIECE: usize = 256;

/// The same where they lie far apart.
pub(super) const STRIDED: usize = 32;

/// Rows gone through together where they are columns in memory: those of a cache line.
const TOGETHER: usize = 16;

/// Elements of one view.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cpu) struct Source<'a, A> {
    data: &'a [A],
    walk: Walk<1>,
}

impl<'a, A: RawElement> Source<'a, A> {
    /// The elements of `data` that a walk visits.
    pub(super) const fn along(data: &'a [A], walk: Walk<1>) -> Self {
        Self { data, walk }
    }

    /// The elements of `view`, which must be of type `A`.
    pub(in crate::backend::cpu) fn new(op: &'static str, view: View<'a>) -> Result<Self> {
        Ok(Self::of(host(op, &view)?, view.layout()))
    }

    /// The elements of what is on the host: see [`Pair::of`](super::Pair::of).
    #[inline(always)]
    pub(in crate::backend::cpu) fn of(data: &'a [A], layout: &Layout) -> Self {
        Self { data, walk: Walk::new([layout]) }
    }

    /// The elements of `view`, but each of those repeated by broadcasting only once.
    pub(in crate::backend::cpu) fn distinct(op: &'static str, view: View<'a>) -> Result<Self> {
        let layout = view.layout();
        let axes = layout.shape().dims().iter().zip(layout.strides());
        let distinct = axes.filter(|&(&size, &stride)| stride != 0 || size == 0);
        let walk = Walk::nest(distinct.map(|(&size, &stride)| (size, [stride])), [layout.offset()]);
        Ok(Self { data: host(op, &view)?, walk })
    }

    /// The elements of `view`, in reverse order along the axes that are `flipped`.
    pub(in crate::backend::cpu) fn flipped(
        op: &'static str,
        view: View<'a>,
        flipped: &[bool],
    ) -> Result<Self> {
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
    pub(in crate::backend::cpu) fn len(&self) -> usize {
        self.walk.len()
    }

    /// Element number `index`.
    pub(in crate::backend::cpu) fn get(&self, index: usize) -> A {
        let [place] = self.walk.at(index);
        self.data[place]
    }

    /// The elements numbered `range` as a slice, if they lie side by side.
    pub(in crate::backend::cpu) fn slice(&self, range: Range<usize>) -> Option<&'a [A]> {
        // By far the most common, and asked for row by row.
        if let Some([offset]) = self.walk.gapless() {
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

    /// The elements numbered `range`, if they are repeated side by side.
    pub(in crate::backend::cpu) fn runs(
        &self,
        range: Range<usize>,
    ) -> Option<impl Iterator<Item = Run<A>> + Clone> {
        let run = |Segment { starts: [place], len }| Run { len, value: self.data[place] };
        (self.walk.inner() == [0]).then(|| self.walk.segments(range).map(run))
    }

    /// The elements numbered `range`, of which there are no more than `buffer` has: where they lie, or copied there.
    pub(in crate::backend::cpu) fn part<'b>(&'b self, range: Range<usize>, buffer: &'b mut [A]) -> &'b [A] {
        self.slice(range.clone()).unwrap_or_else(|| {
            let loaded = &mut buffer[..range.len()];
            self.load(range.start, loaded);
            loaded
        })
    }

    /// Copies the elements from number `start` on.
    pub(in crate::backend::cpu) fn load(&self, start: usize, mut out: &mut [A]) {
        let range = start..start + out.len();
        if let Some([offset]) = self.walk.gapless() {
            out.copy_from_slice(&self.data[offset + range.start..offset + range.end]);
            return;
        }
        if let Some((offset, times)) = self.walk.repeats() {
            // The first element may belong to the pieces before.
            let head = (range.start.next_multiple_of(times) - range.start).min(out.len());
            let (first, rest) = out.split_at_mut(head);
            let values = &self.data[offset + range.start / times..];
            if let Some(&value) = values.first() {
                first.fill(value);
            }
            simd::zip_repeated(rest, &values[usize::from(head > 0)..], times, |out, value| *out = value);
            return;
        }
        let [stride] = self.walk.inner();
        let stride = stride as isize;
        if stride > 1 && self.walk.is_line() {
            let [first] = self.walk.at(range.start);
            simd::zip_step(
                out,
                self.data.get(first..).unwrap_or_default(),
                stride.unsigned_abs(),
                |out, x| *out = x,
            );
            return;
        }
        if stride.unsigned_abs() > 1 {
            self.walk.tiles(range, TOGETHER, &mut |tile| match tile.columns() {
                Some((start, rows)) if stride > 0 => {
                    let columns = self.data[start..].chunks(stride.unsigned_abs()).take(tile.width);
                    transpose(columns, rows, &mut out[tile.first..], tile.len);
                }
                _ => tile.rows().for_each(|(first, Segment { starts: [a], len })| {
                    let out = &mut out[first..first + len];
                    if stride > 0 {
                        copy_steps(out, self.data[a..].iter(), stride.unsigned_abs());
                    } else {
                        copy_steps(out, self.data[..=a].iter().rev(), stride.unsigned_abs());
                    }
                }),
            });
            return;
        }
        for Segment { starts: [a], len } in self.walk.segments(range) {
            let Some(now) = out.split_off_mut(..len) else { return };
            match stride {
                1 => now.copy_from_slice(&self.data[a..a + len]),
                0 => now.fill(self.data[a]),
                _ => simd::zip_back(now, &self.data[a + 1 - len..=a], |out, value| *out = value),
            }
        }
    }

    /// How many rows should be gone through together, as those next to each other lie in the same cache lines.
    pub(in crate::backend::cpu) fn rows_together(&self) -> usize {
        let [stride] = self.walk.inner();
        if stride > 1 { TOGETHER } else { 1 }
    }

    /// Calls `f` with the elements numbered `range` in order, as slices of `N` elements (the last may have fewer).
    pub(in crate::backend::cpu) fn blocks<const N: usize>(
        &self,
        range: Range<usize>,
        mut f: impl FnMut(Range<usize>, &[A]),
    ) {
        self.visit_blocks::<N>(range, &mut f);
    }

    /// [`blocks`](Self::blocks), compiled once for all that visit them.
    fn visit_blocks<const N: usize>(&self, range: Range<usize>, visit: &mut dyn FnMut(Range<usize>, &[A])) {
        let mut start = range.start;
        if let Some(whole) = self.slice(range.clone()) {
            for block in whole.chunks(N) {
                visit(start..start + block.len(), block);
                start += block.len();
            }
            return;
        }
        let mut buffer = [A::default(); N];
        while start < range.end {
            let end = range.end.min(start + N);
            let block = &mut buffer[..end - start];
            self.load(start, block);
            visit(start..end, block);
            start = end;
        }
    }

    /// Calls `f` with each element of `out` and the element of this source that belongs to it, from number `start` on.
    pub(in crate::backend::cpu) fn each<U>(&self, start: usize, out: &mut [U], f: impl Fn(&mut U, A) + Copy) {
        let len = out.len();
        self.pieces(start, len, &mut |first, a| simd::zip(&mut out[first..first + a.len()], a, f));
    }

    /// Calls `visit` with the elements from number `start` on, each once, as slices; its first argument is the number of their
    /// first element, counted from `start`.
    fn pieces(&self, start: usize, len: usize, visit: &mut dyn FnMut(usize, &[A])) {
        if let Some(values) = self.slice(start..start + len) {
            return visit(0, values);
        }
        let [stride] = self.walk.inner();
        if (stride as isize).unsigned_abs() > 1 {
            let mut piece = [A::default(); STRIDED];
            self.walk.tiles(start..start + len, STRIDED, &mut |tile| {
                for (first, Segment { starts: [a], len }) in tile.rows() {
                    visit(first, gather(&mut piece, self.data, a, stride, len));
                }
            });
            return;
        }
        let mut reader = Reader::new(*self);
        for first in (0..len).step_by(PIECE) {
            visit(first, reader.read(start + first..start + len.min(first + PIECE)));
        }
    }

    /// The sum of what `f` makes of the elements from number `start` on, each with one of `others`.
    pub(in crate::backend::cpu) fn sum_with(
        &self,
        start: usize,
        others: &[A],
        f: impl Fn(A, A) -> A + Copy,
    ) -> A
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
    pub(in crate::backend::cpu) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A) -> U + Sync,
    ) {
        let f = &f;
        let store = |out: &mut U, a| *out = f(a);
        workers.chunks(out, chunk, &|start, part| self.each(start, part, store));
    }
}

/// The elements of a view as slices: where they lie if side by side, and copied otherwise.
pub(super) struct Reader<'a, A> {
    source: Source<'a, A>,
    piece: [A; PIECE],
}

impl<'a, A: RawElement> Reader<'a, A> {
    pub(super) fn new(source: Source<'a, A>) -> Self {
        Self { source, piece: [A::default(); PIECE] }
    }

    /// The elements numbered `range`, of which there are at most [`PIECE`].
    pub(super) fn read(&mut self, range: Range<usize>) -> &[A] {
        if let Some(values) = self.source.slice(range.clone()) {
            return values;
        }
        let piece = &mut self.piece[..range.len()];
        self.source.load(range.start, piece);
        piece
    }
}

/// Pieces of rows as slices: where they lie, or one element as many times as it is visited.
pub(super) struct Row<A> {
    /// Where the element lies that a piece is filled with, and how many of it there are.
    filled: Option<(usize, usize)>,
    piece: [A; PIECE],
}

impl<A: RawElement> Row<A> {
    pub(super) fn new() -> Self {
        Self { filled: None, piece: [A::default(); PIECE] }
    }

    /// `len` elements of `data` from `start` on, side by side if the stride is 1, and all the first, at most [`PIECE`] of them, if it
    /// is 0.
    pub(super) fn read<'r>(&'r mut self, data: &'r [A], start: usize, stride: usize, len: usize) -> &'r [A] {
        if stride == 1 {
            return &data[start..start + len];
        }
        let piece = &mut self.piece[..len];
        if self.filled.is_none_or(|(place, filled)| place != start || filled < len) {
            piece.fill(data[start]);
            self.filled = Some((start, len));
        }
        piece
    }
}

/// `len` elements of `data` from `start` on, each `stride` (in two's complement) after the one before.
pub(super) fn gather<'p, A: RawElement>(
    piece: &'p mut [A; STRIDED],
    data: &'p [A],
    start: usize,
    stride: usize,
    len: usize,
) -> &'p [A] {
    if stride == 1 {
        return &data[start..start + len];
    }
    let piece = &mut piece[..len];
    let step = (stride as isize).unsigned_abs();
    match stride {
        0 => piece.fill(data[start]),
        _ if stride == step => copy_steps(piece, data[start..].iter(), step),
        _ => copy_steps(piece, data[..=start].iter().rev(), step),
    }
    piece
}

/// Writes columns, of which at most [`TOGETHER`] are given, as that many rows of `out`, `step` apart.
///
/// Column by column, as they lie in memory: often they are a power of two apart, and of such places the nearest cache holds
/// fewer than there are columns.
fn transpose<'c, A: RawElement>(
    columns: impl Iterator<Item = &'c [A]> + Clone,
    rows: usize,
    out: &mut [A],
    step: usize,
) {
    let mut square = [[A::default(); TOGETHER]; TILE];
    let [top, below @ ..] = &mut square;
    // One element of each first, so that none is waited for before all are asked for.
    let mut width = 0;
    for (place, column) in top.iter_mut().zip(columns.clone()) {
        *place = column[0];
        width += 1;
    }
    for (number, column) in columns.take(width).enumerate() {
        // The whole ones in a loop of known length.
        match column.first_chunk::<TILE>() {
            Some(column) if rows == TILE => {
                below.iter_mut().zip(&column[1..]).for_each(|(row, &value)| row[number] = value);
            }
            _ => below[..rows - 1].iter_mut().zip(&column[1..]).for_each(|(row, &value)| row[number] = value),
        }
    }
    for (row, out) in square[..rows].iter().zip(out.chunks_mut(step)) {
        match out.first_chunk_mut::<TOGETHER>() {
            Some(out) if width == TOGETHER => *out = *row,
            _ => out[..width].copy_from_slice(&row[..width]),
        }
    }
}

/// Every `step`-th of the values, the first first.
fn copy_steps<'v, A: RawElement>(out: &mut [A], values: impl Iterator<Item = &'v A>, step: usize) {
    out.iter_mut().zip(values.step_by(step)).for_each(|(out, &value)| *out = value);
}
