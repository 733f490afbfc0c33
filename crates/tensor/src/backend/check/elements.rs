//! Kernels that move, compare, fold and choose elements.

use super::operand::{Operand, Rules};
use crate::backend::{Reduce, Workspace};
use crate::error::{Error, Result};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

pub(super) fn flip(rules: Rules<'_>, input: &View<'_>, axes: &[bool], out: &ViewMut<'_>) -> Result<()> {
    let [input, out] = [rules.read("input", input)?, rules.written("out", out)?];
    rules.flags(axes, input)?;
    rules.same_shape(out, input)?;
    rules.same_type(out, input)
}

pub(super) fn copy_into(
    rules: Rules<'_>,
    input: &View<'_>,
    [axis, start, step]: [usize; 3],
    out: &ViewMut<'_>,
) -> Result<()> {
    let [from, to] = [rules.read("input", input)?, rules.placed("out", out)?];
    rules.axis(axis, to)?;
    if from.shape().rank() != to.shape().rank()
        || to.shape().with_dim(axis, from.dims()[axis]) != *from.shape()
    {
        return Err(rules.misfit(&from, &to, "their sizes must be the same but for the axis of the copy"));
    }
    rules.same_type(from, to)?;
    out.layout().part(rules.op, from.shape(), axis, start, step).map(drop)
}

pub(super) fn compare(rules: Rules<'_>, [lhs, rhs]: [&View<'_>; 2], out: &ViewMut<'_>) -> Result<()> {
    let [lhs, rhs] = [rules.read("lhs", lhs)?, rules.read("rhs", rhs)?];
    let out = rules.written("out", out)?;
    rules.same_shape(lhs, out)?;
    rules.same_shape(rhs, out)?;
    rules.same_computed([lhs, rhs])?;
    rules.typed(out, DType::Bool)
}

pub(super) fn select(
    rules: Rules<'_>,
    condition: &View<'_>,
    [lhs, rhs]: [&View<'_>; 2],
    out: &ViewMut<'_>,
) -> Result<()> {
    let condition = rules.read("condition", condition)?;
    let [lhs, rhs] = [rules.read("lhs", lhs)?, rules.read("rhs", rhs)?];
    let out = rules.written("out", out)?;
    rules.typed(condition, DType::Bool)?;
    rules.same_shape(condition, out)?;
    for side in [lhs, rhs] {
        rules.same_shape(side, out)?;
        rules.same_type(side, out)?;
    }
    Ok(())
}

/// A fold, without its workspace.
pub(super) fn reduce(
    rules: Rules<'_>,
    (f, divisor): (Reduce, f64),
    [input, out]: [Operand<'_>; 2],
    axes: &[bool],
) -> Result<()> {
    rules.flags(axes, input)?;
    rules.same_computed([input, out])?;
    // An overflow is no number of elements that an output has.
    let mut kept = 1_usize;
    for (&size, &folded) in input.dims().iter().zip(axes) {
        if !folded {
            kept = kept.saturating_mul(size);
        }
    }
    if kept != out.elements() {
        return Err(rules.misfit(&out, &input, "it has an element for each combination of the kept axes"));
    }
    if divisor != 1.0 && !input.dtype().is_float() {
        return Err(Error::UnsupportedDType { op: rules.op, dtype: input.dtype() });
    }
    if matches!(f, Reduce::Max | Reduce::Min) && kept > 0 && input.elements() == 0 {
        return Err(Error::EmptyReduction { op: rules.op, shape: *input.shape() });
    }
    Ok(())
}

pub(super) fn arg_reduce(rules: Rules<'_>, input: &View<'_>, axis: usize, out: &ViewMut<'_>) -> Result<()> {
    let [input, out] = [rules.read("input", input)?, rules.written("out", out)?];
    rules.axis(axis, input)?;
    rules.typed(out, DType::I64)?;
    if input.shape().with_dim(axis, 1) != *out.shape() {
        return Err(rules.misfit(&out, &input, "it has their sizes, but 1 along the axis"));
    }
    if input.elements() == 0 && out.elements() > 0 {
        return Err(Error::EmptyReduction { op: rules.op, shape: *input.shape() });
    }
    Ok(())
}

pub(super) fn arg_sort(
    rules: Rules<'_>,
    input: &View<'_>,
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let [input, out] = [rules.read("input", input)?, rules.written("out", out)?];
    rules.same_shape(out, input)?;
    rules.typed(out, DType::I64)?;
    rules.workspace(rules.room(workspace)?, Workspace::ArgSort { shape: input.shape() })
}

pub(super) fn gather(
    rules: Rules<'_>,
    [input, indices]: [&View<'_>; 2],
    axis: usize,
    out: &ViewMut<'_>,
) -> Result<()> {
    let [input, indices] = [rules.read("input", input)?, rules.read("indices", indices)?];
    let out = rules.written("out", out)?;
    rules.axis(axis, input)?;
    rules.typed(indices, DType::I64)?;
    rules.same_type(out, input)?;
    rules.same_shape(out, indices)?;
    if !within(indices.dims(), input.dims(), axis) {
        return Err(rules.misfit(&indices, &input, WITHIN));
    }
    Ok(())
}

pub(super) fn scatter_add(
    rules: Rules<'_>,
    [input, indices]: [&View<'_>; 2],
    axis: usize,
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let of = Workspace::ScatterAdd { indices: indices.layout(), axis };
    let [input, indices] = [rules.read("input", input)?, rules.read("indices", indices)?];
    let out = rules.written("out", out)?;
    rules.axis(axis, out)?;
    rules.typed(indices, DType::I64)?;
    rules.same_computed([out, input])?;
    rules.same_shape(input, indices)?;
    if !within(indices.dims(), out.dims(), axis) {
        return Err(rules.misfit(&indices, &out, WITHIN));
    }
    rules.workspace(rules.room(workspace)?, of)
}

const WITHIN: &str = "its sizes must be at most those, but for the axis of the indices";

/// Whether indices point to elements that are there, if they are below the size of the axis that they choose along.
fn within(indices: &[usize], of: &[usize], axis: usize) -> bool {
    let sizes = indices.iter().zip(of).enumerate();
    indices.len() == of.len() && sizes.into_iter().all(|(other, (size, all))| other == axis || size <= all)
}

pub(super) fn one_hot(rules: Rules<'_>, indices: &View<'_>, out: &ViewMut<'_>) -> Result<()> {
    let [indices, out] = [rules.read("indices", indices)?, rules.written("out", out)?];
    rules.typed(indices, DType::I64)?;
    match out.dims() {
        [leading @ .., _] if leading == indices.dims() => Ok(()),
        _ => Err(rules.misfit(&out, &indices, "it has their axes, and one of the classes behind them")),
    }
}
