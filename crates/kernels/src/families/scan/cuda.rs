//! Running sums and products (`cumsum`, `cumprod`), in place.

use bfc_cuda::kernels::Job;

use super::{Scan, ScanFunction};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, kernel, output, require_number};
use crate::error::Result;
use crate::families::RunCuda;

/// The smallest length of lines that a whole block computes.
const LONG: usize = 512;

/// The largest number of lines that whole blocks compute. With more lines, one thread per line fills a GPU.
const FEW: usize = 1 << 14;

impl RunCuda for Scan<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, axis, reverse, ref out } = *self;
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
        let is_long = length >= LONG && lines <= FEW;
        let name = match (f, is_long) {
            (ScanFunction::Sum, false) => "running_sum",
            (ScanFunction::Sum, true) => "running_sum_long",
            (ScanFunction::Product, false) => "running_product",
            (ScanFunction::Product, true) => "running_product_long",
        };
        let kernel = kernel(Family::Scan, name, out.dtype());
        if is_long {
            device.launch_blocks(op, kernel, job.count, &job)
        } else {
            device.launch_threads(op, kernel, job.count, &job)
        }
    }
}
