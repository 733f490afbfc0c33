//! Folds over axes.

use bfc_cuda::kernels::{Family, Job, Operand};

use super::elementwise::fill;
use super::launch::{Launcher, kernel, narrowest, origin, output, room, room_for_results, written};
use crate::backend::Reduce;
use crate::backend::blocks::{SIDE_BY_SIDE, cut_of_fold};
use crate::backend::cpu::reduce::is_reduced;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// Sequences of up to so many elements are folded by one thread.
const SHORT: usize = 64;

/// Outputs from which on a thread for each keeps a GPU busy.
const MANY_OUTPUTS: u64 = 1 << 14;

/// See [`Kernel::Reduce`](crate::backend::Kernel::Reduce).
pub(super) fn reduce(
    device: &Launcher,
    op: &'static str,
    (f, divisor): (Reduce, f64),
    input: View<'_>,
    axes: &[bool],
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let dtype = input.dtype();
    let defined = match f {
        Reduce::Max | Reduce::Min => true,
        Reduce::Sum | Reduce::Prod => dtype.is_float() || dtype == DType::I64,
        Reduce::SumMagnitudes | Reduce::SumSquares => dtype.is_float(),
    };
    if !defined {
        return Err(Error::UnsupportedDType { op, dtype });
    }
    if input.layout().shape().elements() == 0 {
        let none = of_none(f, dtype);
        let none = if divisor == 1.0 { none } else { Scalar::Float(none.as_f64() / divisor) };
        return fill(device, op, none, out);
    }
    let cut = cut_of_fold(input.layout().shape(), axes);
    let (slabs, slab) = (cut.slabs(), cut.slab);
    let mut job = folds(&input, axes);
    job.function = match f {
        Reduce::Sum => 0,
        Reduce::Max => 1,
        Reduce::Min => 2,
        Reduce::Prod => 3,
        Reduce::SumMagnitudes => 4,
        Reduce::SumSquares => 5,
    };
    (job.counts[0], job.counts[1], job.counts[2]) = (cut.length as u64, slabs as u64, slab as u64);
    // Of the last job alone: what slabs give is folded first.
    let divides = |job: &mut Job| {
        if divisor != 1.0 {
            (job.counts[3], job.constants[0]) = (1, divisor);
        }
    };
    let bytes = slabs * cut.outputs * dtype.computed_as().size();
    let partial = (slabs > 1).then(|| room(op, workspace, bytes)).transpose()?;
    job.outputs[0] = partial.map_or_else(|| output(out), room_for_results);
    if partial.is_none() {
        divides(&mut job);
    }
    let results = job.count * slabs as u64;
    let on = if partial.is_some() { dtype } else { narrowest([dtype, out.dtype()]) };
    let named = |name| kernel(Family::Reduce, name, on);
    if slab <= SHORT {
        device.each(op, named("reduce_serial"), results, &job)?;
    } else if cut.along_rows {
        device.blocks(op, named("reduce_rows"), results, &job)?;
    } else {
        let blocks = job.count.div_ceil(SIDE_BY_SIDE as u64) * slabs as u64;
        device.blocks(op, named("reduce_columns"), blocks, &job)?;
    }
    let Some(partial) = partial else { return Ok(()) };
    // The slabs' results, in order.
    let mut joined = rows_of(written(partial), [slabs, cut.outputs], out);
    joined.function = match f {
        Reduce::SumMagnitudes | Reduce::SumSquares => 0,
        Reduce::Sum | Reduce::Prod | Reduce::Max | Reduce::Min => job.function,
    };
    divides(&mut joined);
    fold_rows(device, op, &joined, out.dtype())
}

/// See [`Kernel::ArgReduce`](crate::backend::Kernel::ArgReduce).
pub(super) fn arg_reduce(
    device: &Launcher,
    op: &'static str,
    largest: bool,
    input: View<'_>,
    axis: usize,
    out: &ViewMut<'_>,
) -> Result<()> {
    if out.layout().shape().elements() == 0 {
        // The other sizes may overflow when multiplied.
        return Ok(());
    }
    let mut axes = [false; crate::shape::MAX_RANK];
    axes.iter_mut().skip(axis).take(1).for_each(|reduced| *reduced = true);
    let mut job = folds(&input, &axes);
    job.function = u64::from(largest);
    job.counts[0] = input.layout().shape().dims().get(axis).copied().unwrap_or(1) as u64;
    job.outputs[0] = output(out);
    // Threads side by side read sequences that lie side by side; else a block goes along one.
    let along_memory = input.layout().strides().get(axis) == Some(&1);
    if job.counts[0] > SHORT as u64 && (along_memory || job.count < MANY_OUTPUTS) {
        return device.blocks(op, kernel(Family::Reduce, "arg_reduce_rows", input.dtype()), job.count, &job);
    }
    device.each(op, kernel(Family::Reduce, "arg_reduce", input.dtype()), job.count, &job)
}

