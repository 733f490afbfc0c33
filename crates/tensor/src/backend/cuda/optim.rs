//! Optimizer steps, scaling and clipping.

use bfc_cuda::kernels::{Family, Output};

use super::launch::{Launcher, job_over, kernel, kernel_dtype, operand, output, require_float};
use crate::backend::{AdamStep, LionStep, RmsPropStep, SgdStep};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// See [`Clip`](crate::backend::kernels::Clip). `limits`: scale, low, high.
pub(crate) fn clip(
    device: &Launcher,
    op: &'static str,
    limits: [f64; 3],
    values: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, values.dtype())?;
    let mut job = job_over(values.layout());
    job.outputs[0] = output(values);
    job.constants[..3].copy_from_slice(&limits);
    device.launch_elementwise(op, kernel(Family::Optim, "clip", values.dtype()), job.count, &job)
}

/// See [`Sgd`](crate::backend::kernels::Sgd).
pub(crate) fn sgd(
    device: &Launcher,
    op: &'static str,
    step: SgdStep,
    grad: View<'_>,
    momentum: Option<&ViewMut<'_>>,
    param: &ViewMut<'_>,
) -> Result<()> {
    require_float(op, param.dtype())?;
    let mut job = job_over(param.layout());
    job.inputs[0] = operand(&grad);
    job.outputs[0] = output(param);
    job.outputs[1] = momentum.map_or_else(Output::default, output);
    (job.constants[0], job.constants[1], job.constants[2]) = (step.lr, step.weight_decay, step.momentum);
    job.function = match (momentum, step.nesterov) {
        (None, _) => 0,
        (Some(_), false) => 1,
        (Some(_), true) => 2,
    };
    device.launch_elementwise(
        op,
        kernel(Family::Optim, "sgd", kernel_dtype([param.dtype(), grad.dtype()])),
        job.count,
        &job,
    )
}

/// See [`Adam`](crate::backend::kernels::Adam). `state`: parameters, means, variances, and the largest variances.
pub(crate) fn adam(
    device: &Launcher,
    op: &'static str,
    step: AdamStep,
    grad: View<'_>,
    (state, max_variance): ([&ViewMut<'_>; 3], Option<&ViewMut<'_>>),
) -> Result<()> {
    let dtype = kernel_dtype([state[0].dtype(), grad.dtype()]);
    require_float(op, dtype)?;
    let mut job = job_over(state[0].layout());
    job.inputs[0] = operand(&grad);
    let [param, mean, variance] = state.map(output);
    job.outputs = [param, mean, variance, max_variance.map_or_else(Output::default, output)];
    job.function = u64::from(max_variance.is_some());
    // As on the CPU, the learning rate and the scale contain the bias corrections.
    let t = step.step as f64;
    let (coupled, decoupled) =
        if step.decoupled { (0.0, step.weight_decay) } else { (step.weight_decay, 0.0) };
    job.constants = [
        step.beta1,
        1.0 - step.beta1,
        step.beta2,
        1.0 - step.beta2,
        step.epsilon,
        step.lr / (1.0 - step.beta1.powf(t)),
        (1.0 - step.beta2.powf(t)).sqrt().recip(),
        coupled,
        1.0 - step.lr * decoupled,
    ];
    device.launch_elementwise(op, kernel(Family::Optim, "adam", dtype), job.count, &job)
}

/// See [`RmsProp`](crate::backend::kernels::RmsProp). `state`: parameters, means of squares, means of steps.
pub(crate) fn rms_prop(
    device: &Launcher,
    op: &'static str,
    step: RmsPropStep,
    grad: View<'_>,
    (param, variance, momentum): (&ViewMut<'_>, &ViewMut<'_>, Option<&ViewMut<'_>>),
) -> Result<()> {
    require_float(op, param.dtype())?;
    let mut job = job_over(param.layout());
    job.inputs[0] = operand(&grad);
    (job.outputs[0], job.outputs[1]) = (output(param), output(variance));
    job.outputs[2] = momentum.map_or_else(Output::default, output);
    let numbers =
        [step.lr, step.weight_decay, step.smoothing, 1.0 - step.smoothing, step.epsilon, step.momentum];
    job.constants[..6].copy_from_slice(&numbers);
    job.function = u64::from(momentum.is_some());
    device.launch_elementwise(
        op,
        kernel(Family::Optim, "rms_prop", kernel_dtype([param.dtype(), grad.dtype()])),
        job.count,
        &job,
    )
}

/// See [`Lion`](crate::backend::kernels::Lion). `state`: parameters, means.
pub(crate) fn lion(
    device: &Launcher,
    op: &'static str,
    step: LionStep,
    grad: View<'_>,
    state: [&ViewMut<'_>; 2],
) -> Result<()> {
    let dtype = kernel_dtype([state[0].dtype(), grad.dtype()]);
    require_float(op, dtype)?;
    let mut job = job_over(state[0].layout());
    job.inputs[0] = operand(&grad);
    (job.outputs[0], job.outputs[1]) = (output(state[0]), output(state[1]));
    let (beta1, beta2) = (step.beta1, step.beta2);
    let shrink = 1.0 - step.lr * step.weight_decay;
    let numbers = [step.lr, shrink, beta1, 1.0 - beta1, beta2, 1.0 - beta2];
    job.constants[..6].copy_from_slice(&numbers);
    device.launch_elementwise(op, kernel(Family::Optim, "lion", dtype), job.count, &job)
}
