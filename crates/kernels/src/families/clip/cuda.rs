//! Scaling and clipping on CUDA devices: one kernel, for several tensors at a time.

use bfc_cuda::kernels::{JobInput, JobRow};

use super::{Clip, Scale};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, output, require_float};
use crate::error::Result;
use crate::families::RunCuda;
use crate::storage::ViewMut;

impl RunCuda for Scale<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        scale(device, op, self, [self].into_iter())
    }
}

impl RunCuda for Clip<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        clip(device, op, self, [self].into_iter())
    }
}

/// Launches scalings that [share a launch](Scale::shares_launch), of which `first` is one.
pub(crate) fn scale<'s, 'a: 's>(
    device: &Launcher,
    op: &'static str,
    first: &Scale<'_>,
    all: impl Iterator<Item = &'s Scale<'a>>,
) -> Result<()> {
    let limits = [first.factor, f64::NEG_INFINITY, f64::INFINITY];
    launch(device, op, limits, &first.values, all.map(|scale| &scale.values))
}

/// Launches clippings that [share a launch](Clip::shares_launch), of which `first` is one.
pub(crate) fn clip<'s, 'a: 's>(
    device: &Launcher,
    op: &'static str,
    first: &Clip<'_>,
    all: impl Iterator<Item = &'s Clip<'a>>,
) -> Result<()> {
    launch(device, op, [1.0, first.low, first.high], &first.values, all.map(|clip| &clip.values))
}

/// `limits`: scale, low, high.
fn launch<'s, 'a: 's>(
    device: &Launcher,
    op: &'static str,
    limits: [f64; 3],
    first: &ViewMut<'_>,
    all: impl Iterator<Item = &'s ViewMut<'a>>,
) -> Result<()> {
    require_float(op, first.dtype())?;
    let mut job = job_over(first.layout()).with_input(JobInput::contiguous(0));
    job.outputs[0] = output(first);
    job.constants[..3].copy_from_slice(&limits);
    let rows = all.map(|values| {
        let count = values.layout().shape().elements() as u64;
        JobRow { count, outputs: [output(values).address, 0, 0, 0], ..JobRow::default() }
    });
    device.launch_table(op, kernel(Family::Optim, "clip", first.dtype()), job, rows)
}
