//! Reductions over any set of axes.
//!
//! The order of operations depends only on the shape and the axes, never on strides or threads:
//!
//! - If the last axis is reduced, each output reduces one sequence ([`BlockReducer`]). If kept axes split the sequence into
//!   long rows, each row is reduced by itself, so that memory is read without copies.
//! - If the last axis is kept, neighboring outputs are reduced together, row by row ([`Cascade`]), so that memory is read in
//!   order. The common case is the sum of a bias gradient over the batch.
//! - If there are few outputs, the sequences are split into slabs. Each slab is reduced to a row of the workspace, and then
//!   the rows are reduced in order.

use std::ops::Range;

use half::{bf16, f16};

use super::functions::reduce_functions;
use super::{ArgReduce, Fold};
use crate::cpu::dispatch::{byte_or_number, float, host, host_mut, scratch, sums, unsupported};
use crate::cpu::elements::Elements;
use crate::cpu::fold::{
    BLOCK, BlockReducer, Cascade, FoldLoops, Max, Min, Product, RADIX, Sum, SumMagnitudes, SumSquares, loops,
};
use crate::cpu::halves::{ROW, any_of, parts};
use crate::cpu::loop_nest::{LoopNest, Segment};
use crate::cpu::number::Number;
use crate::cpu::parallel::{LIGHT, Workers, light_runs};
use crate::cpu::simd;
use crate::error::Result;
use crate::families::{Reduce, RunCpu};
use crate::layout::Layout;
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// The number of neighboring outputs that are reduced together if the last axis is kept.
const TILE: usize = 256;

/// The number of neighboring outputs that count as one unit of work.
const UNIT: usize = 128;

/// The target number of tasks, enough for many threads.
const TASKS: usize = 64;

/// The smallest number of elements of a row that is reduced by itself.
const LONG_ROW: usize = 128;

/// The smallest number of work units (rows, or tiles of outputs) for which sequences are not split.
const ENOUGH_OUTPUTS: usize = 16;

/// The split of a reduction into slabs: a pure function of the shape and the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Whether the last axis (of those longer than 1) is reduced.
    pub(crate) along_rows: bool,
    pub(crate) outputs: usize,
    /// Elements per output.
    pub(crate) length: usize,
    /// Elements per output and slab.
    pub(crate) slab: usize,
}

impl Split {
    /// The split for the threads of a CPU.
    pub(crate) fn new(shape: &Shape, axes: &[bool]) -> Self {
        let unsplit = Self::unsplit(shape, axes);
        let (unit, row) = if unsplit.along_rows { (1, BLOCK) } else { (UNIT, 16) };
        let slabs = if unsplit.outputs.div_ceil(unit) >= ENOUGH_OUTPUTS {
            1
        } else {
            (unsplit.outputs.saturating_mul(unsplit.length) / LIGHT).clamp(1, TASKS)
        };
        unsplit.into_slabs(slabs, row)
    }

    /// The reduction without a split: one slab.
    pub(crate) fn unsplit(shape: &Shape, axes: &[bool]) -> Self {
        let (mut outputs, mut length, mut along_rows) = (1_usize, 1_usize, true);
        for (axis, &size) in shape.dims().iter().enumerate() {
            let reduced = is_reduced(axes, axis);
            // Saturates: a size of 0 makes the product 0 even if the others overflow.
            let count = if reduced { &mut length } else { &mut outputs };
            *count = count.saturating_mul(size);
            if size != 1 {
                along_rows = reduced;
            }
        }
        Self { along_rows, outputs, length, slab: length }
    }

    /// Splits into at most `slabs` slabs. Their length is a multiple of `row`, except for the last.
    pub(crate) fn into_slabs(self, slabs: usize, row: usize) -> Self {
        if slabs == 1 {
            return self;
        }
        Self { slab: self.length.div_ceil(slabs).next_multiple_of(row), ..self }
    }

    /// The number of slabs.
    pub(crate) fn slabs(&self) -> usize {
        if self.slab == 0 { 1 } else { self.length.div_ceil(self.slab) }
    }

