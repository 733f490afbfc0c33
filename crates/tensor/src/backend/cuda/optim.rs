//! Scaling and clipping.

use bfc_cuda::kernels::Family;

use super::launch::{Launcher, job_over, kernel, output, require_float};
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Clip`](crate::backend::kernels::Clip). `limits`: scale, low, high.
pub(crate) fn clip(
    device: &Launcher,
    op: &'static str,
    limits: [f64; 3],
    values: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, values.dtype())?;
    let mut job = job_over(values.layout());
    job.outputs[0] = output(values);
    job.constants[..3].copy_from_slice(&limits);
    device.launch_elementwise(op, kernel(Family::Optim, "clip", values.dtype()), job.count, &job)
}
