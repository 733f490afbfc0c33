//! Gather, scatter and one-hot. All indices are checked before a kernel writes.

use half::{bf16, f16};

use super::{Gather, OneHot, ScatterAdd};
use crate::cpu::convert::Half;
use crate::cpu::dispatch::{any, byte_or_number, host, host_mut, number};
use crate::cpu::loop_nest::{LoopNest, Segment};
use crate::cpu::number::{Number, Summed};
use crate::cpu::operands::Source;
use crate::cpu::parallel::{LIGHT, Workers, light_runs};
use crate::cpu::simd::{self, Loop};
use crate::error::{KernelError, Result};
use crate::families::RunCpu;
use crate::families::grid::are_many_per_index;
use crate::layout::Layout;
use crate::shape::{DType, RawElement};
use crate::storage::View;

/// Fails with the first index that is not below `len`. Skips the check if the range of uploaded indices is known.
pub(crate) fn check(op: &'static str, indices: View<'_>, len: usize) -> Result<()> {
    if indices.are_indices_below(len) {
        return Ok(());
    }
    let indices = Source::<i64>::distinct(op, indices)?;
    let mut bad = None;
    indices.blocks::<1024>(0..indices.len(), |_, block| {
        if bad.is_none() && !simd::run(AreBelow { indices: block, len: len as u64 }) {
            bad = block.iter().copied().find(|index| index.cast_unsigned() >= len as u64);
        }
    });
    bad.map_or(Ok(()), |index| Err(KernelError::IndexOutOfRange { op, index, len }))
}

/// Whether all indices are below `len`. Without a branch per element, so that the loop vectorizes.
struct AreBelow<'a> {
    indices: &'a [i64],
    len: u64,
}

impl Loop for AreBelow<'_> {
    type Element = i64;
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        // As unsigned numbers, negative indices exceed every length.
        self.indices.iter().fold(true, |all, index| all & (index.cast_unsigned() < self.len))
    }
}

/// The number of lines that are summed side by side if there are many elements per index.
const LINES: usize = 16;

/// The strides of a layout, with 0 along `axis`, which the index addresses.
fn strides_without_axis(layout: &Layout, axis: usize) -> impl Fn(usize) -> usize + Clone {
    let layout = *layout;
    move |other| if other == axis { 0 } else { layout.strides().get(other).copied().unwrap_or(0) }
}

impl RunCpu for Gather<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { input, indices, axis, ref mut out } = *self;
        let from = input.layout();
        check(op, indices, from.shape().dims().get(axis).copied().unwrap_or(0))?;
        let stride = from.strides().get(axis).copied().unwrap_or(0);
        let len = from.shape().dims().get(axis).copied().unwrap_or(0);
        let (chosen, beside) = (indices.layout(), strides_without_axis(from, axis));
        let axes = chosen.shape().dims().iter().enumerate();
        let nest = LoopNest::from_axes(
            axes.map(|(axis, &size)| (size, [chosen.strides()[axis], beside(axis)])),
            [chosen.offset(), from.offset()],
        );
        let indices = host::<i64>(op, &indices)?;
        any!(out.dtype(), T => {
            let data = host::<T>(op, &input)?;
            workers.chunks(host_mut::<T>(op, out)?, LIGHT, &|start, part| {
                gather_part(data, indices, (len, stride), &nest, start, part);
            });
        });
        Ok(())
    }
}

fn gather_part<T: RawElement>(
    data: &[T],
    indices: &[i64],
    (axis_len, stride): (usize, usize),
    nest: &LoopNest<2>,
    start: usize,
    mut out: &mut [T],
) {
    let [s, t] = nest.inner();
    for Segment { starts: [index, base], len } in nest.segments(start..start + out.len()) {
        let Some(now) = out.split_off_mut(..len) else { return };
        if s == 0 && t == 1 {
            // One index for contiguous elements, as in an embedding lookup.
            let base = base + indices[index] as usize * stride;
            now.copy_from_slice(&data[base..base + len]);
        } else if [s, t, stride] == [1, 0, 1] {
            // Elements of one contiguous row.
            let row = &data[base..base + axis_len];
            let indices = &indices[index..index + len];
            now.iter_mut().zip(indices).for_each(|(out, &chosen)| *out = row[chosen as usize]);
        } else if s == 1 {
            let indices = &indices[index..index + len];
            for (i, (out, &chosen)) in now.iter_mut().zip(indices).enumerate() {
                *out = data[base + i * t + chosen as usize * stride];
            }
        } else {
            for (i, out) in now.iter_mut().enumerate() {
                *out = data[base + i * t + indices[index + i * s] as usize * stride];
            }
        }
    }
}