    /// The number of partial results in the workspace; 0 for a single slab.
    pub(crate) fn workspace_elements(&self) -> usize {
        if self.slabs() > 1 { self.slabs() * self.outputs } else { 0 }
    }
}

pub(crate) fn is_reduced(axes: &[bool], axis: usize) -> bool {
    axes.get(axis).copied().unwrap_or(false)
}

/// See [`FoldWorkspace`](crate::families::FoldWorkspace). Equal for all reductions.
pub(crate) fn workspace(shape: &Shape, axes: &[bool], dtype: DType) -> usize {
    // Few elements are one slab.
    if shape.checked_elements().is_some_and(|elements| elements <= LIGHT) {
        return 0;
    }
    Split::new(shape, axes).workspace_elements().saturating_mul(dtype.size())
}

/// Evaluates an expression with `$T` as the element type, if a domain of reductions contains it.
macro_rules! of_domain {
    (All, $($typed:tt)*) => { byte_or_number!($($typed)*) };
    (Sums, $($typed:tt)*) => { sums!($($typed)*) };
    (Floats, $($typed:tt)*) => { float!($($typed)*) };
}

/// Defines the kernel, with one call for each row of the table.
macro_rules! define_reduce {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident { domain: $domain:ident, fold: $fold:ident, empty: $empty:ident, parts: $parts:ident },
    )*) => {
        impl RunCpu for Fold<'_> {
            fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
                let Self { f, divisor, input, axes, ref mut workspace, ref mut out } = *self;
                let reduced = Reduced { workers, op, input, axes };
                if any_of([input.dtype(), out.dtype()]) {
                    return match f {
                        $(Reduce::$variant => reduced.fold_halves((loops::<f32, $fold>(), divisor), workspace, out),)*
                    };
                }
                match f {
                    $(Reduce::$variant => {
                        of_domain!($domain, op, input.dtype(), T => reduced.fold(loops::<T, $fold>(), workspace, out))
                    })*
                }?;
                if divisor == 1.0 { Ok(()) } else { divide(workers, op, out, divisor) }
            }
        }

        #[cfg(all(test, feature = "cuda"))]
        impl Reduce {
            /// Maps an element as the reduction does before it folds.
            pub(in crate::families) fn element(self, element: f32) -> f32 {
                match self {
                    $(Self::$variant => <$fold as crate::cpu::fold::ReduceOp<f32>>::element(element),)*
                }
            }
        }
    };
}

reduce_functions!(define_reduce);

/// `out[i] = out[i] / divisor`.
fn divide(workers: &Workers, op: &'static str, out: &mut ViewMut<'_>, divisor: f64) -> Result<()> {
    float!(op, out.dtype(), T => {
        let divisor = T::from_f64(divisor);
        workers.chunks(host_mut::<T>(op, out)?, LIGHT, &|_, part| simd::each(part, |x| *x = x.over(divisor)));
        Ok(())
    })
}

/// The input of a reduction.
struct Reduced<'a> {
    workers: &'a Workers,
    op: &'static str,
    input: View<'a>,
    axes: &'a [bool],
}

