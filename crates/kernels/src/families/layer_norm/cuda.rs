//! Normalization of rows on CUDA devices.

use bfc_cuda::kernels::{Job, JobInput, JobOutput};

use super::cpu::repeats_one_row;
use super::{NormalizeRows, NormalizeRowsGrad, NormalizeRowsSums};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, origin, output, require_float, required_workspace,
    workspace_operand, workspace_output,
};
use crate::cuda::rows::{job_over_width, launch_rows};
use crate::error::Result;
use crate::families::RunCuda;
use crate::families::fill::cuda::fill;
use crate::families::grid::{COLUMNS_PER_BLOCK, split_rows};
use crate::families::reduce::cuda::sum_rows;
use crate::layout::Layout;
use crate::shape::{DType, Scalar};
use crate::storage::{View, ViewMut};

/// Creates a job over the rows of a normalization.
fn job_over_normalized(out: &ViewMut<'_>, statistics: &Layout) -> Job {
    let rows = statistics.shape().elements() / 2;
    job_over_width(out, out.layout().shape().elements().checked_div(rows).unwrap_or(0))
}

/// The flags of a normalization kernel.
fn norm_function(centered: bool, weight: bool, bias: bool) -> u64 {
    u64::from(centered) | u64::from(weight) << 1 | u64::from(bias) << 2
}

/// The operands of weight and bias, and the flag of the kernels if both are the same for each row of `width` elements, and
/// contiguous.
fn affine_operands(views: [Option<View<'_>>; 2], width: u64) -> ([JobInput; 2], u64) {
    if views.iter().flatten().all(|view| repeats_one_row(view.layout(), width as usize)) {
        let row = |view: &View<'_>| JobInput::contiguous(origin(view)).of_floats(view.dtype() == DType::F32);
        return (views.map(|view| view.as_ref().map_or_else(JobInput::default, row)), 8);
    }
    (views.map(|view| view.as_ref().map_or_else(JobInput::default, operand)), 0)
}

impl RunCuda for NormalizeRows<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { centered, epsilon, input, weight, bias, ref out, ref statistics } = *self;
        require_float(op, out.dtype())?;
        let mut job = job_over_normalized(out, statistics.layout());
        let ([weights, biases], rows) = affine_operands([weight, bias], job.counts[0]);
        job.function = norm_function(centered, weight.is_some(), bias.is_some()) | rows;
        job.inputs = [operand(&input), weights, biases];
        job.outputs[1] = output(statistics);
        job.constants[0] = epsilon;
        launch_rows(device, op, ("layer_norm", 3), kernel_dtype([out.dtype(), input.dtype()]), job)
    }
}

impl RunCuda for NormalizeRowsGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref of, grad, ref out } = *self;
        require_float(op, out.dtype())?;
        let mut job = job_over_normalized(out, of.statistics.layout());
        let ([weights, _], rows) = affine_operands([of.weight, None], job.counts[0]);
        job.function = norm_function(of.centered, of.weight.is_some(), false) | rows;
        job.inputs = [operand(&of.input), weights, operand(&grad)];
        job.also[0] = origin(&of.statistics);
        let dtype = kernel_dtype([out.dtype(), of.input.dtype(), grad.dtype()]);
        launch_rows(device, op, ("layer_norm_grad", 3), dtype, job)
    }
}

impl RunCuda for NormalizeRowsSums<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref of, grad, places, ref weight, .. } = *self;
        let workspace = self.workspace.as_ref();
        let bias = self.bias.as_ref();
        require_float(op, weight.dtype())?;
        let (elements, parameters) =
            (of.input.layout().shape().elements(), weight.layout().shape().elements());
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
        job.inputs = [operand(&of.input), operand(&grad), JobInput::default()];
        job.also[0] = origin(&of.statistics);
        job.function = u64::from(bias.is_some());
        let dtype = kernel_dtype([weight.dtype(), of.input.dtype(), grad.dtype()]);
        if slabs == 1 {
            job.outputs[0] = output(weight);
            job.outputs[1] = bias.map_or_else(JobOutput::default, output);
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
}
