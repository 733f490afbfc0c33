//! The check of every kernel, before a backend runs it.
//!
//! Backends trust operands: a GPU kernel writes as many elements as the operands' shapes say. So this module is the only
//! caller of [`Backend::run`], [`Backend::upload`] and [`Backend::download`]. It compares shapes, element types, devices and
//! kernel parameters first. A kernel that fails the check writes nothing.
//!
//! ```text
//! OpContext::compute -> check::kernel, then Backend::run
//! ```
//!
//! Two properties hold without a check here. A layout stays within its buffer, because [`View`] and [`ViewMut`] check
//! that when they take another layout. An output overlaps no input, because a `ViewMut` borrows its buffer exclusively.
//! Each backend compares the values of indices with the size of the axis before it writes.

mod elements;
mod fast;
mod operand;
mod products;
mod recurrent;
mod rows;
mod windows;

use self::operand::{CheckedOperands, Rules};
use super::operands::Operand;
use super::{DeviceRef, Kernel, Workspace};
use crate::error::Result;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// Proof that the operands of a [`Backend`](super::Backend) call passed the check. Only this module creates one.
#[derive(Debug)]
pub struct Checked(());

#[cfg(test)]
impl Checked {
    /// Skips the check, for tests that call a backend with valid operands.
    pub(crate) const fn by_test() -> Self {
        Self(())
    }
}

/// Checks a kernel and returns the proof for the backend. Also returns the type of all operands, if the fast check found
/// it.
///
/// # Errors
/// [`Error::Operand`](crate::Error::Operand) and errors about kernel parameters.
pub(crate) fn kernel(
    device: DeviceRef<'_>,
    op: &'static str,
    kernel: &mut Kernel<'_>,
) -> Result<(Checked, Option<DType>)> {
    let dtype = fast::fits(device.serial, kernel);
    if dtype.is_none() {
        check(device, op, kernel)?;
    }
    Ok((Checked(()), dtype))
}

/// Checks a kernel and runs it on a device, outside of an op or as a part of an upcast kernel.
///
/// # Errors
/// As [`kernel`], before the backend writes anything; otherwise as [`Backend::run`](super::Backend::run).
pub(crate) fn run(device: DeviceRef<'_>, op: &'static str, kernel: &mut Kernel<'_>) -> Result<()> {
    let (checked, _) = self::kernel(device, op, kernel)?;
    device.backend.run(op, kernel, checked)
}