impl Reduced<'_> {
    fn fold<T: Number>(
        self,
        loops: FoldLoops<T>,
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        let Self { workers, op, input, axes } = self;
        let out = host_mut::<T>(op, out)?;
        if input.layout().shape().elements() == 0 {
            // The product of the other sizes may overflow.
            out.fill(loops.identity);
            return Ok(());
        }
        if let Some(elements) = input.host_contiguous::<T>()
            && fold_few(loops, elements, (input.layout().shape(), axes), out)
        {
            return Ok(());
        }
        let split = Split::new(input.layout().shape(), axes);
        let nests = Nests::new(input.layout(), axes);
        let sequences = Sequences { loops, data: host::<T>(op, &input)?, nests };
        let partials = scratch::<T>(op, workspace, split.workspace_elements())?;
        run(workers, &sequences, split, partials, out);
        Ok(())
    }

    /// Like [`fold`](Self::fold) and a division, if the input or the output are 16-bit floats. Rounds once.
    fn fold_halves(
        self,
        f: (FoldLoops<f32>, f64),
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        match self.input.dtype() {
            DType::F32 => self.fold_as_f32::<f32>(f, workspace, out),
            DType::F16 => self.fold_as_f32::<f16>(f, workspace, out),
            DType::BF16 => self.fold_as_f32::<bf16>(f, workspace, out),
            dtype => Err(unsupported(self.op, dtype)),
        }
    }

    fn fold_as_f32<E: Elements<f32>>(
        self,
        (loops, divisor): (FoldLoops<f32>, f64),
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        let Self { workers, op, input, axes } = self;
        let shape = input.layout().shape();
        let divide = |results: &mut [f32]| {
            if divisor != 1.0 {
                let divisor = divisor as f32;
                simd::each(results, |x| *x /= divisor);
            }
        };
        if shape.elements() == 0 {
            return parts(workers, op, [out], [LIGHT], &|_, [mut part]| {
                let mut results = [loops.identity; TILE];
                divide(&mut results);
                for start in (0..part.len()).step_by(TILE) {
                    part.store(start, &results[..TILE.min(part.len() - start)]);
                }
            });
        }
        let split = Split::new(shape, axes);
        let sequences =
            Sequences { loops, data: host::<E>(op, &input)?, nests: Nests::new(input.layout(), axes) };
        let partials = scratch::<f32>(op, workspace, split.workspace_elements())?;
        fold_slabs(workers, &sequences, split, partials);
        let partials = &*partials;
        let chunk = if partials.is_empty() { chunk_of_outputs(split) } else { LIGHT };
        parts(workers, op, [out], [chunk], &|number, [mut part]| {
            let mut results = [0.0; TILE];
            for start in (0..part.len()).step_by(TILE) {
                let results = &mut results[..TILE.min(part.len() - start)];
                let first = number * chunk + start;
                if partials.is_empty() {
                    sequences.fold(split.along_rows, first, 0..split.length, results);
                } else {
                    results.fill(loops.identity);
                    for slab in partials.chunks(split.outputs) {
                        (loops.fold_into)(results, &slab[first..first + results.len()]);
                    }
                }
                divide(results);
                part.store(start, results);
            }
        })
    }
}

/// Reduces few contiguous elements to one output or over the leading axes. Returns whether it did. The order is that of the
/// general case, whose setup takes longer than the additions.
fn fold_few<T: Number>(
    loops: FoldLoops<T>,
    elements: &[T],
    (shape, axes): (&Shape, &[bool]),
    out: &mut [T],
) -> bool {
    // Few elements are one slab.
    if elements.len() > LIGHT {
        return false;
    }
    if out.len() == 1 {
        (loops.fold_rows)(out, elements, 0, elements.len());
        return true;
    }
    // The order depends on the last axis whose size is not 1.
    let rows_are_kept = shape.dims().last().is_some_and(|&size| size != 1) && axes.last() == Some(&false);
    let few = elements.len() / out.len() < RADIX
        && rows_are_kept
        && axes.is_sorted_by(|before, after| before >= after);
    if few {
        out.fill(loops.identity);
        elements.chunks_exact(out.len()).for_each(|row| (loops.fold_row)(out, row));
    }
    few
}

/// The number of outputs in a chunk.
const fn chunk_of_outputs(split: Split) -> usize {
    let runs = light_runs(split.length);
    if split.along_rows { runs } else { runs.next_multiple_of(TILE) }
}

/// Reduces each slab to a row of the workspace, which is empty for a single slab.
fn fold_slabs<T: Number, E: Elements<T>>(
    workers: &Workers,
    sequences: &Sequences<'_, T, E>,
    split: Split,
    partials: &mut [T],
) {
    if partials.is_empty() {
        return;
    }
    workers.chunks(partials, split.outputs, &|first, part| {
        let start = first / split.outputs * split.slab;
        sequences.fold(split.along_rows, 0, start..split.length.min(start + split.slab), part);
    });
}

