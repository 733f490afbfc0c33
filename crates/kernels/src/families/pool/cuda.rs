//! Pools on CUDA devices.

use bfc_cuda::kernels::Job;

use super::{Pool2d, Pool2dGrad};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, kernel, operand, output, require_float};
use crate::error::Result;
use crate::families::RunCuda;
use crate::layout::Layout;
use crate::window::{PoolAxis, PoolReduction, PoolWindow, Window};

/// Creates the job of a pool from planes of `large` to planes of `small`.
fn pool(pool: PoolReduction, axes: [PoolAxis; 2], large: &Layout, small: &Layout) -> Job {
    let plane = |layout: &Layout| {
        let dims = layout.shape().dims();
        [2, 1].map(|back| dims.len().checked_sub(back).map_or(1, |axis| dims[axis]))
    };
    let windows = axes.map(|axis| match axis {
        PoolAxis::Sliding(PoolWindow { window, .. }) => window,
        PoolAxis::Adaptive { .. } => Window::new(1),
    });
    // Numbered as in the kernel.
    let kinds = axes.map(|axis| match axis {
        PoolAxis::Sliding(PoolWindow { count_include_pad: true, .. }) => 0,
        PoolAxis::Adaptive { .. } => 1,
        PoolAxis::Sliding(_) => 2,
    });
    let mut job = Job::default().with_inner(&[
        windows[0].stride,
        windows[1].stride,
        windows[0].padding,
        windows[1].padding,
        kinds[0],
        kinds[1],
    ]);
    let (from, to) = (plane(large), plane(small));
    job.counts = [from[0], from[1], to[0], to[1], windows[0].size, windows[1].size].map(|count| count as u64);
    job.function = u64::from(pool == PoolReduction::Mean);
    job
}

impl RunCuda for Pool2d<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { pool: kind, axes, input, ref out } = *self;
        require_float(op, out.dtype())?;
        let mut job = pool(kind, axes, input.layout(), out.layout());
        job.count = out.layout().shape().elements() as u64;
        job.inputs[0] = operand(&input);
        job.outputs[0] = output(out);
        device.launch_threads(op, kernel(Family::Pool, "pool2d", out.dtype()), job.count, &job)
    }
}

impl RunCuda for Pool2dGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { pool: kind, axes, input, grad, ref out } = *self;
        require_float(op, out.dtype())?;
        let mut job = pool(kind, axes, out.layout(), grad.layout());
        job.count = out.layout().shape().elements() as u64;
        job.inputs = [input.as_ref().map(operand).unwrap_or_default(), operand(&grad), Default::default()];
        job.outputs[0] = output(out);
        device.launch_threads(op, kernel(Family::Pool, "pool2d_grad", out.dtype()), job.count, &job)
    }
}
