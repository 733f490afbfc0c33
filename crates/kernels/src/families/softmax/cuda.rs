//! Softmax on CUDA devices.

use bfc_cuda::kernels::JobInput;

use super::{SoftmaxRows, SoftmaxRowsGrad};
use crate::cuda::launch::{Launcher, kernel_dtype, operand, require_float};
use crate::cuda::rows::{job_over_rows, launch_rows};
use crate::error::Result;
use crate::families::RunCuda;

impl RunCuda for SoftmaxRows<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { log, input, ref out } = *self;
        require_float(op, out.dtype())?;
        let mut job = job_over_rows(out);
        job.inputs[0] = operand(&input);
        job.function = u64::from(log);
        launch_rows(device, op, ("softmax", 1), kernel_dtype([out.dtype(), input.dtype()]), job)
    }
}

impl RunCuda for SoftmaxRowsGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { log, output: result, grad, ref out } = *self;
        require_float(op, out.dtype())?;
        let mut job = job_over_rows(out);
        job.inputs = [operand(&result), operand(&grad), JobInput::default()];
        job.function = u64::from(log);
        let dtype = kernel_dtype([out.dtype(), result.dtype(), grad.dtype()]);
        launch_rows(device, op, ("softmax_grad", 2), dtype, job)
    }
}