fn run<T: Number>(
    workers: &Workers,
    sequences: &Sequences<'_, T, T>,
    split: Split,
    partials: &mut [T],
    out: &mut [T],
) {
    if partials.is_empty() {
        workers.chunks(out, chunk_of_outputs(split), &|first, part| {
            sequences.fold(split.along_rows, first, 0..split.length, part);
        });
        return;
    }
    fold_slabs(workers, sequences, split, partials);
    out.fill(sequences.loops.identity);
    partials.chunks(split.outputs).for_each(|row| (sequences.loops.fold_into)(out, row));
}

/// A layout of at least one element, split into three loop nests. An element's offset is the sum of its offsets in the
/// nests.
#[derive(Debug)]
struct Nests {
    /// The kept axes before the last reduced one, with the layout's offset.
    outer: LoopNest<1>,
    /// The kept axes after the last reduced one.
    inner: LoopNest<1>,
    reduced: LoopNest<1>,
    /// The number of elements that are reduced by themselves: those of the last reduced axes without a kept axis between
    /// them. Depends only on the shape and the axes.
    row: usize,
}

impl Nests {
    fn new(layout: &Layout, axes: &[bool]) -> Self {
        let shape = layout.shape();
        // Ignores reduced axes of size 1, so that they do not separate the kept axes.
        let reduces = |axis: usize| is_reduced(axes, axis) && shape[axis] != 1;
        let after = (0..shape.rank()).rev().find(|&axis| reduces(axis)).map_or(0, |axis| axis + 1);
        let (mut outer, mut inner) = (LoopNest::scalar([layout.offset()]), LoopNest::scalar([0]));
        let mut reduced = LoopNest::scalar([0]);
        let last_axes = (0..after).rev().take_while(|&axis| is_reduced(axes, axis) || shape[axis] == 1);
        let row = last_axes.map(|axis| shape[axis]).product();
        for (axis, (&size, &stride)) in shape.dims().iter().zip(layout.strides()).enumerate() {
            let nest = match is_reduced(axes, axis) {
                true => &mut reduced,
                false if axis < after => &mut outer,
                false => &mut inner,
            };
            nest.push_axis(size, [stride]);
        }
        Self { outer, inner, reduced, row }
    }
}

/// The sequences to reduce, one for each output.
#[derive(Debug)]
struct Sequences<'a, T, E> {
    loops: FoldLoops<T>,
    data: &'a [E],
    nests: Nests,
}

