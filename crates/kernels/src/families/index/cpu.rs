//! Gather, scatter and one-hot. All indices are checked before a kernel writes.

use half::{bf16, f16};

use super::{Gather, OneHot, ScatterAdd};
use crate::cpu::dispatch::{any, host, host_mut, number};
use crate::cpu::elements::Elements;
use crate::cpu::loop_nest::{LoopNest, Segment};
use crate::cpu::number::{Number, Stored, Summed};
use crate::cpu::operands::Source;
use crate::cpu::parallel::{LIGHT, Workers, light_runs};
use crate::cpu::simd::{self, Loop};
use crate::error::{KernelError, Result};
use crate::families::RunCpu;
use crate::families::grid::are_many_per_index;
use crate::layout::Layout;
use crate::shape::{DType, RawElement, Scalar};
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
        let rest = nest(&|other| other != axis);
        let [index, value, _] = strides(axis);
        let line = Line { len, rows, strides: [index, value, stride] };
        let is_many = chosen.shape().elements() > 0 && are_many_per_index(len, rows);
        let scatter =
            Scatter { indices, stride, all: nest(&|_| true), many: is_many.then_some((line, rest)) };
        match input.dtype() {
            // The output is f32.
            DType::F16 => scatter.run::<f32, f16>(host(op, &input)?, host_mut(op, out)?),
            DType::BF16 => scatter.run::<f32, bf16>(host(op, &input)?, host_mut(op, out)?),
            _ => {
                return number!(op, out.dtype(), T => {
                    scatter.run::<T, T>(host(op, &input)?, host_mut(op, out)?);
                    Ok(())
                });
            }
        }
        Ok(())
    }
}

/// The places of a scatter.
struct Scatter<'a> {
    indices: &'a [i64],
    stride: usize,
    /// Of all indices, elements to add, and sums without the axis of the indices.
    all: LoopNest<3>,
    /// The line along the axis of the indices, and the axes beside it, if there are many elements per index.
    many: Option<(Line, LoopNest<3>)>,
}

impl Scatter<'_> {
    fn run<T: Number + Summed, E: Elements<T>>(&self, data: &[E], out: &mut [T]) {
        out.fill(T::ZERO);
        match &self.many {
            Some((line, lines)) => scatter_many(data, self.indices, line, lines, out),
            None => scatter(data, self.indices, self.stride, &self.all, out),
        }
    }
}

fn scatter<T: Number, E: Elements<T>>(
    data: &[E],
    indices: &[i64],
    stride: usize,
    nest: &LoopNest<3>,
    out: &mut [T],
) {
    let [s, t, u] = nest.inner();
    for Segment { starts: [index, from, to], len } in nest.segments(0..nest.len()) {
        if [s, t, u] == [0, 1, 1] {
            let to = to + indices[index] as usize * stride;
            let values = &data[from..from + len];
            simd::zip(&mut out[to..to + len], values, |out, value| *out = out.plus(value.get()));
        } else if [s, t] == [1, 1] {
            let chosen = indices[index..index + len].iter().zip(&data[from..from + len]);
            for (i, (&chosen, &value)) in chosen.enumerate() {
                let place = &mut out[to + i * u + chosen as usize * stride];
                *place = place.plus(value.get());
            }
        } else {
            for i in 0..len {
                let place = &mut out[to + i * u + indices[index + i * s] as usize * stride];
                *place = place.plus(data[from + i * t].get());
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
fn scatter_many<T: Number + Summed, E: Elements<T>>(
    data: &[E],
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
                *sum = sum.plus(data[from + i * t].get().widen());
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
        any!(out.dtype(), T => {
            let (zero, one) = (T::from_scalar(Scalar::Int(0)), T::from_scalar(Scalar::Int(1)));
            let out = host_mut::<T>(op, out)?;
            workers.chunks(out, light_runs(classes) * classes, &|start, part| {
                for (number, row) in (start / classes..).zip(part.chunks_mut(classes)) {
                    row.fill(zero);
                    row[indices.get(number) as usize] = one;
                }
            });
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
