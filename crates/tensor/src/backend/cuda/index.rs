//! Elements chosen by indices that are data. All indices are checked before anything is written.

use bfc_cuda::kernels::{ElementType, Family, Job, Kernel, Operand, Output};

use super::elementwise::fill;
use super::launch::{Launcher, kernel, narrowest, number, operand, origin, output, over, room, strided};
use super::sort::merge;
use crate::backend::blocks::sorts_indices;
use crate::error::{Error, Result};
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// Waits for the device, which looks for an index that is not below `len`: an error for the first. Of those that the host
/// has written, it is known.
pub(super) fn check(device: &Launcher, op: &'static str, indices: &View<'_>, len: usize) -> Result<()> {
    const NONE: u64 = u64::MAX;
    let mut job = over(indices.layout());
    if job.count == 0 || indices.are_indices_below(len) {
        return Ok(());
    }
    job.inputs[0] = operand(indices);
    job.counts[0] = len as u64;
    let first = device.ask(op, Kernel::new(Family::Index, "check", ElementType::I64), job, NONE)?;
    if first == NONE {
        return Ok(());
    }
    let place = indices.layout().positions().nth(first as usize).unwrap_or(0);
    let mut index = [0; 8];
    device.download(op, indices, place * size_of::<i64>(), &mut index)?;
    Err(Error::IndexOutOfRange { op, index: i64::from_ne_bytes(index), len })
}

/// Strides with that of one axis left out, as 0.
fn beside(view: &View<'_>, axis: usize) -> Operand {
    let mut operand = strided(view);
    operand.strides[axis] = 0;
    operand
}

fn stride(view: &View<'_>, axis: usize) -> u64 {
    view.layout().strides().get(axis).copied().unwrap_or(0) as u64
}

/// See [`Kernel::Gather`](crate::backend::Kernel::Gather).
pub(super) fn gather(
    device: &Launcher,
    op: &'static str,
    input: View<'_>,
    indices: View<'_>,
    axis: usize,
    out: &ViewMut<'_>,
) -> Result<()> {
    check(device, op, &indices, input.layout().shape().dims().get(axis).copied().unwrap_or(0))?;
    let mut job = over(indices.layout());
    job.inputs = [beside(&input, axis), operand(&indices), Operand::default()];
    job.outputs[0] = output(out);
    job.counts[1] = stride(&input, axis);
    device.ahead(op, kernel(Family::Index, "gather", out.dtype()), job.count, &job)
}

/// See [`Kernel::ScatterAdd`](crate::backend::Kernel::ScatterAdd). Halves are summed in f32: only with a workspace, where sums are made
/// before they are written, may `out` hold halves.
pub(super) fn scatter_add(
    device: &Launcher,
    op: &'static str,
    input: View<'_>,
    indices: View<'_>,
    axis: usize,
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    number(op, out.dtype())?;
    let to = out.as_view();
    check(device, op, &indices, to.layout().shape().dims().get(axis).copied().unwrap_or(0))?;
    fill(device, op, Scalar::Int(0), out)?;
    let chosen = *indices.layout().shape();
    if chosen.elements() == 0 {
        // The other sizes may overflow when multiplied.
        return Ok(());
    }
    let others = || chosen.dims().iter().enumerate().filter(|&(other, _)| other != axis);
    let dims: Vec<usize> = others().map(|(_, &size)| size).collect();
    let lines = |view: &View<'_>| {
        let strides: Vec<usize> = others().map(|(other, _)| view.layout().strides()[other]).collect();
        Operand::strided(origin(view), &strides).of_floats(view.dtype() == DType::F32)
    };
    let mut job = Job::over(dims.iter().product::<usize>() as u64, &dims);
    job.inputs = [lines(&input), lines(&indices), lines(&to)];
    let along = chosen.dims().get(axis).copied().unwrap_or(1);
    (job.counts[0], job.counts[1]) = (along as u64, stride(&input, axis));
    (job.counts[2], job.counts[3]) = (stride(&indices, axis), stride(&to, axis));
    let dtype = narrowest([out.dtype(), input.dtype()]);
    if !sorts_indices(indices.layout(), axis) {
        return device.each(op, kernel(Family::Index, "scatter_add", dtype), job.count, &job);
    }
    let bytes = along * size_of::<i64>();
    let order = output(room(op, workspace, 2 * bytes)?);
    let mut one_line = Job::over(along as u64, &[]);
    one_line.inputs[0] = Operand::strided(origin(&indices), &[]);
    (one_line.counts[0], one_line.counts[2]) = (along as u64, job.counts[2]);
    let beside = Output::new(order.address + bytes as u64);
    merge(device, op, DType::I64, one_line, [order, beside])?;
    job.also[0] = order.address;
    job.count *= along as u64;
    device.each(op, kernel(Family::Index, "scatter_add_sorted", dtype), job.count, &job)
}

/// See [`Kernel::OneHot`](crate::backend::Kernel::OneHot).
pub(super) fn one_hot(
    device: &Launcher,
    op: &'static str,
    indices: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let classes = out.layout().shape().dims().last().copied().unwrap_or(0);
    check(device, op, &indices, classes)?;
    let mut job = over(indices.layout());
    job.inputs[0] = operand(&indices);
    job.outputs[0] = output(out);
    (job.count, job.counts[0]) = (out.layout().shape().elements() as u64, classes as u64);
    device.each(op, kernel(Family::Index, "one_hot", out.dtype()), job.count, &job)
}