impl RunCpu for ScatterAdd<'_> {
    /// Uses one thread, because several elements may add to one output, in a fixed order. Sums of
    /// [many elements](are_many_per_index) are in f64, in memory beside the output.
    fn run_cpu(&mut self, _: &Workers, op: &'static str) -> Result<()> {
        let Self { input, indices, axis, ref mut out, .. } = *self;
        let to = out.layout();
        check(op, indices, to.shape().dims().get(axis).copied().unwrap_or(0))?;
        let stride = to.strides().get(axis).copied().unwrap_or(0);
        let (chosen, from, beside) = (indices.layout(), input.layout(), strides_without_axis(to, axis));
        let strides = |axis: usize| [chosen.strides()[axis], from.strides()[axis], beside(axis)];
        let nest = |is_in: &dyn Fn(usize) -> bool| {
            let axes = chosen.shape().dims().iter().enumerate().filter(|(axis, _)| is_in(*axis));
            LoopNest::from_axes(
                axes.map(|(axis, &size)| (size, strides(axis))),
                [chosen.offset(), from.offset(), 0],
            )
        };
        let rows = to.shape().dims().get(axis).copied().unwrap_or(0);
        let len = chosen.shape().dims().get(axis).copied().unwrap_or(0);
        let indices = host::<i64>(op, &indices)?;
        let line = (chosen.shape().elements() > 0 && are_many_per_index(len, rows)).then(|| {
            let [index, value, _] = strides(axis);
            Line { len, rows, strides: [index, value, stride] }
        });
        let nest = nest(&|other| line.is_none() || other != axis);
        macro_rules! add {
            ($I:ty, $T:ty) => {{
                let data = host::<$I>(op, &input)?;
                let out = host_mut::<$T>(op, out)?;
                out.fill(<$T>::ZERO);
                match &line {
                    Some(line) => scatter_many(data, indices, line, &nest, out),
                    None => scatter(data, indices, stride, &nest, out),
                }
                Ok(())
            }};
        }
        match (input.dtype(), out.dtype()) {
            (DType::BF16, DType::F32) => add!(bf16, f32),
            (DType::F16, DType::F32) => add!(f16, f32),
            (_, dtype) => number!(op, dtype, T => add!(T, T)),
        }
    }
}

/// An element that is added to sums of type `T`.
trait Addend<T>: Copy {
    /// Returns the element as a summand.
    fn value(self) -> T;

    /// Adds a row of elements to a row of sums.
    fn add_row(row: &[Self], sums: &mut [T]);
}

impl<T: Number> Addend<T> for T {
    #[inline(always)]
    fn value(self) -> T {
        self
    }

    #[inline(always)]
    fn add_row(row: &[Self], sums: &mut [T]) {
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum = sum.plus(value));
    }
}

/// The number of 16-bit floats that are converted at a time.
const BLOCK: usize = 512;

macro_rules! half_addends {
    ($($half:ty),+) => {$(
        impl Addend<f32> for $half {
            #[inline(always)]
            fn value(self) -> f32 {
                self.to_f32()
            }

            fn add_row(row: &[Self], sums: &mut [f32]) {
                let mut values = [0.0; BLOCK];
                for (row, sums) in row.chunks(BLOCK).zip(sums.chunks_mut(BLOCK)) {
                    let values = &mut values[..row.len()];
                    Half::upcast(row, values);
                    sums.iter_mut().zip(&*values).for_each(|(sum, value)| *sum += value);
                }
            }
        }
    )+};
}

half_addends!(bf16, f16);

fn scatter<T: Number, I: Addend<T>>(
    data: &[I],
    indices: &[i64],
    stride: usize,
    nest: &LoopNest<3>,
    out: &mut [T],
) {
    let [s, t, u] = nest.inner();
    for Segment { starts: [index, from, to], len } in nest.segments(0..nest.len()) {
        if [s, t, u] == [0, 1, 1] {
            let to = to + indices[index] as usize * stride;
            I::add_row(&data[from..from + len], &mut out[to..to + len]);
        } else if [s, t] == [1, 1] {
            let chosen = indices[index..index + len].iter().zip(&data[from..from + len]);
            for (i, (&chosen, &value)) in chosen.enumerate() {
                let place = &mut out[to + i * u + chosen as usize * stride];
                *place = place.plus(value.value());
            }
        } else {
            for i in 0..len {
                let place = &mut out[to + i * u + indices[index + i * s] as usize * stride];
                *place = place.plus(data[from + i * t].value());
            }
        }
    }
}

/// The elements along the axis of the indices.
struct Line {
    len: usize,
    /// The number of valid indices.
    rows: usize,
    /// Of the indices, of the elements to add, and of the output.
    strides: [usize; 3],
}

/// Like [`scatter`], for many elements per index. `lines` are the axes beside that of the indices.
fn scatter_many<T: Summed, I: Addend<T>>(
    data: &[I],
    indices: &[i64],
    line: &Line,
    lines: &LoopNest<3>,
    out: &mut [T],
) {
    let Line { len, rows, strides: [s, t, u] } = *line;
    let mut sums = vec![[T::Sum::ZERO; LINES]; rows];
    for first in (0..lines.len()).step_by(LINES) {
        let starts: Vec<_> = (first..lines.len().min(first + LINES)).map(|line| lines.at(line)).collect();
        sums.fill([T::Sum::ZERO; LINES]);
        for i in 0..len {
            for (line, [index, from, _]) in starts.iter().enumerate() {
                let sum = &mut sums[indices[index + i * s] as usize][line];
                *sum = sum.plus(data[from + i * t].value().widen());
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for ([.., to], &sum) in starts.iter().zip(sums) {
                out[to + row * u] = T::round(sum);
            }
        }
    }
}

impl RunCpu for OneHot<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { indices, ref mut out } = *self;
        let classes = out.layout().shape().dims().last().copied().unwrap_or(0);
        check(op, indices, classes)?;
        let indices = Source::<i64>::new(op, indices)?;
        // Without classes there are no indices; otherwise the check has failed.
        let classes = classes.max(1);
        byte_or_number!(op, out.dtype(), T => {
            let out = host_mut::<T>(op, out)?;
            workers.chunks(out, light_runs(classes) * classes, &|start, part| {
                for (number, row) in (start / classes..).zip(part.chunks_mut(classes)) {
                    row.fill(T::ZERO);
                    row[indices.get(number) as usize] = T::ONE;
                }
            });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