/// Copies values from the host, in logical order, given as raw bytes of the output's element type.
///
/// # Errors
/// [`Error::Operand`](crate::Error::Operand) for an output of another device, [`Error::ElementCount`] for a wrong number of
/// values; otherwise as [`Backend::upload`](super::Backend::upload).
pub(crate) fn upload(
    device: DeviceRef<'_>,
    op: &'static str,
    values: &[u8],
    mut out: ViewMut<'_>,
) -> Result<()> {
    let operand = Rules::new(op, device).check("out", &Operand::Write(&mut out))?;
    operand.check_bytes(op, values.len())?;
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
/// [`Error::Operand`](crate::Error::Operand) for an input of another device, [`Error::ElementCount`] for a wrong number of
/// values; otherwise as [`Backend::download`](super::Backend::download).
pub(crate) fn download(
    device: DeviceRef<'_>,
    op: &'static str,
    mut input: View<'_>,
    values: &mut [u8],
) -> Result<()> {
    let operand = Rules::new(op, device).check("input", &Operand::Read(&mut input))?;
    operand.check_bytes(op, values.len())?;
    device.backend.download(op, input, values, Checked(()))
}

/// Checks a kernel without running it.
///
/// # Errors
/// As [`run`], before the backend writes anything.
#[inline(never)]
pub(crate) fn check(device: DeviceRef<'_>, op: &'static str, kernel: &mut Kernel<'_>) -> Result<()> {
    let rules = Rules::new(op, device);
    let mut operands = CheckedOperands::new();
    kernel.operands(|name, operand| {
        operands.push(rules.check(name, &operand)?);
        Ok(())
    })?;
    let operands = &operands;
    match kernel {
        Kernel::Fill { .. }
        | Kernel::Arange { .. }
        | Kernel::Random { .. }
        | Kernel::Scale { .. }
        | Kernel::Clip { .. } => Ok(()),
        Kernel::Unary { .. }
        | Kernel::UnaryGrad { .. }
        | Kernel::Binary { .. }
        | Kernel::Accumulate { .. }
        | Kernel::Softmax { .. }
        | Kernel::SoftmaxGrad { .. } => {
            rules.same_shapes(operands.all())?;
            rules.same_computed(operands.all())
        }
        Kernel::Copy { .. } => rules.same_shapes(operands.all()),
        Kernel::Flip { axes, .. } => {
            let [input, out] = operands.first();
            rules.flags(axes, input)?;
            rules.same_shape(out, input)?;
            rules.same_type(out, input)
        }
        Kernel::CopyInto { axis, start, step, .. } => {
            elements::copy_into(rules, operands, [*axis, *start, *step])
        }
        Kernel::Compare { .. } => {
            let [lhs, rhs, out] = operands.first();
            rules.same_shapes(&[out, lhs, rhs])?;
            rules.same_computed(&[lhs, rhs])?;
            rules.typed(out, DType::Bool)
        }
        Kernel::Select { .. } => {
            let [condition, lhs, rhs, out] = operands.first();
            rules.same_shapes(&[out, condition, lhs, rhs])?;
            rules.typed(condition, DType::Bool)?;
            rules.same_type(lhs, out)?;
            rules.same_type(rhs, out)
        }
        Kernel::Reduce { f, divisor, axes, .. } => elements::reduce(rules, operands, (*f, *divisor), axes),
        Kernel::ArgReduce { axis, .. } => elements::arg_reduce(rules, operands, *axis),
        Kernel::ArgSort { .. } => elements::arg_sort(rules, operands),
        Kernel::RunningSum { axis, .. } => rules.axis(*axis, operands.last()),
        Kernel::MatMul { precision, .. } => products::mat_mul(rules, operands, *precision),
        Kernel::LayerNorm { .. } => rows::layer_norm(rules, operands),
        Kernel::LayerNormGrad { .. } => rows::layer_norm_grad(rules, operands),
        Kernel::LayerNormSums { places, .. } => rows::layer_norm_sums(rules, operands, *places),
        Kernel::BatchNorm { .. } => rows::batch_norm(rules, operands),
        Kernel::BatchNormGrad { .. } => rows::batch_norm_grad(rules, operands),
        &mut Kernel::Conv2d { ref conv, precision, .. } => {
            let ([input, weight], out) = (operands.first(), operands.last());
            windows::conv2d(rules, conv, [input, weight, out])?;
            rules.precise(precision, out)?;
            let (input, out, dtype) = (input.shape(), out.shape(), out.dtype());
            rules.workspace(operands, Workspace::Conv2d { conv, input, out, dtype, precision })
        }
        &mut Kernel::Conv2dInputGrad { ref conv, precision, .. } => {
            let ([weight, grad], out) = (operands.first(), operands.last());
            windows::conv2d(rules, conv, [out, weight, grad])?;
            rules.precise(precision, out)?;
            let (input, out, dtype) = (out.shape(), grad.shape(), out.dtype());
            rules.workspace(operands, Workspace::Conv2dInputGrad { conv, input, out, dtype, precision })
        }
        &mut Kernel::Conv2dWeightGrad { ref conv, precision, .. } => {
            let ([input, grad], weight) = (operands.first(), operands.last());
            windows::conv2d(rules, conv, [input, weight, grad])?;
            rules.precise(precision, weight)?;
            let (input, out, dtype) = (input.shape(), grad.shape(), weight.dtype());
            rules.workspace(operands, Workspace::Conv2dWeightGrad { conv, input, out, dtype, precision })
        }
        Kernel::Pool2d { axes, .. } => windows::pool2d(rules, axes, operands.first()),
        Kernel::Pool2dGrad { pool, axes, .. } => windows::pool2d_grad(rules, operands, (*pool, axes)),
        Kernel::Attention { .. } => products::attention(rules, operands),
        Kernel::AttentionGrad { .. } => products::attention_grad(rules, operands),
        Kernel::Recurrent { of, .. } | Kernel::RecurrentGrad { of, .. } => {
            recurrent::recurrent(rules, operands, (of.cell, of.len))?;
            rules.precise(of.precision, operands.required("gates"))
        }
        Kernel::CrossEntropy { .. } => rows::cross_entropy(rules, operands),
        Kernel::CrossEntropyGrad { .. } => rows::cross_entropy_grad(rules, operands),
        Kernel::Gather { axis, .. } => elements::gather(rules, operands, *axis),
        Kernel::ScatterAdd { axis, .. } => elements::scatter_add(rules, operands, *axis),
        Kernel::OneHot { .. } => elements::one_hot(rules, operands),
        Kernel::Sgd { step, .. } => rules.optimizer(operands, ("momentum", step.momentum != 0.0)),
        Kernel::RmsProp { step, .. } => rules.optimizer(operands, ("momentum", step.momentum != 0.0)),
        Kernel::Adam { step, .. } => rules.optimizer(operands, ("max_variance", step.amsgrad)),
        Kernel::Lion { .. } => rules.optimizer(operands, ("momentum", false)),
    }
}
