//! Convolutions and pools.

use bfc_cuda::kernels::{Family, Job, Operand, Output};

use super::factors::Factors;
use super::launch::{Launcher, job_over, kernel, operand, output, require_float};
use super::reduce::sum_rows;
use crate::backend::grid::ConvGemm;
use crate::backend::{Convolution, PoolAxis, PoolReduction, PoolWindow, Window};
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::{View, ViewMut};

fn dims(layout: &Layout) -> &[usize] {
    layout.shape().dims()
}

/// Creates the job of a convolution from images `large` to images `small`, over the elements of `out`.
fn convolution(
    conv: &Convolution,
    [large, small]: [&Layout; 2],
    factors: &Factors,
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
    let [first, second] = &factors.both;
    job.inputs = [first.contiguous(), second.contiguous(), Default::default()];
    job.outputs[0] = output(out);
    job
}

/// See [`Conv2d`](crate::backend::kernels::Conv2d).
pub(crate) fn conv2d(
    device: &Launcher,
    op: &'static str,
    conv: &Convolution,
    factors: &Factors,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let input = &factors.both[0].layout;
    let mut job = convolution(conv, [input, out.layout()], factors, out);
    let named = |name| kernel(Family::Conv, name, factors.dtype);
    let gemm = ConvGemm::of_output(conv, dims(input), dims(out.layout()));
    if gemm.is_tiled() {
        job.count = gemm.tiles() as u64;
        return device.launch_blocks(op, named("conv2d_tiled"), job.count, &job);
    }
    device.launch_threads(op, named("conv2d"), job.count, &job)
}

/// See [`Conv2dInputGrad`](crate::backend::kernels::Conv2dInputGrad).
pub(crate) fn conv2d_input_grad(
    device: &Launcher,
    op: &'static str,
    conv: &Convolution,
    factors: &Factors,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let grad = &factors.both[1].layout;
    let mut job = convolution(conv, [out.layout(), grad], factors, out);
    let named = |name| kernel(Family::Conv, name, factors.dtype);
    let gemm = ConvGemm::of_input_grad(conv, dims(out.layout()), dims(grad));
    if gemm.is_tiled() {
        job.count = gemm.tiles() as u64;
        job.integers =
            conv.windows.map(|window| (window.stride / gcd(window.stride, window.dilation)) as i64);
        return device.launch_blocks(op, named("conv2d_input_grad_tiled"), job.count, &job);
    }
    device.launch_threads(op, named("conv2d_input_grad"), job.count, &job)
}

/// See [`Conv2dWeightGrad`](crate::backend::kernels::Conv2dWeightGrad).
pub(crate) fn conv2d_weight_grad(
    device: &Launcher,
    op: &'static str,
    conv: &Convolution,
    factors: &Factors,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let [input, grad] = factors.both.each_ref().map(|factor| &factor.layout);
    let mut job = convolution(conv, [input, grad], factors, out);
    let named = |name| kernel(Family::Conv, name, factors.dtype);
    let gemm = ConvGemm::of_weight_grad(conv, dims(input), dims(grad));
    if !gemm.is_tiled() {
        return device.launch_blocks(op, named("conv2d_weight_grad"), job.count, &job);
    }
    let (parts, products) = gemm.depth_splits();
    job.count = (gemm.tiles() * parts) as u64;
    job.inner_dims[6] = products as u64;
    let bytes = gemm.partial_elements() * out.dtype().computed_as().size();
    let partial = (parts > 1).then(|| factors.required_workspace(op, bytes)).transpose()?;
    job.outputs[0] = partial.map_or_else(|| output(out), |address| Output::new(address).of_floats(true));
    device.launch_blocks(op, named("conv2d_weight_grad_tiled"), job.count, &job)?;
    let Some(partial) = partial else { return Ok(()) };
    let partial = Operand::contiguous(partial).of_floats(true);
    sum_rows(device, op, partial, [parts, out.layout().shape().elements()], out)
}

/// The greatest common divisor.
const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Creates the job of a pool from planes of `large` to planes of `small`.
fn pool(pool: PoolReduction, axes: [PoolAxis; 2], large: &Layout, small: &Layout) -> Job {
    let plane = |layout: &Layout| {
        let dims = layout.shape().dims();
        [2, 1].map(|back| dims.len().checked_sub(back).map_or(1, |axis| dims[axis]))
    };
    let windows = axes.map(|axis| match axis {
        PoolAxis::Sliding(PoolWindow { window, .. }) => window,
        PoolAxis::Adaptive { .. } => Window::new(1),
    });
    // Numbered as in the kernel.
    let kinds = axes.map(|axis| match axis {
        PoolAxis::Sliding(PoolWindow { count_include_pad: true, .. }) => 0,
        PoolAxis::Adaptive { .. } => 1,
        PoolAxis::Sliding(_) => 2,
    });
    let mut job = Job::default().with_inner(&[
        windows[0].stride,
        windows[1].stride,
        windows[0].padding,
        windows[1].padding,
        kinds[0],
        kinds[1],
    ]);
    let (from, to) = (plane(large), plane(small));
    job.counts = [from[0], from[1], to[0], to[1], windows[0].size, windows[1].size].map(|count| count as u64);
    job.function = u64::from(pool == PoolReduction::Mean);
    job
}

/// See [`Pool2d`](crate::backend::kernels::Pool2d).
pub(crate) fn pool2d(
    device: &Launcher,
    op: &'static str,
    (kind, axes): (PoolReduction, [PoolAxis; 2]),
    input: View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = pool(kind, axes, input.layout(), out.layout());
    job.count = out.layout().shape().elements() as u64;
    job.inputs[0] = operand(&input);
    job.outputs[0] = output(out);
    device.launch_threads(op, kernel(Family::Pool, "pool2d", out.dtype()), job.count, &job)
}

/// See [`Pool2dGrad`](crate::backend::kernels::Pool2dGrad).
pub(crate) fn pool2d_grad(
    device: &Launcher,
    op: &'static str,
    (kind, axes): (PoolReduction, [PoolAxis; 2]),
    (input, grad): (Option<View<'_>>, View<'_>),
    out: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, out.dtype())?;
    let mut job = pool(kind, axes, out.layout(), grad.layout());
    job.count = out.layout().shape().elements() as u64;
    job.inputs = [input.as_ref().map(operand).unwrap_or_default(), operand(&grad), Default::default()];
    job.outputs[0] = output(out);
    device.launch_threads(op, kernel(Family::Pool, "pool2d_grad", out.dtype()), job.count, &job)
}
