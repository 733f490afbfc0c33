//! Elementwise functions of several arguments on CUDA devices. Kernels find a function by its name.

use bfc_cuda::kernels::{Job, named};

use super::{Accumulate, Comparison, Select, Zip};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, output, require_float, require_number,
};
use crate::error::Result;
use crate::families::{Binary, Domain, RunCuda};
use crate::shape::DType;

impl RunCuda for Zip<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, lhs, rhs, ref out } = *self;
        let dtype = kernel_dtype([out.dtype(), lhs.dtype(), rhs.dtype()]);
        let mut job = job_over(out.layout());
        job.inputs = [operand(&lhs), operand(&rhs), Default::default()];
        job.outputs[0] = output(out);
        launch(device, op, f, dtype, job)
    }
}

/// One thread reads each element before it overwrites it.
impl RunCuda for Accumulate<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, input, ref acc } = *self;
        require_number(op, acc.dtype())?;
        let mut job = job_over(acc.layout());
        job.inputs = [operand(&acc.as_view()), operand(&input), Default::default()];
        job.outputs[0] = output(acc);
        launch(device, op, f, kernel_dtype([acc.dtype(), input.dtype()]), job)
    }
}

/// Launches a binary function.
fn launch(device: &Launcher, op: &'static str, f: Binary, dtype: DType, mut job: Job) -> Result<()> {
    if f.domain() == Domain::Floats {
        require_float(op, dtype)?;
    } else if !f.supports_booleans() {
        require_number(op, dtype)?;
    }
    job.function = named(f.name());
    device.launch_elementwise(op, kernel(Family::Elementwise, "binary", dtype), job.count, &job)
}

impl RunCuda for Comparison<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, lhs, rhs, ref out } = *self;
        let mut job = job_over(out.layout());
        job.inputs = [operand(&lhs), operand(&rhs), Default::default()];
        job.outputs[0] = output(out);
        job.function = named(f.name());
        let kernel = kernel(Family::Elementwise, "compare", kernel_dtype([lhs.dtype(), rhs.dtype()]));
        device.launch_elementwise(op, kernel, job.count, &job)
    }
}

impl RunCuda for Select<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { condition, lhs, rhs, ref out } = *self;
        let mut job = job_over(out.layout());
        job.inputs = [operand(&condition), operand(&lhs), operand(&rhs)];
        job.outputs[0] = output(out);
        device.launch_threads(op, kernel(Family::Elementwise, "choose", out.dtype()), job.count, &job)
    }
}
