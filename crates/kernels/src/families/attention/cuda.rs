//! Scaled dot-product attention, without a workspace.

use bfc_cuda::kernels::{Job, JobOutput};

use super::{Attention, AttentionGrad};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, kernel, operand, origin, output, require_float};
use crate::error::Result;
use crate::families;
use crate::families::RunCuda;
use crate::families::grid::TILE;
use crate::shape::DType;
use crate::storage::View;

/// Creates a job with the sizes, operands and mask that all attention kernels share.
fn job(of: &families::AttentionInputs<'_>) -> Job {
    let families::AttentionInputs { scale, causal, query, key, value, mask } = *of;
    let size =
        |view: &View<'_>, axis: usize| view.layout().shape().dims().get(axis).copied().unwrap_or(0) as u64;
    let mut job = Job {
        inputs: [operand(&query), operand(&key), operand(&value)],
        function: u64::from(causal),
        ..Job::default()
    };
    job.counts[..4].copy_from_slice(&[size(&query, 1), size(&key, 1), size(&query, 2), size(&value, 2)]);
    job.constants[0] = scale;
    if let Some(mask) = mask {
        job = job.with_inner(&mask.layout().strides()[..3]);
        job.also[3] = origin(&mask);
        job.function |= if mask.dtype() == DType::Bool { 2 } else { 4 };
    }
    job
}

/// The number of tiles of a result with these rows and columns for each head.
fn tiles(heads: u64, rows: u64, columns: u64) -> u64 {
    let tile = TILE as u64;
    heads * rows.div_ceil(tile) * columns.div_ceil(tile)
}

impl RunCuda for Attention<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref of, ref out, ref log_sums, .. } = *self;
        require_float(op, out.dtype())?;
        let mut job = job(of);
        let [queries, _, _, values, ..] = job.counts;
        // Without values the kernel still writes the sums.
        job.count = tiles(heads(of), queries, values.max(1));
        (job.outputs[0], job.outputs[1]) = (output(out), output(log_sums));
        device.launch_blocks(op, kernel(Family::Attention, "attention", out.dtype()), job.count, &job)
    }
}

impl RunCuda for AttentionGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self {
            ref of,
            output: result,
            log_sums,
            grad,
            query_grad: ref to_query,
            key_grad: ref to_key,
            value_grad: ref to_value,
            ..
        } = *self;
        let dtype = to_query.dtype();
        require_float(op, dtype)?;
        let mut job = job(of);
        job.also[..3].copy_from_slice(&[origin(&result), origin(&log_sums), origin(&grad)]);
        job.outputs = [output(to_query), output(to_key), output(to_value), JobOutput::default()];
        let [queries, keys, width, values, ..] = job.counts;
        job.count = tiles(heads(of), queries, width);
        device.launch_blocks(
            op,
            kernel(Family::Attention, "attention_query_grad", dtype),
            job.count,
            &job,
        )?;
        job.count = tiles(heads(of), keys, width.max(values));
        device.launch_blocks(op, kernel(Family::Attention, "attention_key_grad", dtype), job.count, &job)
    }
}

fn heads(of: &families::AttentionInputs<'_>) -> u64 {
    of.query.layout().shape().dims().first().copied().unwrap_or(0) as u64
}
