//! The elements of one view.

use std::ops::Range;

use crate::cpu::dispatch::host;
use crate::cpu::loop_nest::{LoopNest, Segment, TILE, Tile};
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::RawElement;
use crate::storage::View;

/// The number of elements that are copied at a time if they are not contiguous.
pub(super) const PIECE: usize = 1024;

/// The number of elements that are copied at a time if the stride is larger than 1.
pub(super) const STRIDED: usize = 32;

/// The most elements that are copied to a short piece: a long one costs more to create than their loop.
const SHORT: usize = 64;

/// The number of rows that are processed together if they are columns in memory: those of one cache line.
const TILE_ROWS: usize = 16;

/// A loop over slices of an output and of a source.
type Each<'f, U, A> = dyn Fn(&mut [U], &[A]) + Sync + 'f;

/// The elements of one view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a, A> {
    data: &'a [A],
    nest: LoopNest<1>,
}

impl<'a, A: RawElement> Source<'a, A> {
    /// Creates a source of the elements of `data` that a loop nest visits.
    pub(super) const fn along(data: &'a [A], nest: LoopNest<1>) -> Self {
        Self { data, nest }
    }

    /// Creates a source of the elements of `view`, which must have type `A`.
    pub(crate) fn new(op: &'static str, view: View<'a>) -> Result<Self> {
        Ok(Self::of(host(op, &view)?, view.layout()))
    }

    /// Creates a source from a host slice. See [`Pair::of`](super::Pair::of).
    #[inline(always)]
    pub(crate) fn of(data: &'a [A], layout: &Layout) -> Self {
        Self { data, nest: LoopNest::new([layout]) }
    }

    /// Creates a source of the elements of `view`, without the repetitions of broadcasting.
    pub(crate) fn distinct(op: &'static str, view: View<'a>) -> Result<Self> {
        let layout = view.layout();
        let axes = layout.shape().dims().iter().zip(layout.strides());
        let distinct = axes.filter(|&(&size, &stride)| stride != 0 || size == 0);
        let nest = LoopNest::from_axes(distinct.map(|(&size, &stride)| (size, [stride])), [layout.offset()]);
        Ok(Self { data: host(op, &view)?, nest })
    }

    /// Creates a source of the elements of `view`, in reverse order along the `flipped` axes.
    pub(crate) fn flipped(op: &'static str, view: View<'a>, flipped: &[bool]) -> Result<Self> {
        let layout = view.layout();
        let axes = layout.shape().dims().iter().zip(layout.strides()).zip(flipped);
        let last = axes.clone().filter(|&(_, &flipped)| flipped).map(|((&size, &stride), _)| {
            // Wraps for an empty shape, of which no element is visited.
            size.wrapping_sub(1).wrapping_mul(stride)
        });
        let start = last.fold(layout.offset(), usize::wrapping_add);
        let axes = axes.map(|((&size, &stride), &flipped)| {
            (size, [if flipped { stride.wrapping_neg() } else { stride }])
        });
        Ok(Self { data: host(op, &view)?, nest: LoopNest::from_axes(axes, [start]) })
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.nest.len()
    }

    /// Element number `index`.
    pub(crate) fn get(&self, index: usize) -> A {
        let place = self.nest.at_line(index).unwrap_or_else(|| self.nest.at(index));
        self.data[place[0]]
    }

