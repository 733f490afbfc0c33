//! Kernels over rows: softmax, cross entropy and layer normalization.

use bfc_cuda::kernels::{BLOCK, Family, Job, Operand, Output};

use super::elementwise::fill;
use super::index;
use super::launch::{
    Launcher, has_packed_rows, job_over, kernel, kernel_dtype, operand, origin, output, require_float,
    required_workspace, strided, workspace_operand, workspace_output,
};
use super::reduce::sum_rows;
use crate::backend::grid::{COLUMNS_PER_BLOCK, split_rows};
use crate::backend::kernels;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// The number of threads that share a row: a warp for short rows, or a block for long or few rows.
const fn threads_per_row(rows: u64, width: u64) -> u64 {
    if width <= 128 || (width <= 1024 && rows >= 4096) { 32 } else { BLOCK }
}

/// Launches a kernel with [`threads_per_row`] threads for each row. It accesses the first `operands` inputs by row.
fn launch_rows(
    device: &Launcher,
    op: &'static str,
    (name, operands): (&'static str, usize),
    dtype: DType,
    mut job: Job,
) -> Result<()> {
    job.packed = u64::from(has_packed_rows(&job, operands));
    job.counts[1] = threads_per_row(job.count, job.counts[0]);
    let blocks = job.count.div_ceil(BLOCK / job.counts[1]);
    device.launch_blocks(op, kernel(Family::Rows, name, dtype), blocks, &job)
}

/// Creates a job over the rows of the last axis; no rows if they are empty.
fn job_over_rows(out: &ViewMut<'_>) -> Job {
    let classes = out.layout().shape().dims().last().copied().unwrap_or(1);
    job_over_width(out, classes)
}

/// Creates a job over rows of `width` elements; no rows if `width` is 0.
fn job_over_width(out: &ViewMut<'_>, width: usize) -> Job {
    let rows = out.layout().shape().elements().checked_div(width).unwrap_or(0);
    let mut job = job_over(out.layout());
    (job.count, job.counts[0]) = (rows as u64, width as u64);
    job.outputs[0] = output(out);
    job
}

/// Creates a job over the rows of a normalization.
fn job_over_normalized(out: &ViewMut<'_>, statistics: &Layout) -> Job {
    let rows = statistics.shape().elements() / 2;
    job_over_width(out, out.layout().shape().elements().checked_div(rows).unwrap_or(0))
}

/// See [`Softmax`](crate::backend::kernels::Softmax).
pub(crate) fn softmax(
    device: &Launcher,
    op: &'static str,
    log: bool,
    input: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = job_over_rows(out);
    job.inputs[0] = operand(&input);
    job.function = u64::from(log);
    launch_rows(device, op, ("softmax", 1), kernel_dtype([out.dtype(), input.dtype()]), job)
}

/// See [`SoftmaxGrad`](crate::backend::kernels::SoftmaxGrad).
pub(crate) fn softmax_grad(
    device: &Launcher,
    op: &'static str,
    log: bool,
    result: View<'_>,
    grad: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = job_over_rows(out);
    job.inputs = [operand(&result), operand(&grad), Operand::default()];
    job.function = u64::from(log);
    let dtype = kernel_dtype([out.dtype(), result.dtype(), grad.dtype()]);
    launch_rows(device, op, ("softmax_grad", 2), dtype, job)
}

/// See [`CrossEntropy`](crate::backend::kernels::CrossEntropy).
pub(crate) fn cross_entropy(
    device: &Launcher,
    op: &'static str,
    logits: View<'_>,
    targets: View<'_>,
    losses: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, losses.dtype())?;
    let classes = logits.layout().shape().dims().last().copied().unwrap_or(1);
    index::check(device, op, &targets, classes)?;
    let mut job = job_over(logits.layout());
    (job.count, job.counts[0]) = (losses.layout().shape().elements() as u64, classes as u64);
    job.inputs = [operand(&logits), strided(&targets), Operand::default()];
    job.outputs[0] = output(losses);
    let dtype = kernel_dtype([losses.dtype(), logits.dtype()]);
    launch_rows(device, op, ("cross_entropy", 1), dtype, job)
}

/// See [`CrossEntropyGrad`](crate::backend::kernels::CrossEntropyGrad).
pub(crate) fn cross_entropy_grad(
    device: &Launcher,
    op: &'static str,
    logits: View<'_>,
    targets: View<'_>,
    grad: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = job_over_rows(out);
    index::check(device, op, &targets, job.counts[0] as usize)?;
    job.inputs = [operand(&logits), strided(&targets), strided(&grad)];
    let dtype = kernel_dtype([out.dtype(), logits.dtype(), grad.dtype()]);
    launch_rows(device, op, ("cross_entropy_grad", 1), dtype, job)
}

/// The flags of a normalization kernel.
fn norm_function(centered: bool, weight: bool, bias: bool) -> u64 {
    u64::from(centered) | u64::from(weight) << 1 | u64::from(bias) << 2
}

