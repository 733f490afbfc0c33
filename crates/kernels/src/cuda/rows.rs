//! Launches of kernels over rows.

use bfc_cuda::kernels::{BLOCK, Job};

use super::launch::{Launcher, has_packed_rows, job_over, kernel, output};
use crate::cuda::Family;
use crate::error::Result;
use crate::shape::DType;
use crate::storage::ViewMut;

/// The number of threads that share a row: a warp for short rows, or a block for long or few rows.
const fn threads_per_row(rows: u64, width: u64) -> u64 {
    if width <= 128 || (width <= 1024 && rows >= 4096) { 32 } else { BLOCK }
}

/// Launches a kernel with [`threads_per_row`] threads for each row. It accesses the first `operands` inputs by row.
pub(crate) fn launch_rows(
    device: &Launcher,
    op: &'static str,
    (name, operands): (&'static str, usize),
    dtype: DType,
    mut job: Job,
) -> Result<()> {
    job.packed = u64::from(has_packed_rows(&job, operands));
    job.counts[1] = threads_per_row(job.count, job.counts[0]);
    let blocks = job.count.div_ceil(BLOCK / job.counts[1]);
    device.launch_blocks(op, kernel(Family::Rows, name, dtype), blocks, &job)
}

/// Creates a job over the rows of the last axis; no rows if they are empty.
pub(crate) fn job_over_rows(out: &ViewMut<'_>) -> Job {
    let classes = out.layout().shape().dims().last().copied().unwrap_or(1);
    job_over_width(out, classes)
}

/// Creates a job over rows of `width` elements; no rows if `width` is 0.
pub(crate) fn job_over_width(out: &ViewMut<'_>, width: usize) -> Job {
    let rows = out.layout().shape().elements().checked_div(width).unwrap_or(0);
    let mut job = job_over(out.layout());
    (job.count, job.counts[0]) = (rows as u64, width as u64);
    job.outputs[0] = output(out);
    job
}