    /// The elements with numbers in `range` as a slice, if they are contiguous.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<&'a [A]> {
        // The most common case, and called for each row.
        if let Some([offset]) = self.nest.contiguous_offsets() {
            return Some(&self.data[offset + range.start..offset + range.end]);
        }
        let segment = self.nest.segments(range.clone()).next();
        match segment {
            None => Some(&[]),
            Some(Segment { starts: [start], len }) if self.nest.inner() == [1] && len == range.len() => {
                Some(&self.data[start..start + len])
            }
            Some(_) => None,
        }
    }

    /// The elements with numbers in `range` as a slice, copied to `buffer` unless they are contiguous.
    pub(crate) fn part<'b>(&'b self, range: Range<usize>, buffer: &'b mut Vec<A>) -> &'b [A] {
        self.slice(range.clone()).unwrap_or_else(|| {
            buffer.resize(range.len(), A::default());
            self.load(range.start, buffer);
            buffer
        })
    }

    /// Copies elements to `out`, starting at number `start`.
    pub(crate) fn load(&self, start: usize, mut out: &mut [A]) {
        let range = start..start + out.len();
        if let Some([offset]) = self.nest.contiguous_offsets() {
            out.copy_from_slice(&self.data[offset + range.start..offset + range.end]);
            return;
        }
        if let Some((offset, times)) = self.nest.repeats() {
            // `out` may start in the middle of a repetition.
            let head = (range.start.next_multiple_of(times) - range.start).min(out.len());
            let (first, rest) = out.split_at_mut(head);
            let values = &self.data[offset + range.start / times..];
            if let Some(&value) = values.first() {
                first.fill(value);
            }
            simd::zip_repeated(rest, &values[usize::from(head > 0)..], times, |out, value| *out = value);
            return;
        }
        let [stride] = self.nest.inner();
        let stride = stride as isize;
        if stride > 1 && self.nest.is_line() {
            let [first] = self.nest.at(range.start);
            simd::zip_step(
                out,
                self.data.get(first..).unwrap_or_default(),
                stride.unsigned_abs(),
                |out, x| *out = x,
            );
            return;
        }
        if stride.unsigned_abs() > 1 {
            self.nest.tiles(range, TILE_ROWS, &mut |tile| match tile.columns(0) {
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
        for Segment { starts: [a], len } in self.nest.segments(range) {
            let Some(now) = out.split_off_mut(..len) else { return };
            match stride {
                1 => now.copy_from_slice(&self.data[a..a + len]),
                0 => now.fill(self.data[a]),
                _ => simd::zip_back(now, &self.data[a + 1 - len..=a], |out, value| *out = value),
            }
        }
    }

    /// The number of rows to process together, because neighboring rows share cache lines.
    pub(crate) fn rows_per_tile(&self) -> usize {
        let [stride] = self.nest.inner();
        if stride > 1 { TILE_ROWS } else { 1 }
    }

    /// Calls `f` with the elements with numbers in `range`, in order, as slices of `N` elements. The last may have fewer.
    pub(crate) fn blocks<const N: usize>(&self, range: Range<usize>, mut f: impl FnMut(Range<usize>, &[A])) {
        self.visit_blocks::<N>(range, &mut f);
    }

    /// [`blocks`](Self::blocks) with a trait object, so that it is compiled once.
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

    /// Calls `f` with each element of `out` and the source's element, starting at number `start`.
    pub(crate) fn each<U>(&self, start: usize, out: &mut [U], f: impl Fn(&mut U, A) + Sync) {
        self.run(start, out, &|out, a| simd::zip(out, a, &f));
    }

    /// [`each`](Self::each) with the loop over slices, compiled once for all functions.
    fn run<U>(&self, start: usize, out: &mut [U], each: &Each<'_, U, A>) {
        let len = out.len();
        self.pieces(start, len, &mut |first, a| each(&mut out[first..first + a.len()], a));
    }

    /// Calls `visit` with slices of `len` elements in total, as [`Pair::pieces`](super::Pair).
    fn pieces(&self, start: usize, len: usize, visit: &mut dyn FnMut(usize, &[A])) {
        if let Some(values) = self.slice(start..start + len) {
            return visit(0, values);
        }
        if len <= SHORT {
            let mut piece = [A::default(); SHORT];
            self.load(start, &mut piece[..len]);
            return visit(0, &piece[..len]);
        }
        let [stride] = self.nest.inner();
        if (stride as isize).unsigned_abs() > 1 {
            let mut piece = [A::default(); STRIDED];
            self.nest.tiles(start..start + len, STRIDED, &mut |tile| {
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

    /// `out[i] = f(a[i])`.
    pub(crate) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A) -> U + Sync,
    ) {
        self.run_chunks(workers, chunk, out, &|out, a| simd::zip(out, a, |out, a| *out = f(a)));
    }

    /// [`map`](Self::map) with the loop over slices, compiled once for all functions.
    fn run_chunks<U: Send>(&self, workers: &Workers, chunk: usize, out: &mut [U], each: &Each<'_, U, A>) {
        workers.chunks(out, chunk, &|start, part| self.run(start, part, each));
    }
}

/// Reads the elements of a view as slices, copied unless they are contiguous.
pub(super) struct Reader<'a, A> {
    source: Source<'a, A>,
    piece: [A; PIECE],
}

impl<'a, A: RawElement> Reader<'a, A> {
    pub(super) fn new(source: Source<'a, A>) -> Self {
        Self { source, piece: [A::default(); PIECE] }
    }

    /// The elements with numbers in `range`, at most [`PIECE`] of them.
    pub(super) fn read(&mut self, range: Range<usize>) -> &[A] {
        if let Some(values) = self.source.slice(range.clone()) {
            return values;
        }
        let piece = &mut self.piece[..range.len()];
        self.source.load(range.start, piece);
        piece
    }
}

/// Reads parts of rows with stride 1 or 0 as slices. With stride 0, the slice repeats one element.
pub(super) struct Row<A> {
    /// The offset of the element that fills the piece, and the number of its copies.
    filled: Option<(usize, usize)>,
    piece: [A; PIECE],
}

impl<A: RawElement> Row<A> {
    pub(super) fn new() -> Self {
        Self { filled: None, piece: [A::default(); PIECE] }
    }

    /// `len` elements of `data`, starting at `start`, with stride 1 or 0. With stride 0, `len` is at most [`PIECE`].
    pub(super) fn read<'r>(&'r mut self, data: &'r [A], start: usize, stride: usize, len: usize) -> &'r [A] {
        if stride == 1 {
            return &data[start..start + len];
        }
        let piece = &mut self.piece[..len];
        if self.filled.is_none_or(|(place, filled)| place != start || filled < len) {
            let value = data[start];
            simd::each(piece, |element| *element = value);
            self.filled = Some((start, len));
        }
        piece
    }
}

/// Copies `len` elements of `data`, starting at `start`, with a stride in two's complement.
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

/// The elements of one operand of a tile: copied column by column if the columns are contiguous in memory, else row by
/// row when they are needed.
pub(super) struct TileRows<A> {
    rows: [[A; STRIDED]; TILE],
    transposed: bool,
}

impl<A: RawElement> TileRows<A> {
    pub(super) fn new() -> Self {
        Self { rows: [[A::default(); STRIDED]; TILE], transposed: false }
    }

    /// Starts a new tile.
    pub(super) fn load<const N: usize>(
        &mut self,
        data: &[A],
        tile: &Tile<'_, N>,
        operand: usize,
        stride: usize,
    ) {
        let columns = tile.columns(operand).filter(|_| stride > 1 && (stride as isize) > 0);
        self.transposed = columns.is_some();
        let Some((start, count)) = columns else { return };
        for first in (0..tile.width).step_by(TILE_ROWS) {
            let columns =
                data[start + first * stride..].chunks(stride).take(TILE_ROWS.min(tile.width - first));
            transpose(columns, count, &mut self.rows.as_flattened_mut()[first..], STRIDED);
        }
    }

    /// Row number `row` of the tile, which starts at `start` in the operand.
    pub(super) fn row<'r>(
        &'r mut self,
        row: usize,
        data: &'r [A],
        (start, stride): (usize, usize),
        len: usize,
    ) -> &'r [A] {
        let piece = &mut self.rows[row];
        if self.transposed { &piece[..len] } else { gather(piece, data, start, stride, len) }
    }
}

/// Transposes a tile: writes at most [`TILE_ROWS`] columns as rows of `out` with stride `step`.
///
/// Reads column by column. Columns are often a power of two apart, and the L1 cache holds only few such lines.
fn transpose<'c, A: RawElement>(
    columns: impl Iterator<Item = &'c [A]> + Clone,
    rows: usize,
    out: &mut [A],
    step: usize,
) {
    let mut square = [[A::default(); TILE_ROWS]; TILE];
    let [top, below @ ..] = &mut square;
    // Reads one element of each column first, so that the cache misses overlap.
    let mut width = 0;
    for (place, column) in top.iter_mut().zip(columns.clone()) {
        *place = column[0];
        width += 1;
    }
    for (number, column) in columns.take(width).enumerate() {
        // Full columns use a loop of constant length.
        match column.first_chunk::<TILE>() {
            Some(column) if rows == TILE => {
                below.iter_mut().zip(&column[1..]).for_each(|(row, &value)| row[number] = value);
            }
            _ => below[..rows - 1].iter_mut().zip(&column[1..]).for_each(|(row, &value)| row[number] = value),
        }
    }
    for (row, out) in square[..rows].iter().zip(out.chunks_mut(step)) {
        match out.first_chunk_mut::<TILE_ROWS>() {
            Some(out) if width == TILE_ROWS => *out = *row,
            _ => out[..width].copy_from_slice(&row[..width]),
        }
    }
}

/// Copies every `step`-th value, starting with the first.
fn copy_steps<'v, A: RawElement>(out: &mut [A], values: impl Iterator<Item = &'v A>, step: usize) {
    out.iter_mut().zip(values.step_by(step)).for_each(|(out, &value)| *out = value);
}
