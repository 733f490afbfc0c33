//! Softmax and what is made of it.

use bfc_cuda::kernels::{BLOCK, Family, Job, Operand, Output};

use super::elementwise::fill;
use super::index;
use super::launch::{
    Launcher, float, kernel, narrowest, operand, origin, output, over, room, room_for_results, strided,
    written,
};
use super::reduce::sum_rows;
use crate::backend::Normalized;
use crate::backend::blocks::{SIDE_BY_SIDE, slabs_of_rows};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// Threads that share a row: so few that most have something to do, unless rows are too few to fill a GPU with those.
const fn team(rows: u64, width: u64) -> u64 {
    if width <= 128 || (width <= 1024 && rows >= 4096) { 32 } else { BLOCK }
}

/// Starts a kernel with such a team for each row.
fn teams(device: &Launcher, op: &'static str, name: &'static str, dtype: DType, mut job: Job) -> Result<()> {
    job.counts[1] = team(job.count, job.counts[0]);
    let blocks = job.count.div_ceil(BLOCK / job.counts[1]);
    device.blocks(op, kernel(Family::Rows, name, dtype), blocks, &job)
}

/// A job for each row of a shape, along its last axis; none if rows have no elements.
fn each_row(out: &ViewMut<'_>) -> Job {
    let classes = out.layout().shape().dims().last().copied().unwrap_or(1);
    each_of(out, classes)
}

/// A job for every `width` elements; none if that is none.
fn each_of(out: &ViewMut<'_>, width: usize) -> Job {
    let rows = out.layout().shape().elements().checked_div(width).unwrap_or(0);
    let mut job = over(out.layout());
    (job.count, job.counts[0]) = (rows as u64, width as u64);
    job.outputs[0] = output(out);
    job
}

/// A job for each row that has statistics.
fn each_normalized(out: &ViewMut<'_>, statistics: &Layout) -> Job {
    let rows = statistics.shape().elements() / 2;
    each_of(out, out.layout().shape().elements().checked_div(rows).unwrap_or(0))
}

/// See [`Kernel::Softmax`](crate::backend::Kernel::Softmax).
pub(super) fn softmax(
    device: &Launcher,
    op: &'static str,
    log: bool,
    input: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    float(op, out.dtype())?;
    let mut job = each_row(out);
    job.inputs[0] = operand(&input);
    job.function = u64::from(log);
    teams(device, op, "softmax", narrowest([out.dtype(), input.dtype()]), job)
}

/// See [`Kernel::SoftmaxGrad`](crate::backend::Kernel::SoftmaxGrad).
pub(super) fn softmax_grad(
    device: &Launcher,
    op: &'static str,
    log: bool,
    result: View<'_>,
    grad: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    float(op, out.dtype())?;
    let mut job = each_row(out);
    job.inputs = [operand(&result), operand(&grad), Operand::default()];
    job.function = u64::from(log);
    let dtype = narrowest([out.dtype(), result.dtype(), grad.dtype()]);
    teams(device, op, "softmax_grad", dtype, job)
}

/// See [`Kernel::CrossEntropy`](crate::backend::Kernel::CrossEntropy).
pub(super) fn cross_entropy(
    device: &Launcher,
    op: &'static str,
    logits: View<'_>,
    targets: View<'_>,
    losses: &ViewMut<'_>,
) -> Result<()> {
    float(op, losses.dtype())?;
    let classes = logits.layout().shape().dims().last().copied().unwrap_or(1);
    index::check(device, op, &targets, classes)?;
    let mut job = over(logits.layout());
    (job.count, job.counts[0]) = (losses.layout().shape().elements() as u64, classes as u64);
    job.inputs = [operand(&logits), strided(&targets), Operand::default()];
    job.outputs[0] = output(losses);
    let dtype = narrowest([losses.dtype(), logits.dtype()]);
    teams(device, op, "cross_entropy", dtype, job)
}

/// See [`Kernel::CrossEntropyGrad`](crate::backend::Kernel::CrossEntropyGrad).
pub(super) fn cross_entropy_grad(
    device: &Launcher,
    op: &'static str,
    logits: View<'_>,
    targets: View<'_>,
    grad: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    float(op, out.dtype())?;
    let mut job = each_row(out);
    index::check(device, op, &targets, job.counts[0] as usize)?;
    job.inputs = [operand(&logits), strided(&targets), strided(&grad)];
    let dtype = narrowest([out.dtype(), logits.dtype(), grad.dtype()]);
    teams(device, op, "cross_entropy_grad", dtype, job)
}

