//! Scaling and clipping on CUDA devices: one kernel.

use super::{Clip, Scale};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, output, require_float};
use crate::error::Result;
use crate::families::RunCuda;
use crate::storage::ViewMut;

impl RunCuda for Scale<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        launch(device, op, [self.factor, f64::NEG_INFINITY, f64::INFINITY], &self.values)
    }
}

impl RunCuda for Clip<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        launch(device, op, [1.0, self.low, self.high], &self.values)
    }
}

/// `limits`: scale, low, high.
fn launch(device: &Launcher, op: &'static str, limits: [f64; 3], values: &ViewMut<'_>) -> Result<()> {
    require_float(op, values.dtype())?;
    let mut job = job_over(values.layout());
    job.outputs[0] = output(values);
    job.constants[..3].copy_from_slice(&limits);
    device.launch_elementwise(op, kernel(Family::Optim, "clip", values.dtype()), job.count, &job)
}