impl<T: Number, E: Elements<T>> Sequences<'_, T, E> {
    /// Reduces the elements with numbers in `range` of the sequences, starting at sequence number `first`.
    fn fold(&self, along_rows: bool, first: usize, range: Range<usize>, out: &mut [T]) {
        if range.is_empty() {
            out.fill(self.loops.identity);
        } else if along_rows {
            self.fold_rows(first, range, out);
        } else {
            self.fold_columns(first, range, out);
        }
    }

    /// Reduces one sequence after the other. The last axis longer than 1 is reduced, so no kept axis follows it.
    fn fold_rows(&self, first: usize, range: Range<usize>, mut out: &mut [T]) {
        let Nests { outer, reduced, row, .. } = &self.nests;
        let [step] = outer.inner();
        let is_one_row = *row < LONG_ROW || *row == reduced.len();
        let side_by_side = is_one_row && reduced.is_line() && reduced.inner() == [1];
        for Segment { starts: [base], len } in outer.segments(first..first + out.len()) {
            let Some(now) = out.split_off_mut(..len) else { return };
            let first = base + range.start;
            if let Some(data) = E::same(self.data).filter(|_| side_by_side) {
                (self.loops.fold_rows)(now, &data[first..], step, range.len());
            } else if side_by_side && range.len() <= ROW {
                self.fold_loaded_rows(now, first, step, range.len());
            } else {
                let mut buffer = [T::ZERO; BLOCK];
                for (number, out) in now.iter_mut().enumerate() {
                    *out = self.fold_sequence(base + number * step, range.clone(), &mut buffer);
                }
            }
        }
    }

    /// Reduces rows of at most [`ROW`] elements after a conversion, several at a time.
    fn fold_loaded_rows(&self, out: &mut [T], first: usize, step: usize, len: usize) {
        let mut loaded = [T::ZERO; ROW];
        for (number, out) in out.chunks_mut(ROW / len.max(1)).enumerate() {
            let start = first + number * (ROW / len.max(1)) * step;
            E::load_rows(&self.data[start..], step, [out.len(), len], &mut loaded, len);
            (self.loops.fold_rows)(out, &loaded, len, len);
        }
    }

    /// Reduces one sequence that is not contiguous, row by row if its rows are long.
    fn fold_sequence(&self, base: usize, range: Range<usize>, buffer: &mut [T; BLOCK]) -> T {
        let Nests { reduced, row, .. } = &self.nests;
        if *row < LONG_ROW {
            return self.fold_row(base, range, buffer);
        }
        let mut rows = Cascade::<T, 1>::new(self.loops, 1);
        let has_rows = reduced.inner() == [1] && reduced.inner_len() == *row;
        if let Some(data) = E::same(self.data).filter(|_| has_rows) {
            for Segment { starts: [place], len } in reduced.segments(range) {
                let mut out = [self.loops.identity];
                (self.loops.fold_rows)(&mut out, &data[base + place..], 0, len);
                rows.push_folded(&out);
            }
        } else {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min((start / row + 1) * row);
                rows.push_folded(&[self.fold_row(base, start..end, buffer)]);
                start = end;
            }
        }
        rows.finish()[0]
    }

    /// Reduces a part of a sequence in blocks.
    fn fold_row(&self, base: usize, range: Range<usize>, buffer: &mut [T; BLOCK]) -> T {
        let reduced = &self.nests.reduced;
        let [stride] = reduced.inner();
        let mut folder = BlockReducer::new(self.loops);
        let mut filled = 0;
        for Segment { starts: [place], len } in reduced.segments(range) {
            let (mut place, mut left) = (base + place, len);
            while left > 0 {
                if filled == 0
                    && left >= BLOCK
                    && stride == 1
                    && let Some(data) = E::same(self.data)
                {
                    folder.push(&data[place..place + BLOCK]);
                    (place, left) = (place + BLOCK, left - BLOCK);
                    continue;
                }
                let len = left.min(BLOCK - filled);
                E::load_steps(&self.data[place..], stride, &mut buffer[filled..filled + len]);
                (place, left, filled) = (place + len * stride, left - len, filled + len);
                if filled == BLOCK {
                    folder.push(buffer);
                    filled = 0;
                }
            }
        }
        folder.push(&buffer[..filled]);
        folder.finish()
    }

    /// Reduces neighboring sequences together, in tiles.
    fn fold_columns(&self, first: usize, range: Range<usize>, mut out: &mut [T]) {
        let Nests { outer, inner, reduced, .. } = &self.nests;
        let [stride] = reduced.inner();
        let mut output = first;
        let mut buffer = [T::ZERO; TILE];
        while !out.is_empty() {
            let [base] = outer.at(output / inner.len());
            let column = output % inner.len();
            let width = TILE.min(inner.len() - column).min(out.len());
            let Some(now) = out.split_off_mut(..width) else { return };
            output += width;

            let columns = Columns::new(inner, column, width);
            let mut cascade = Cascade::<T, TILE>::new(self.loops, width);
            for Segment { starts: [place], len } in reduced.segments(range.clone()) {
                if let Some(column) = columns.side_by_side() {
                    let first = base + place + column;
                    match E::same(self.data) {
                        Some(data) => cascade.push_rows(&data[first..], stride, len),
                        None => self.push_loaded_rows(&mut cascade, [first, stride], [len, width]),
                    }
                    continue;
                }
                for row in 0..len {
                    let row = &self.data[base + place + row * stride..];
                    cascade.push(columns.of(row, &mut buffer));
                }
            }
            now.copy_from_slice(cascade.finish());
        }
    }

    /// Adds rows after a conversion.
    #[inline(never)]
    fn push_loaded_rows(
        &self,
        cascade: &mut Cascade<T, TILE>,
        [first, stride]: [usize; 2],
        [rows, width]: [usize; 2],
    ) {
        let mut loaded = [[T::ZERO; TILE]; RADIX];
        for row in (0..rows).step_by(RADIX) {
            let count = RADIX.min(rows - row);
            let data = &self.data[first + row * stride..];
            E::load_rows(data, stride, [count, width], loaded.as_flattened_mut(), TILE);
            cascade.push_rows(loaded.as_flattened(), TILE, count);
        }
    }
}