/// Which of a normalization's steps the kernels do.
fn norm_function(centered: bool, weight: bool, bias: bool) -> u64 {
    u64::from(centered) | u64::from(weight) << 1 | u64::from(bias) << 2
}

/// An operand that need not be there.
fn optional(view: Option<View<'_>>) -> Operand {
    view.as_ref().map_or_else(Operand::default, operand)
}

/// See [`Kernel::LayerNorm`](crate::backend::Kernel::LayerNorm).
pub(super) fn layer_norm(
    device: &Launcher,
    op: &'static str,
    (centered, epsilon): (bool, f64),
    input: View<'_>,
    [weight, bias]: [Option<View<'_>>; 2],
    [out, statistics]: [&ViewMut<'_>; 2],
) -> Result<()> {
    float(op, out.dtype())?;
    let mut job = each_normalized(out, statistics.layout());
    job.function = norm_function(centered, weight.is_some(), bias.is_some());
    job.inputs = [operand(&input), optional(weight), optional(bias)];
    job.outputs[1] = output(statistics);
    job.constants[0] = epsilon;
    teams(device, op, "layer_norm", narrowest([out.dtype(), input.dtype()]), job)
}

/// See [`Kernel::LayerNormGrad`](crate::backend::Kernel::LayerNormGrad).
pub(super) fn layer_norm_grad(
    device: &Launcher,
    op: &'static str,
    of: &Normalized<'_>,
    grad: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    float(op, out.dtype())?;
    let mut job = each_normalized(out, of.statistics.layout());
    job.function = norm_function(of.centered, of.weight.is_some(), false);
    job.inputs = [operand(&of.input), optional(of.weight), operand(&grad)];
    job.also[0] = origin(&of.statistics);
    let dtype = narrowest([out.dtype(), of.input.dtype(), grad.dtype()]);
    teams(device, op, "layer_norm_grad", dtype, job)
}

/// See [`Kernel::LayerNormSums`](crate::backend::Kernel::LayerNormSums).
pub(super) fn layer_norm_sums(
    device: &Launcher,
    op: &'static str,
    of: &Normalized<'_>,
    (grad, places): (View<'_>, usize),
    workspace: Option<&ViewMut<'_>>,
    (weight, bias): (&ViewMut<'_>, Option<&ViewMut<'_>>),
) -> Result<()> {
    float(op, weight.dtype())?;
    let (elements, parameters) = (of.input.layout().shape().elements(), weight.layout().shape().elements());
    let outs = [Some(weight), bias];
    if elements == 0 {
        return outs.into_iter().flatten().try_for_each(|out| fill(device, op, Scalar::Int(0), out));
    }
    let rows = elements / (parameters * places);
    let (slabs, slab) = slabs_of_rows([rows, parameters, places]);
    let width = elements / (of.statistics.layout().shape().elements() / 2);
    let mut job = over(of.input.layout());
    job.count = parameters as u64;
    job.counts[..5].copy_from_slice(&[width, places, rows, slab, slabs].map(|count| count as u64));
    job.inputs = [operand(&of.input), operand(&grad), Operand::default()];
    job.also[0] = origin(&of.statistics);
    job.function = u64::from(bias.is_some());
    let dtype = narrowest([weight.dtype(), of.input.dtype(), grad.dtype()]);
    if slabs == 1 {
        job.outputs = [output(weight), bias.map_or_else(Output::default, output), Output::default()];
    }
    if places > 1 {
        return device.blocks(op, kernel(Family::Rows, "layer_norm_sums_apart", dtype), job.count, &job);
    }
    // The sums of slabs, of each kind together.
    let size = slabs * parameters * dtype.computed_as().size();
    let sums = 1 + usize::from(bias.is_some());
    let partial = (slabs > 1).then(|| room(op, workspace, sums * size)).transpose()?;
    if let Some(partial) = partial {
        job.outputs = [room_for_results(partial); 3];
        job.outputs[1].address += size as u64;
    }
    let blocks = job.count.div_ceil(SIDE_BY_SIDE as u64) * slabs as u64;
    device.blocks(op, kernel(Family::Rows, "layer_norm_sums", dtype), blocks, &job)?;
    let Some(partial) = partial else { return Ok(()) };
    let mut of_slabs = written(partial);
    for out in outs.into_iter().flatten() {
        sum_rows(device, op, of_slabs, [slabs, parameters], out)?;
        of_slabs.address += size as u64;
    }
    Ok(())
}
