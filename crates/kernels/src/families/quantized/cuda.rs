//! Products with quantized matrices on a GPU: a tiled kernel that dequantizes each tile to shared memory.

use bfc_cuda::kernels::{Job, named};

use super::{DequantizeRows, MatMulQuantized, QuantizeRows};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, operand, output, strided};
use crate::error::Result;
use crate::families::RunCuda;
use crate::families::grid::TILE;
use crate::families::index::cuda::check as check_indices;

impl RunCuda for MatMulQuantized<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { format, transposed, bias, lhs, blocks, ref out, .. } = *self;
        let (&[rows, depth], &[row_stride, depth_stride]) =
            (lhs.layout().shape().dims(), lhs.layout().strides())
        else {
            return Ok(());
        };
        let columns = out.layout().shape().dims().last().copied().unwrap_or(0);
        let width = if transposed { depth } else { columns };
        let mut job = Job::over(1, &[]);
        (job.inputs[0], job.inputs[1]) = (strided(&lhs), operand(&blocks));
        if let Some(bias) = bias {
            job.inputs[2] = strided(&bias);
        }
        job.outputs[0] = output(out);
        job.function = named(format.name());
        job.counts = [rows, columns, depth, row_stride, depth_stride, width].map(|count| count as u64);
        job.integers[0] = i64::from(transposed);
        let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
        device.launch_blocks(op, kernel(Family::Quantized, "product", out.dtype()), tiles as u64, &job)
    }
}

impl RunCuda for DequantizeRows<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { format, blocks, indices, ref out } = *self;
        let mut job = job_over(out.layout());
        job.inputs[0] = operand(&blocks);
        if let Some(indices) = &indices {
            check_indices(device, op, indices, blocks.layout().shape().dims().first().copied().unwrap_or(0))?;
            job.inputs[1] = strided(indices);
            job.counts[1] = indices.layout().strides().first().copied().unwrap_or(0) as u64;
        }
        job.outputs[0] = output(out);
        job.function = named(format.name());
        job.counts[0] = out.layout().shape().dims().last().copied().unwrap_or(0) as u64;
        device.launch_threads(op, kernel(Family::Quantized, "dequantize", out.dtype()), job.count, &job)
    }
}

impl RunCuda for QuantizeRows<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { format, input, ref out } = *self;
        let mut job = job_over(input.layout());
        (job.inputs[0], job.outputs[0]) = (operand(&input), output(out));
        job.function = named(format.name());
        (job.counts[0], job.counts[1]) = (format.block_values() as u64, format.block_bytes() as u64);
        job.count = (out.layout().shape().elements() / format.block_bytes()) as u64;
        device.launch_threads(op, kernel(Family::Quantized, "quantize", input.dtype()), job.count, &job)
    }
}
