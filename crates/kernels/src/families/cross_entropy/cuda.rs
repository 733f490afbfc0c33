//! The cross entropy on CUDA devices.

use bfc_cuda::kernels::JobInput;

use super::{CrossEntropy, CrossEntropyGrad, CrossEntropyInPlace};
use crate::cuda::launch::{Launcher, job_over, kernel_dtype, operand, output, require_float, strided};
use crate::cuda::rows::{job_over_rows, launch_rows};
use crate::error::Result;
use crate::families::RunCuda;
use crate::families::index::cuda as index;

impl RunCuda for CrossEntropy<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { logits, targets, ref losses } = *self;
        require_float(op, losses.dtype())?;
        let classes = logits.layout().shape().dims().last().copied().unwrap_or(1);
        index::check(device, op, &targets, classes)?;
        let mut job = job_over(logits.layout());
        (job.count, job.counts[0]) = (losses.layout().shape().elements() as u64, classes as u64);
        job.inputs = [operand(&logits), strided(&targets), JobInput::default()];
        job.outputs[0] = output(losses);
        let dtype = kernel_dtype([losses.dtype(), logits.dtype()]);
        launch_rows(device, op, ("cross_entropy", 1), dtype, job)
    }
}

impl RunCuda for CrossEntropyGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { logits, targets, grad, ref out } = *self;
        require_float(op, out.dtype())?;
        let mut job = job_over_rows(out);
        index::check(device, op, &targets, job.counts[0] as usize)?;
        job.inputs = [operand(&logits), strided(&targets), strided(&grad)];
        let dtype = kernel_dtype([out.dtype(), logits.dtype(), grad.dtype()]);
        launch_rows(device, op, ("cross_entropy_grad", 1), dtype, job)
    }
}

impl RunCuda for CrossEntropyInPlace<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { smoothing, targets, factors, ref losses, ref logits } = *self;
        require_float(op, logits.dtype())?;
        let mut job = job_over_rows(logits);
        index::check(device, op, &targets, job.counts[0] as usize)?;
        job.inputs = [operand(&logits.as_view()), strided(&targets), strided(&factors)];
        job.outputs[1] = output(losses);
        job.constants[0] = smoothing;
        let dtype = kernel_dtype([logits.dtype(), factors.dtype(), losses.dtype()]);
        launch_rows(device, op, ("cross_entropy_in_place", 1), dtype, job)
    }
}
