//! Convolutions on CUDA devices.

use bfc_cuda::kernels::{Job, JobInput};

use super::{Conv2d, Conv2dInputGrad, Conv2dWeightGrad};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, job_over, kernel, origin, output, require_float, required_workspace, workspace_operand,
    workspace_output,
};
use crate::error::Result;
use crate::families::RunCuda;
use crate::families::grid::ConvGemm;
use crate::families::reduce::cuda::sum_rows;
use crate::layout::Layout;
use crate::storage::{View, ViewMut};
use crate::window::Convolution;

fn dims(layout: &Layout) -> &[usize] {
    layout.shape().dims()
}

/// Creates the job of a convolution from images `large` to images `small`, over the elements of `out`.
fn convolution(
    conv: &Convolution,
    [large, small]: [&Layout; 2],
    factors: [&View<'_>; 2],
    out: &ViewMut<'_>,
) -> Job {
    let [vertical, horizontal] = conv.windows;
    let [channels, high, wide] = [1, 2, 3].map(|axis| dims(small).get(axis).copied().unwrap_or(0));
    let mut job =
        job_over(large).with_inner(&[channels, high, wide, vertical.size, horizontal.size, conv.groups]);
    job.counts = [
        vertical.stride,
        horizontal.stride,
        vertical.padding,
        horizontal.padding,
        vertical.dilation,
        horizontal.dilation,
    ]
    .map(|count| count as u64);
    job.count = out.layout().shape().elements() as u64;
    let [first, second] = factors.map(|factor| JobInput::contiguous(origin(factor)));
    job.inputs = [first, second, Default::default()];
    job.outputs[0] = output(out);
    job
}

impl RunCuda for Conv2d<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref conv, ref out, .. } = *self;
        require_float(op, out.dtype())?;
        let input = self.input.layout();
        let mut job = convolution(conv, [input, out.layout()], [&self.input, &self.weight], out);
        let named = |name| kernel(Family::Conv, name, out.dtype());
        let gemm = ConvGemm::of_output(conv, dims(input), dims(out.layout()));
        if gemm.is_tiled() {
            job.count = gemm.tiles() as u64;
            return device.launch_blocks(op, named("conv2d_tiled"), job.count, &job);
        }
        device.launch_threads(op, named("conv2d"), job.count, &job)
    }
}

impl RunCuda for Conv2dInputGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref conv, ref out, .. } = *self;
        require_float(op, out.dtype())?;
        let grad = self.grad.layout();
        let mut job = convolution(conv, [out.layout(), grad], [&self.weight, &self.grad], out);
        let named = |name| kernel(Family::Conv, name, out.dtype());
        let gemm = ConvGemm::of_input_grad(conv, dims(out.layout()), dims(grad));
        if gemm.is_tiled() {
            job.count = gemm.tiles() as u64;
            job.integers =
                conv.windows.map(|window| (window.stride / gcd(window.stride, window.dilation)) as i64);
            return device.launch_blocks(op, named("conv2d_input_grad_tiled"), job.count, &job);
        }
        device.launch_threads(op, named("conv2d_input_grad"), job.count, &job)
    }
}

impl RunCuda for Conv2dWeightGrad<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { ref conv, ref out, .. } = *self;
        require_float(op, out.dtype())?;
        let [input, grad] = [self.input.layout(), self.grad.layout()];
        let mut job = convolution(conv, [input, grad], [&self.input, &self.grad], out);
        let named = |name| kernel(Family::Conv, name, self.input.dtype());
        let gemm = ConvGemm::of_weight_grad(conv, dims(input), dims(grad));
        if !gemm.is_tiled() {
            return device.launch_blocks(op, named("conv2d_weight_grad"), job.count, &job);
        }
        let (parts, products) = gemm.depth_splits();
        job.count = (gemm.tiles() * parts) as u64;
        job.inner_dims[6] = products as u64;
        let bytes = gemm.partial_elements() * out.dtype().computed_as().size();
        let workspace = || required_workspace(op, self.workspace.as_ref(), bytes);
        let partial = (parts > 1).then(workspace).transpose()?;
        job.outputs[0] = partial.map_or_else(|| output(out), workspace_output);
        device.launch_blocks(op, named("conv2d_weight_grad_tiled"), job.count, &job)?;
        let Some(partial) = partial else { return Ok(()) };
        sum_rows(device, op, workspace_operand(partial), [parts, out.layout().shape().elements()], out)
    }
}

/// The greatest common divisor.
const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
