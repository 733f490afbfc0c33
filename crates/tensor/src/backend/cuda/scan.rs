//! Running sums, in place.

use bfc_cuda::kernels::{Family, Job};

use super::launch::{Launcher, kernel, number, output};
use crate::error::Result;
use crate::storage::ViewMut;

/// See [`Kernel::RunningSum`](crate::backend::Kernel::RunningSum).
pub(super) fn running_sum(
    device: &Launcher,
    op: &'static str,
    axis: usize,
    reverse: bool,
    out: &ViewMut<'_>,
) -> Result<()> {
    number(op, out.dtype())?;
    let shape = *out.layout().shape();
    if shape.elements() == 0 {
        return Ok(());
    }
    let length = shape.dims().get(axis).copied().unwrap_or(1);
    let step: usize = shape.dims().iter().skip(axis + 1).product();
    let mut job = Job { count: (shape.elements() / length) as u64, ..Job::default() };
    job.outputs[0] = output(out);
    (job.counts[0], job.counts[1]) = (length as u64, step as u64);
    job.function = u64::from(reverse);
    device.each(op, kernel(Family::Scan, "running_sum", out.dtype()), job.count, &job)
}