/// The sums of the columns of `[rows, columns]` in a workspace, in an order that follows from these sizes.
pub(super) fn sum_rows(
    device: &Launcher,
    op: &'static str,
    input: Operand,
    [rows, columns]: [usize; 2],
    out: &ViewMut<'_>,
) -> Result<()> {
    fold_rows(device, op, &rows_of(input, [rows, columns], out), out.dtype())
}

/// Starts such a job.
fn fold_rows(device: &Launcher, op: &'static str, job: &Job, dtype: DType) -> Result<()> {
    if job.counts[0] <= SHORT as u64 {
        return device.each(op, kernel(Family::Reduce, "reduce_serial", dtype), job.count, job);
    }
    let blocks = job.count.div_ceil(SIDE_BY_SIDE as u64);
    device.blocks(op, kernel(Family::Reduce, "reduce_columns", dtype), blocks, job)
}

/// A job that folds the columns of `[rows, columns]` in a workspace.
fn rows_of(input: Operand, [rows, columns]: [usize; 2], out: &ViewMut<'_>) -> Job {
    let mut job = Job::over(columns as u64, &[columns]).with_inner(&[rows]);
    job.inputs[0] = input;
    job.inputs[1] = Operand::strided(0, &[columns]);
    job.outputs[0] = output(out);
    (job.counts[0], job.counts[1], job.counts[2]) = (rows as u64, 1, rows as u64);
    job
}

/// A job over the kept axes of a view, with the reduced ones inside.
fn folds(input: &View<'_>, axes: &[bool]) -> Job {
    let (outer, outer_strides) = part(input.layout(), axes, false);
    let (inner, inner_strides) = part(input.layout(), axes, true);
    let count = outer.iter().product::<usize>() as u64;
    let mut job = Job::over(count, &outer).with_inner(&inner);
    job.inputs[0] = Operand::strided(origin(input), &outer_strides).of_floats(input.dtype() == DType::F32);
    job.inputs[1] = Operand::strided(0, &inner_strides);
    job
}

/// Sizes and strides of the axes that are reduced, or of those that are kept. Neighbours that one stride leads through are one
/// axis: each axis more costs a division for each element.
fn part(layout: &Layout, axes: &[bool], reduced: bool) -> (Vec<usize>, Vec<usize>) {
    let (mut sizes, mut strides): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for (axis, (&size, &stride)) in layout.shape().dims().iter().zip(layout.strides()).enumerate() {
        if is_reduced(axes, axis) != reduced || size == 1 {
            continue;
        }
        match (sizes.last_mut(), strides.last_mut()) {
            (Some(outer), Some(step)) if *step == stride * size => (*outer, *step) = (*outer * size, stride),
            _ => {
                sizes.push(size);
                strides.push(stride);
            }
        }
    }
    (sizes, strides)
}

/// What a fold over no elements gives.
fn of_none(f: Reduce, dtype: DType) -> Scalar {
    let (lowest, highest) = match dtype {
        DType::I64 => (Scalar::Int(i64::MIN), Scalar::Int(i64::MAX)),
        DType::I32 => (Scalar::from(i32::MIN), Scalar::from(i32::MAX)),
        DType::U8 | DType::Bool => (Scalar::Int(0), Scalar::Int(255)),
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => {
            (Scalar::Float(f64::NEG_INFINITY), Scalar::Float(f64::INFINITY))
        }
    };
    match f {
        Reduce::Sum | Reduce::SumMagnitudes | Reduce::SumSquares => Scalar::Int(0),
        Reduce::Prod => Scalar::Int(1),
        Reduce::Max => lowest,
        Reduce::Min => highest,
    }
}
