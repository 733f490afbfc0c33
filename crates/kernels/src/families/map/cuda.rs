//! Elementwise functions of one argument on CUDA devices. Kernels find a function by its name.

use bfc_cuda::kernels::{Job, named};

use super::{Map, MapGrad};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, output, require_float, require_number, set_constant,
};
use crate::error::Result;
use crate::families::{Domain, RunCuda, Unary};
use crate::shape::DType;

impl RunCuda for Map<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, input, ref out } = *self;
        let dtype = kernel_dtype([out.dtype(), input.dtype()]);
        if f.supports_integers() {
            require_number(op, dtype)?
        } else {
            require_float(op, dtype)?
        }
        let mut job = job_over(out.layout());
        job.inputs[0] = operand(&input);
        job.outputs[0] = output(out);
        job.function = named(f.name());
        set_constants(&mut job, dtype, f);
        let kernel = if f.domain() == Domain::Numbers || !dtype.is_float() {
            kernel(Family::Elementwise, "arithmetic", dtype)
        } else {
            kernel(Family::Float, "transcendental", dtype)
        };
        device.launch_elementwise(op, kernel, job.count, &job)
    }
}

impl RunCuda for MapGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { f, saved, grad, ref out } = *self;
        // In place: each thread reads its element before it overwrites it.
        let grad = grad.unwrap_or_else(|| out.as_view());
        let dtype = kernel_dtype([out.dtype(), saved.dtype(), grad.dtype()]);
        require_float(op, dtype)?;
        let mut job = job_over(out.layout());
        job.inputs = [operand(&saved), operand(&grad), Default::default()];
        job.outputs[0] = output(out);
        job.function = named(f.name());
        set_constants(&mut job, dtype, f);
        device.launch_elementwise(op, kernel(Family::Float, "derivative", dtype), job.count, &job)
    }
}

/// Writes the constants of a function to a job.
fn set_constants(job: &mut Job, dtype: DType, f: Unary) {
    let [first, second] = f.constants();
    if f.domain() == Domain::FloatsAndIntegers && !dtype.is_float() {
        // The exponent may exceed the range of a narrow integer type.
        job.integers[0] = first.as_i64();
    } else {
        set_constant(job, 0, dtype, first);
        set_constant(job, 1, dtype, second);
    }
}
