//! Running sums (`cumsum`), in place.

use bfc_cuda::kernels::{Family, Job};

use super::RunningSum;
use crate::backend::cuda::launch::{Launcher, kernel, output, require_number};
use crate::backend::kernels::RunCuda;
use crate::error::Result;

/// The smallest length of lines that a whole block sums.
const LONG: usize = 512;

/// The largest number of lines that whole blocks sum. With more lines, one thread per line fills a GPU.
const FEW: usize = 1 << 14;

impl RunCuda for RunningSum<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { axis, reverse, ref out, .. } = *self;
        require_number(op, out.dtype())?;
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
            return device.launch_blocks(
                op,
                kernel(Family::Scan, "running_sum_long", out.dtype()),
                job.count,
                &job,
            );
        }
        device.launch_threads(op, kernel(Family::Scan, "running_sum", out.dtype()), job.count, &job)
    }
}