/// The operands of weight and bias, and the flag of the kernels if both are the same for each row of `width` elements, and
/// contiguous.
fn affine_operands(views: [Option<View<'_>>; 2], width: u64) -> ([Operand; 2], u64) {
    if views.iter().flatten().all(|view| repeats_one_row(view.layout(), width)) {
        let row = |view: &View<'_>| Operand::contiguous(origin(view)).of_floats(view.dtype() == DType::F32);
        return (views.map(|view| view.as_ref().map_or_else(Operand::default, row)), 8);
    }
    (views.map(|view| view.as_ref().map_or_else(Operand::default, operand)), 0)
}

/// Whether the last axes are `width` contiguous elements, and all other axes have stride 0.
fn repeats_one_row(layout: &Layout, width: u64) -> bool {
    let mut elements = 1;
    for (&size, &stride) in layout.shape().dims().iter().zip(layout.strides()).rev() {
        let expected = if elements < width { elements } else { 0 };
        if size != 1 && stride as u64 != expected {
            return false;
        }
        elements = if elements < width { elements * size as u64 } else { elements };
    }
    elements == width
}

/// See [`LayerNorm`](crate::backend::kernels::LayerNorm).
pub(crate) fn layer_norm(
    device: &Launcher,
    op: &'static str,
    (centered, epsilon): (bool, f64),
    input: View<'_>,
    [weight, bias]: [Option<View<'_>>; 2],
    [out, statistics]: [&ViewMut<'_>; 2],
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = job_over_normalized(out, statistics.layout());
    let ([weights, biases], rows) = affine_operands([weight, bias], job.counts[0]);
    job.function = norm_function(centered, weight.is_some(), bias.is_some()) | rows;
    job.inputs = [operand(&input), weights, biases];
    job.outputs[1] = output(statistics);
    job.constants[0] = epsilon;
    launch_rows(device, op, ("layer_norm", 3), kernel_dtype([out.dtype(), input.dtype()]), job)
}

/// See [`LayerNormGrad`](crate::backend::kernels::LayerNormGrad).
pub(crate) fn layer_norm_grad(
    device: &Launcher,
    op: &'static str,
    of: &kernels::Normalized<'_>,
    grad: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = job_over_normalized(out, of.statistics.layout());
    let ([weights, _], rows) = affine_operands([of.weight, None], job.counts[0]);
    job.function = norm_function(of.centered, of.weight.is_some(), false) | rows;
    job.inputs = [operand(&of.input), weights, operand(&grad)];
    job.also[0] = origin(&of.statistics);
    let dtype = kernel_dtype([out.dtype(), of.input.dtype(), grad.dtype()]);
    launch_rows(device, op, ("layer_norm_grad", 3), dtype, job)
}

/// See [`LayerNormSums`](crate::backend::kernels::LayerNormSums).
pub(crate) fn layer_norm_sums(
    device: &Launcher,
    op: &'static str,
    of: &kernels::Normalized<'_>,
    (grad, places): (View<'_>, usize),
    workspace: Option<&ViewMut<'_>>,
    (weight, bias): (&ViewMut<'_>, Option<&ViewMut<'_>>),
) -> Result<()> {
    require_float(op, weight.dtype())?;
    let (elements, parameters) = (of.input.layout().shape().elements(), weight.layout().shape().elements());
    let outs = [Some(weight), bias];
    if elements == 0 {
        return outs.into_iter().flatten().try_for_each(|out| fill(device, op, Scalar::Int(0), out));
    }
    let rows = elements / (parameters * places);
    let (slabs, slab) = split_rows([rows, parameters, places]);
    let width = elements / (of.statistics.layout().shape().elements() / 2);
    let mut job = job_over(of.input.layout());
    job.count = parameters as u64;
    job.counts[..5].copy_from_slice(&[width, places, rows, slab, slabs].map(|count| count as u64));
    job.inputs = [operand(&of.input), operand(&grad), Operand::default()];
    job.also[0] = origin(&of.statistics);
    job.function = u64::from(bias.is_some());
    let dtype = kernel_dtype([weight.dtype(), of.input.dtype(), grad.dtype()]);
    if slabs == 1 {
        job.outputs[0] = output(weight);
        job.outputs[1] = bias.map_or_else(Output::default, output);
    }
    if places > 1 {
        return device.launch_blocks(
            op,
            kernel(Family::Rows, "layer_norm_sums_apart", dtype),
            job.count,
            &job,
        );
    }
    // The workspace holds the weight sums of all slabs, then the bias sums.
    let size = slabs * parameters * dtype.computed_as().size();
    let sums = 1 + usize::from(bias.is_some());
    let partial = (slabs > 1).then(|| required_workspace(op, workspace, sums * size)).transpose()?;
    if let Some(partial) = partial {
        job.outputs = [workspace_output(partial); 4];
        job.outputs[1].address += size as u64;
    }
    let blocks = job.count.div_ceil(COLUMNS_PER_BLOCK as u64) * slabs as u64;
    device.launch_blocks(op, kernel(Family::Rows, "layer_norm_sums", dtype), blocks, &job)?;
    let Some(partial) = partial else { return Ok(()) };
    let mut of_slabs = workspace_operand(partial);
    for out in outs.into_iter().flatten() {
        sum_rows(device, op, of_slabs, [slabs, parameters], out)?;
        of_slabs.address += size as u64;
    }
    Ok(())
}
