//! Checks of kernels that copy, compare, reduce, sort and index elements.

use super::operand::{CheckedOperands, Rules};
use crate::backend::{Reduce, Workspace};
use crate::error::{Error, Result};
use crate::shape::DType;

pub(super) fn copy_into(
    rules: Rules<'_>,
    operands: &CheckedOperands<'_>,
    [axis, start, step]: [usize; 3],
) -> Result<()> {
    let [from, to] = operands.first();
    rules.axis(axis, to)?;
    if from.shape().rank() != to.shape().rank()
        || to.shape().with_dim(axis, from.dims()[axis]) != *from.shape()
    {
        return Err(rules.misfit(&from, &to, "their sizes must be equal except along the axis of the copy"));
    }
    rules.same_type(from, to)?;
    to.layout().part(rules.op, from.shape(), axis, start, step).map(drop)
}

pub(super) fn reduce(
    rules: Rules<'_>,
    operands: &CheckedOperands<'_>,
    (f, divisor): (Reduce, f64),
    axes: &[bool],
) -> Result<()> {
    let ([input], out) = (operands.first(), operands.last());
    rules.flags(axes, input)?;
    rules.same_computed(&[input, out])?;
    // Saturates: no output has `usize::MAX` elements.
    let mut kept = 1_usize;
    for (&size, &folded) in input.dims().iter().zip(axes) {
        if !folded {
            kept = kept.saturating_mul(size);
        }
    }
    if kept != out.elements() {
        return Err(rules.misfit(
            &out,
            &input,
            "it must have one element for each combination of the kept axes",
        ));
    }
    if divisor != 1.0 && !input.dtype().is_float() {
        return Err(Error::UnsupportedDType { op: rules.op, dtype: input.dtype() });
    }
    if matches!(f, Reduce::Max | Reduce::Min) && kept > 0 && input.elements() == 0 {
        return Err(Error::EmptyReduction { op: rules.op, shape: *input.shape() });
    }
    // A reduction without a workspace is valid on every backend.
    if operands.named("workspace").is_none() {
        return Ok(());
    }
    rules.workspace(operands, Workspace::Reduce { shape: input.shape(), axes, dtype: input.dtype() })
}

pub(super) fn arg_reduce(rules: Rules<'_>, operands: &CheckedOperands<'_>, axis: usize) -> Result<()> {
    let [input, out] = operands.first();
    rules.axis(axis, input)?;
    rules.typed(out, DType::I64)?;
    if input.shape().with_dim(axis, 1) != *out.shape() {
        return Err(rules.misfit(&out, &input, "it must have the same sizes, except 1 along the axis"));
    }
    if input.elements() == 0 && out.elements() > 0 {
        return Err(Error::EmptyReduction { op: rules.op, shape: *input.shape() });
    }
    Ok(())
}

pub(super) fn arg_sort(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let ([input], out) = (operands.first(), operands.last());
    rules.same_shape(out, input)?;
    rules.typed(out, DType::I64)?;
    rules.workspace(operands, Workspace::ArgSort { shape: input.shape() })
}

pub(super) fn gather(rules: Rules<'_>, operands: &CheckedOperands<'_>, axis: usize) -> Result<()> {
    let [input, indices, out] = operands.first();
    rules.axis(axis, input)?;
    rules.typed(indices, DType::I64)?;
    rules.same_type(out, input)?;
    rules.same_shape(out, indices)?;
    if !within(indices.dims(), input.dims(), axis) {
        return Err(rules.misfit(&indices, &input, WITHIN));
    }
    Ok(())
}

pub(super) fn scatter_add(rules: Rules<'_>, operands: &CheckedOperands<'_>, axis: usize) -> Result<()> {
    let ([input, indices], out) = (operands.first(), operands.last());
    rules.axis(axis, out)?;
    rules.typed(indices, DType::I64)?;
    rules.same_computed(&[out, input])?;
    rules.same_shape(input, indices)?;
    if !within(indices.dims(), out.dims(), axis) {
        return Err(rules.misfit(&indices, &out, WITHIN));
    }
    rules.workspace(operands, Workspace::ScatterAdd { indices: indices.layout(), axis })
}

const WITHIN: &str = "its sizes must be at most as large, except along the axis of the indices";

/// Whether every index below the size of the axis addresses an element.
fn within(indices: &[usize], of: &[usize], axis: usize) -> bool {
    let sizes = indices.iter().zip(of).enumerate();
    indices.len() == of.len() && sizes.into_iter().all(|(other, (size, all))| other == axis || size <= all)
}

pub(super) fn one_hot(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let [indices, out] = operands.first();
    rules.typed(indices, DType::I64)?;
    match out.dims() {
        [leading @ .., _] if leading == indices.dims() => Ok(()),
        _ => Err(rules.misfit(&out, &indices, "it must have the same axes and a last axis of classes")),
    }
}
