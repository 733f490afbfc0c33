//! Running sums, in place.

use bfc_cuda::kernels::{Family, Job};

use super::launch::{Launcher, kernel, number, output};
use crate::error::Result;
use crate::storage::ViewMut;

/// Lines of so many elements are summed by a block each, ...
const LONG: usize = 512;

/// ... if there are no more of them: a thread for each would not fill a GPU.
const FEW: usize = 1 << 14;

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
    let lines = shape.elements() / length;
    let mut job = Job { count: lines as u64, ..Job::default() };
    job.outputs[0] = output(out);
    (job.counts[0], job.counts[1]) = (length as u64, step as u64);
    job.function = u64::from(reverse);
    if length >= LONG && lines <= FEW {
        return device.blocks(op, kernel(Family::Scan, "running_sum_long", out.dtype()), job.count, &job);
    }
    device.each(op, kernel(Family::Scan, "running_sum", out.dtype()), job.count, &job)
}
