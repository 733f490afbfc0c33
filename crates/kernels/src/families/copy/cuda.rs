//! Copies on CUDA devices.

use super::{Copy, CopyInto, Flip};
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, operand, output, strided};
use crate::error::Result;
use crate::families::RunCuda;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

impl RunCuda for Copy<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        copy(device, op, self.input, &self.out)
    }
}

/// See [`Copy`](crate::families::Copy).
pub(crate) fn copy(device: &Launcher, op: &'static str, input: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    let mut job = job_over(input.layout());
    job.inputs[0] = operand(&input);
    job.outputs[0] = output(out);
    let kernel = match (input.dtype(), out.dtype()) {
        (from, to) if from == to => kernel(Family::Elementwise, "copy", from),
        (from, DType::F32) => kernel(Family::Convert, "to_f32", from),
        (from, DType::F64) => kernel(Family::Convert, "to_f64", from),
        (from, DType::F16) => kernel(Family::Convert, "to_f16", from),
        (from, DType::BF16) => kernel(Family::Convert, "to_bf16", from),
        (from, DType::I64) => kernel(Family::Convert, "to_i64", from),
        (from, DType::I32) => kernel(Family::Convert, "to_i32", from),
        (from, DType::U32) => kernel(Family::Convert, "to_u32", from),
        (from, DType::U8) => kernel(Family::Convert, "to_u8", from),
        (from, DType::Bool) => kernel(Family::Convert, "to_bool", from),
    };
    device.launch_elementwise(op, kernel, job.count, &job)
}

impl RunCuda for Flip<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { input, axes, ref out } = *self;
        let mut job = job_over(input.layout());
        job.inputs[0] = strided(&input);
        job.outputs[0] = output(out);
        job.function = (0..).zip(axes).map(|(axis, &flipped)| u64::from(flipped) << axis).sum();
        device.launch_threads(op, kernel(Family::Elementwise, "flip", out.dtype()), job.count, &job)
    }
}

impl RunCuda for CopyInto<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { input, axis, start, step, ref out } = *self;
        let part = out.layout().part(op, input.layout().shape(), axis, start, step)?;
        let mut job = job_over(input.layout());
        job.inputs = [operand(&input), strided(&out.as_view().with_layout(&part)), Default::default()];
        device.launch_elementwise(op, kernel(Family::Elementwise, "place", out.dtype()), job.count, &job)
    }
}
