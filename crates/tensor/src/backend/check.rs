//! The check of every kernel, before a backend runs it.
//!
//! Backends trust operands: a GPU kernel writes as many elements as the operands' shapes say. So this module is the only
//! caller of [`Backend::run`], [`Backend::upload`] and [`Backend::download`]. It compares shapes, element types, devices and
//! kernel parameters first. A kernel that fails the check writes nothing.
//!
//! ```text
//! OpContext::compute -> widen::run -> check::run -> Backend::run
//! ```
//!
//! Two properties hold without a check here. A layout stays within its buffer, because [`View`] and [`ViewMut`] check
//! that when they take another layout. An output overlaps no input, because a `ViewMut` borrows its buffer exclusively.
//! Each backend compares the values of indices with the size of the axis before it writes.

mod elements;
mod fast;
mod operand;
mod products;
mod rows;
mod windows;

use self::operand::Rules;
use super::{DeviceRef, Kernel, Workspace};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// Proof that the operands of a call to a [`Backend`](super::Backend) passed the check. Only this module makes one.
#[derive(Debug)]
pub struct Checked(());

#[cfg(test)]
impl Checked {
    /// For tests that call a backend with operands that they know to fit.
    pub(crate) const fn by_test() -> Self {
        Self(())
    }
}

/// Checks a kernel and runs it on the op's device.
///
/// # Errors
/// [`Error::Operand`](crate::Error::Operand) and errors about kernel parameters, before anything is written; else as
/// [`Backend::run`](super::Backend::run).
#[inline(always)]
pub(crate) fn run(device: DeviceRef<'_>, op: &'static str, kernel: Kernel<'_>) -> Result<()> {
    if fast::fits(device.serial, &kernel) {
        return device.backend.run(op, kernel, Checked(()));
    }
    run_slowly(device, op, kernel)
}

/// The general case of [`run`], for kernels and operands that the fast check does not know.
// Takes the kernel itself: callers that lend it to the check would copy it for the backend.
#[inline(never)]
fn run_slowly(device: DeviceRef<'_>, op: &'static str, kernel: Kernel<'_>) -> Result<()> {
    check(op, device, &kernel)?;
    device.backend.run(op, kernel, Checked(()))
}

/// Checks a kernel that other kernels will stand for.
///
/// # Errors
/// As [`run`], before anything is written.
pub(crate) fn kernel(device: DeviceRef<'_>, op: &'static str, kernel: &Kernel<'_>) -> Result<()> {
    check(op, device, kernel)
}

/// Copies values from the host, in logical order, given as raw bytes of the output's element type.
///
/// # Errors
/// [`Error::Operand`](crate::Error::Operand) for an output of another device, [`Error::ElementCount`] for another number of values; else as
/// [`Backend::upload`](super::Backend::upload).
pub(crate) fn upload(
    device: DeviceRef<'_>,
    op: &'static str,
    values: &[u8],
    mut out: ViewMut<'_>,
) -> Result<()> {
    let elements = Rules::new(op, device).written("out", &out)?;
    elements.fill_bytes(op, values.len())?;
    let backend = device.backend;
    backend.upload(op, values, out.reborrow(), Checked(()))?;
    if !backend.is_dry() {
        out.note_indices(values);
    }
    Ok(())
}

/// Copies values to the host, in logical order, as raw bytes.
///
/// # Errors
/// [`Error::Operand`](crate::Error::Operand) for an input of another device, [`Error::ElementCount`] for another number of values; else as
/// [`Backend::download`](super::Backend::download).
pub(crate) fn download(
    device: DeviceRef<'_>,
    op: &'static str,
    input: View<'_>,
    values: &mut [u8],
) -> Result<()> {
    let elements = Rules::new(op, device).read("input", &input)?;
    elements.fill_bytes(op, values.len())?;
    device.backend.download(op, input, values, Checked(()))
}