/// The offsets of a tile's elements from the start of its row.
#[derive(Debug)]
struct Columns {
    places: [usize; TILE],
    width: usize,
    side_by_side: bool,
}

impl Columns {
    // Not inlined, so that it is compiled once for all operations and types.
    #[inline(never)]
    fn new(inner: &LoopNest<1>, first: usize, width: usize) -> Self {
        let mut places = [0; TILE];
        let [stride] = inner.inner();
        let mut rest = &mut places[..width];
        for Segment { starts: [start], len } in inner.segments(first..first + width) {
            let Some(now) = rest.split_off_mut(..len) else { break };
            if len == width && (stride == 1 || width == 1) {
                // Only the first place is needed.
                now[0] = start;
                return Self { places, width, side_by_side: true };
            }
            now.iter_mut().enumerate().for_each(|(i, place)| *place = start + i * stride);
        }
        Self { places, width, side_by_side: false }
    }

    /// If the tile's elements are contiguous: the offset of the first from the start of its row.
    fn side_by_side(&self) -> Option<usize> {
        self.side_by_side.then_some(self.places[0])
    }

    /// Copies the tile's elements of one row.
    fn of<'b, T: Number, E: Elements<T>>(&self, row: &[E], buffer: &'b mut [T; TILE]) -> &'b [T] {
        let places = &self.places[..self.width];
        buffer.iter_mut().zip(places).for_each(|(value, &place)| *value = row[place].get());
        &buffer[..self.width]
    }
}

impl RunCpu for ArgReduce<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { largest, input, axis, ref mut out } = *self;
        let layout = input.layout();
        let length = layout.shape().dims().get(axis).copied().unwrap_or(0);
        let stride = layout.strides().get(axis).copied().unwrap_or(0);
        let kept = LoopNest::from_axes(
            (0..layout.shape().rank())
                .filter(|&kept| kept != axis)
                .map(|kept| (layout.shape()[kept], [layout.strides()[kept]])),
            [layout.offset()],
        );
        let out = host_mut::<i64>(op, out)?;
        let lines = Lines { workers, kept, stride, length, largest };
        match input.dtype() {
            DType::F16 => lines.first_extremes::<f32, _>(host::<f16>(op, &input)?, out),
            DType::BF16 => lines.first_extremes::<f32, _>(host::<bf16>(op, &input)?, out),
            dtype => {
                return byte_or_number!(op, dtype, T => {
                    lines.first_extremes::<T, T>(host(op, &input)?, out);
                    Ok(())
                });
            }
        }
        Ok(())
    }
}

/// The lines along the axis of an [`ArgReduce`].
struct Lines<'a> {
    workers: &'a Workers,
    /// The other axes.
    kept: LoopNest<1>,
    stride: usize,
    length: usize,
    largest: bool,
}

impl Lines<'_> {
    /// Finds the first largest or smallest element of each line.
    fn first_extremes<T: Number, E: Elements<T>>(&self, data: &[E], out: &mut [i64]) {
        let Self { workers, kept, stride, length, largest } = self;
        workers.chunks(out, light_runs(*length), &|first, part| {
            for (output, out) in (first..).zip(part) {
                let [start] = kept.at(output);
                let line = (0..*length).map(|i| data[start + i * stride].get());
                *out = if *largest { first_of(line, |a, b| a > b) } else { first_of(line, |a, b| a < b) };
            }
        });
    }
}

/// The index of the first element that no other element beats; NaN beats every number.
fn first_of<T: Number>(line: impl Iterator<Item = T>, beats: impl Fn(T, T) -> bool) -> i64 {
    let mut best: Option<(i64, T)> = None;
    for (index, value) in (0..).zip(line) {
        if best.is_none_or(|(_, best)| beats(value, best) || value.is_nan()) {
            best = Some((index, value));
            if value.is_nan() {
                break;
            }
        }
    }
    best.map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests;
