//! Fills on CUDA devices.

use super::{Arange, Fill};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, output, require_number, set_constant};
use crate::error::Result;
use crate::families::RunCuda;
use crate::shape::Scalar;
use crate::storage::ViewMut;

impl RunCuda for Fill<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        fill(device, op, self.value, &self.out)
    }
}

/// See [`Fill`](crate::families::Fill).
pub(crate) fn fill(device: &Launcher, op: &'static str, value: Scalar, out: &ViewMut<'_>) -> Result<()> {
    let mut job = job_over(out.layout());
    set_constant(&mut job, 0, out.dtype(), value);
    job.outputs[0] = output(out);
    device.launch_elementwise(op, kernel(Family::Elementwise, "fill", out.dtype()), job.count, &job)
}

impl RunCuda for Arange<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { start, step, ref out } = *self;
        require_number(op, out.dtype())?;
        let mut job = job_over(out.layout());
        (job.constants[0], job.constants[1]) = (start.as_f64(), step.as_f64());
        job.integers = [start.as_i64(), step.as_i64()];
        job.outputs[0] = output(out);
        device.launch_threads(op, kernel(Family::Elementwise, "arange", out.dtype()), job.count, &job)
    }
}