/// The rule of each kernel.
// Out of line, for all callers: what they do most is found to fit without it.
#[inline(never)]
fn check(op: &'static str, device: DeviceRef<'_>, kernel: &Kernel<'_>) -> Result<()> {
    let rules = Rules::new(op, device);
    match kernel {
        Kernel::Fill { out, .. } | Kernel::Arange { out, .. } | Kernel::Random { out, .. } => {
            rules.written("out", out).map(drop)
        }
        Kernel::Clip { values, .. } => rules.written("values", values).map(drop),
        Kernel::Copy { input, out } => {
            rules.same_shape(rules.written("out", out)?, rules.read("input", input)?)
        }
        Kernel::Flip { input, axes, out } => elements::flip(rules, input, axes, out),
        Kernel::CopyInto { input, axis, start, step, out } => {
            elements::copy_into(rules, input, [*axis, *start, *step], out)
        }
        Kernel::Unary { input, out, .. } => {
            let [input, out] = [rules.read("input", input)?, rules.written("out", out)?];
            rules.same_shape(out, input)?;
            rules.same_computed([out, input])
        }
        Kernel::UnaryGrad { saved, grad, out, .. } => {
            let [saved, out] = [rules.read("saved", saved)?, rules.written("out", out)?];
            rules.same_shape(saved, out)?;
            let Some(grad) = grad else { return rules.same_computed([out, saved]) };
            let grad = rules.read("grad", grad)?;
            rules.same_shape(grad, out)?;
            rules.same_computed([out, saved, grad])
        }
        Kernel::Binary { lhs, rhs, out, .. } => {
            let [lhs, rhs] = [rules.read("lhs", lhs)?, rules.read("rhs", rhs)?];
            let out = rules.written("out", out)?;
            rules.same_shape(lhs, out)?;
            rules.same_shape(rhs, out)?;
            rules.same_computed([out, lhs, rhs])
        }
        Kernel::Accumulate { input, acc, .. } => {
            let [input, acc] = [rules.read("input", input)?, rules.written("acc", acc)?];
            rules.same_shape(input, acc)?;
            rules.same_computed([acc, input])
        }
        Kernel::Compare { lhs, rhs, out, .. } => elements::compare(rules, [lhs, rhs], out),
        Kernel::Select { condition, lhs, rhs, out } => elements::select(rules, condition, [lhs, rhs], out),
        Kernel::Reduce { f, divisor, input, axes, workspace, out } => {
            let [input, out] = [rules.read("input", input)?, rules.written("out", out)?];
            elements::reduce(rules, (*f, *divisor), [input, out], axes)?;
            let Some(workspace) = rules.room(workspace.as_ref())? else { return Ok(()) };
            let (shape, dtype) = (input.shape(), input.dtype());
            rules.workspace(Some(workspace), Workspace::Reduce { shape, axes, dtype })
        }
        Kernel::ArgReduce { input, axis, out, .. } => elements::arg_reduce(rules, input, *axis, out),
        Kernel::ArgSort { input, workspace, out, .. } => {
            elements::arg_sort(rules, input, workspace.as_ref(), out)
        }
        Kernel::RunningSum { axis, out, .. } => rules.axis(*axis, rules.written("out", out)?),
        Kernel::MatMul { bias, lhs, rhs, activation, workspace, out } => {
            products::mat_mul(rules, [lhs, rhs], out)?;
            if let Some(bias) = bias {
                products::bias(rules, bias, out)?;
            }
            if let Some(arguments) = activation.as_ref().and_then(|of| of.arguments.as_ref()) {
                let [arguments, out] = [rules.written("arguments", arguments)?, rules.written("out", out)?];
                rules.same_shape(arguments, out)?;
                rules.same_type(arguments, out)?;
            }
            let Some(workspace) = rules.room(workspace.as_ref())? else { return Ok(()) };
            let of = Workspace::MatMul { lhs: lhs.layout(), rhs: rhs.layout(), dtype: lhs.dtype() };
            rules.workspace(Some(workspace), of)
        }
        Kernel::Softmax { input, out, .. } => {
            let [input, out] = [rules.read("input", input)?, rules.written("out", out)?];
            rules.same_shape(input, out)?;
            rules.same_computed([out, input])
        }
        Kernel::SoftmaxGrad { output, grad, out, .. } => {
            let [output, grad] = [rules.read("output", output)?, rules.read("grad", grad)?];
            let out = rules.written("out", out)?;
            rules.same_shape(output, out)?;
            rules.same_shape(grad, out)?;
            rules.same_computed([out, output, grad])
        }
        Kernel::LayerNorm { input, affine, out, statistics, .. } => {
            rows::layer_norm(rules, input, affine, [out, statistics])
        }
        Kernel::LayerNormGrad { of, grad, out } => rows::layer_norm_grad(rules, of, grad, out),
        Kernel::LayerNormSums { of, grad, places, workspace, weight, bias } => {
            rows::layer_norm_sums(rules, of, (grad, *places), workspace.as_ref(), (weight, bias.as_ref()))
        }
        Kernel::Conv2d { conv, input, weight, workspace, out } => {
            let [input, weight] = [rules.packed("input", input)?, rules.packed("weight", weight)?];
            let out = rules.written("out", out)?;
            windows::conv2d(rules, conv, [input, weight, out])?;
            let (input, out, dtype) = (input.shape(), out.shape(), out.dtype());
            rules.workspace(rules.room(workspace.as_ref())?, Workspace::Conv2d { conv, input, out, dtype })
        }
        Kernel::Conv2dInputGrad { conv, weight, grad, workspace, out } => {
            let [weight, grad] = [rules.packed("weight", weight)?, rules.packed("grad", grad)?];
            let out = rules.written("out", out)?;
            windows::conv2d(rules, conv, [out, weight, grad])?;
            let (input, small, dtype) = (out.shape(), grad.shape(), out.dtype());
            rules.workspace(
                rules.room(workspace.as_ref())?,
                Workspace::Conv2d { conv, input, out: small, dtype },
            )
        }
        Kernel::Conv2dWeightGrad { conv, input, grad, workspace, out } => {
            let [input, grad] = [rules.packed("input", input)?, rules.packed("grad", grad)?];
            let weight = rules.written("out", out)?;
            windows::conv2d(rules, conv, [input, weight, grad])?;
            let (input, out, dtype) = (input.shape(), grad.shape(), weight.dtype());
            rules.workspace(
                rules.room(workspace.as_ref())?,
                Workspace::Conv2dWeightGrad { conv, input, out, dtype },
            )
        }
        Kernel::Pool2d { axes, input, out, .. } => {
            windows::pool2d(rules, axes, [rules.packed("input", input)?, rules.written("out", out)?])
        }
        Kernel::Pool2dGrad { pool, axes, input, grad, out } => {
            windows::pool2d_grad(rules, (*pool, axes), (input.as_ref(), grad), out)
        }
        Kernel::Attention { of, workspace, out, log_sums } => {
            products::attention(rules, of, workspace.as_ref(), [out, log_sums])
        }
        Kernel::AttentionGrad { of, results, grad, workspace, out } => {
            products::attention_grad(rules, of, (results, grad), workspace.as_ref(), out)
        }
        Kernel::CrossEntropy { logits, targets, losses } => {
            rows::cross_entropy(rules, logits, targets, losses)
        }
        Kernel::CrossEntropyGrad { logits, targets, grad, out } => {
            rows::cross_entropy_grad(rules, [logits, targets, grad], out)
        }
        Kernel::Gather { input, indices, axis, out } => elements::gather(rules, [input, indices], *axis, out),
        Kernel::ScatterAdd { input, indices, axis, workspace, out } => {
            elements::scatter_add(rules, [input, indices], *axis, workspace.as_ref(), out)
        }
        Kernel::OneHot { indices, out } => elements::one_hot(rules, indices, out),
        Kernel::Sgd { step, grad, momentum, param } => {
            let [grad, param] = [rules.read("grad", grad)?, rules.written("param", param)?];
            rules.same_shape(grad, param)?;
            rules.same_computed([param, grad])?;
            rules.momentum(step.momentum, momentum.as_ref(), param)
        }
        Kernel::Adam { grad, mean, variance, param, .. } => {
            let [grad, param] = [rules.read("grad", grad)?, rules.written("param", param)?];
            rules.same_shape(grad, param)?;
            rules.same_computed([param, grad])?;
            rules.state("mean", mean, param)?;
            rules.state("variance", variance, param)
        }
        Kernel::RmsProp { step, grad, variance, momentum, param } => {
            let [grad, param] = [rules.read("grad", grad)?, rules.written("param", param)?];
            rules.same_shape(grad, param)?;
            rules.same_computed([param, grad])?;
            rules.state("variance", variance, param)?;
            rules.momentum(step.momentum, momentum.as_ref(), param)
        }
        Kernel::Lion { grad, mean, param, .. } => {
            let [grad, param] = [rules.read("grad", grad)?, rules.written("param", param)?];
            rules.same_shape(grad, param)?;
            rules.same_computed([param, grad])?;
            rules.state("mean", mean, param)
        }
    }
}
