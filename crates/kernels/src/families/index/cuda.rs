//! Gather, scatter and one-hot. The device checks all indices before a kernel writes.

use bfc_cuda::kernels::{ElementType, Job, JobInput, JobOutput};

use super::{Gather, OneHot, ScatterAdd};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, job_over, kernel, kernel_dtype, operand, origin, output, require_number, required_workspace,
    strided,
};
use crate::error::{KernelError, Result};
use crate::families::RunCuda;
use crate::families::fill::cuda::fill;
use crate::families::grid::{are_many_per_index, sorts_indices};
use crate::families::sort::cuda::merge;
use crate::shape::{DType, Scalar};
use crate::storage::View;

/// Checks on the device that all indices are below `len`, and fails with the first that is not. Waits for the device,
/// unless the host uploaded the indices and knows their range.
pub(crate) fn check(device: &Launcher, op: &'static str, indices: &View<'_>, len: usize) -> Result<()> {
    const NONE: u64 = u64::MAX;
    let mut job = job_over(indices.layout());
    if job.count == 0 || indices.are_indices_below(len) {
        return Ok(());
    }
    job.inputs[0] = operand(indices);
    job.counts[0] = len as u64;
    let first = device.launch_and_read(op, Family::Index.kernel("check", ElementType::I64), job, NONE)?;
    if first == NONE {
        return Ok(());
    }
    let place = indices.layout().positions().nth(first as usize).unwrap_or(0);
    let mut index = [0; 8];
    device.download(op, indices, place * size_of::<i64>(), &mut index)?;
    Err(KernelError::IndexOutOfRange { op, index: i64::from_ne_bytes(index), len })
}

/// The operand with stride 0 along `axis`.
fn without_axis(view: &View<'_>, axis: usize) -> JobInput {
    let mut operand = strided(view);
    operand.strides[axis] = 0;
    operand
}

fn stride(view: &View<'_>, axis: usize) -> u64 {
    view.layout().strides().get(axis).copied().unwrap_or(0) as u64
}

impl RunCuda for Gather<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { input, indices, axis, ref out } = *self;
        check(device, op, &indices, input.layout().shape().dims().get(axis).copied().unwrap_or(0))?;
        let mut job = job_over(indices.layout());
        job.inputs = [without_axis(&input, axis), operand(&indices), JobInput::default()];
        job.outputs[0] = output(out);
        job.counts[1] = stride(&input, axis);
        device.launch_elementwise(op, kernel(Family::Index, "gather", out.dtype()), job.count, &job)
    }
}

impl RunCuda for ScatterAdd<'_> {
    /// The kernels sum 16-bit floats in f32. `out` may hold 16-bit floats only if the kernel sorts the indices, because only
    /// then does it finish each sum before it writes.
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { input, indices, axis, ref out, .. } = *self;
        let workspace = self.workspace.as_ref();
        require_number(op, out.dtype())?;
        let to = out.as_view();
        check(device, op, &indices, to.layout().shape().dims().get(axis).copied().unwrap_or(0))?;
        fill(device, op, Scalar::Int(0), out)?;
        let chosen = *indices.layout().shape();
        if chosen.elements() == 0 {
            // The product of the other sizes may overflow.
            return Ok(());
        }
        let others = || chosen.dims().iter().enumerate().filter(|&(other, _)| other != axis);
        let dims: Vec<usize> = others().map(|(_, &size)| size).collect();
        let lines = |view: &View<'_>| {
            let strides: Vec<usize> = others().map(|(other, _)| view.layout().strides()[other]).collect();
            JobInput::strided(origin(view), &strides).of_floats(view.dtype() == DType::F32)
        };
        let mut job = Job::over(dims.iter().product::<usize>() as u64, &dims);
        job.inputs = [lines(&input), lines(&indices), lines(&to)];
        let along = chosen.dims().get(axis).copied().unwrap_or(1);
        (job.counts[0], job.counts[1]) = (along as u64, stride(&input, axis));
        (job.counts[2], job.counts[3]) = (stride(&indices, axis), stride(&to, axis));
        let dtype = kernel_dtype([out.dtype(), input.dtype()]);
        if !sorts_indices(indices.layout(), axis) {
            return device.launch_threads(op, kernel(Family::Index, "scatter_add", dtype), job.count, &job);
        }
        let bytes = along * size_of::<i64>();
        let order = output(required_workspace(op, workspace, 2 * bytes)?);
        let mut one_line = Job::over(along as u64, &[]);
        one_line.inputs[0] = JobInput::strided(origin(&indices), &[]);
        (one_line.counts[0], one_line.counts[2]) = (along as u64, job.counts[2]);
        let beside = JobOutput::new(order.address + bytes as u64);
        merge(device, op, DType::I64, one_line, [order, beside])?;
        job.also[0] = order.address;
        job.count *= along as u64;
        let rows = to.layout().shape().dims().get(axis).copied().unwrap_or(0);
        job.function = u64::from(are_many_per_index(along, rows));
        device.launch_threads(op, kernel(Family::Index, "scatter_add_sorted", dtype), job.count, &job)
    }
}

impl RunCuda for OneHot<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { indices, ref out } = *self;
        let classes = out.layout().shape().dims().last().copied().unwrap_or(0);
        check(device, op, &indices, classes)?;
        let mut job = job_over(indices.layout());
        job.inputs[0] = operand(&indices);
        job.outputs[0] = output(out);
        (job.count, job.counts[0]) = (out.layout().shape().elements() as u64, classes as u64);
        device.launch_threads(op, kernel(Family::Index, "one_hot", out.dtype()), job.count, &job)
    }
}
