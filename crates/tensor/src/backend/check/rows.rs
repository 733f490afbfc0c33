//! Normalised rows, and the losses of rows of logits.

use super::operand::{Operand, Rules};
use crate::backend::{Normalised, Workspace};
use crate::error::{Error, Result};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

const STATISTICS: &str = "it is [rows, 2], where a row is the last axis or several of the last axes";

pub(super) fn layer_norm(
    rules: Rules<'_>,
    input: &View<'_>,
    [weight, bias]: &[Option<View<'_>>; 2],
    [out, statistics]: [&ViewMut<'_>; 2],
) -> Result<()> {
    let input = rules.read("input", input)?;
    let [out, statistics] = [rules.written("out", out)?, rules.written("statistics", statistics)?];
    rules.same_shape(out, input)?;
    rules.same_computed([out, input])?;
    affine(rules, "affine.0", weight.as_ref(), input)?;
    affine(rules, "affine.1", bias.as_ref(), input)?;
    row_length(rules, input, statistics).map(drop)
}

/// A parameter of the rows, repeated for all of them.
fn affine(
    rules: Rules<'_>,
    name: &'static str,
    parameter: Option<&View<'_>>,
    input: Operand<'_>,
) -> Result<()> {
    let Some(parameter) = parameter else { return Ok(()) };
    let parameter = rules.read(name, parameter)?;
    rules.same_shape(parameter, input)?;
    rules.computed_like(parameter, input)
}

/// How many elements a row has; 0 if there are none.
fn row_length(rules: Rules<'_>, input: Operand<'_>, statistics: Operand<'_>) -> Result<usize> {
    rules.typed(statistics, input.dtype().computed_as())?;
    let elements = input.elements();
    let is_row = |length: usize| {
        let mut size = 1;
        input.dims().iter().rev().any(|&axis| {
            size = usize::saturating_mul(size, axis);
            size == length
        })
    };
    match *statistics.dims() {
        [0, 2] if elements == 0 => Ok(0),
        [rows, 2] if rows > 0 && elements.is_multiple_of(rows) && elements > 0 && is_row(elements / rows) => {
            Ok(elements / rows)
        }
        _ => Err(rules.misfit(&statistics, &input, STATISTICS)),
    }
}

/// What was normalised, with its number of elements for each row.
fn normalised<'a>(rules: Rules<'_>, of: &Normalised<'a>) -> Result<(Operand<'a>, usize)> {
    let input = rules.read("input", &of.input)?;
    affine(rules, "weight", of.weight.as_ref(), input)?;
    let length = row_length(rules, input, rules.packed("statistics", &of.statistics)?)?;
    Ok((input, length))
}

pub(super) fn layer_norm_grad(
    rules: Rules<'_>,
    of: &Normalised<'_>,
    grad: &View<'_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let (input, _) = normalised(rules, of)?;
    let [grad, out] = [rules.read("grad", grad)?, rules.written("out", out)?];
    rules.same_shape(grad, input)?;
    rules.same_shape(out, input)?;
    rules.same_computed([input, grad, out])
}

pub(super) fn layer_norm_sums(
    rules: Rules<'_>,
    of: &Normalised<'_>,
    (grad, places): (&View<'_>, usize),
    workspace: Option<&ViewMut<'_>>,
    (weight, bias): (&ViewMut<'_>, Option<&ViewMut<'_>>),
) -> Result<()> {
    let (input, length) = normalised(rules, of)?;
    let [grad, weight] = [rules.read("grad", grad)?, rules.written("weight", weight)?];
    rules.same_shape(grad, input)?;
    rules.same_computed([input, grad, weight])?;
    if let Some(bias) = bias {
        let bias = rules.written("bias", bias)?;
        rules.same_shape(bias, weight)?;
        rules.same_type(bias, weight)?;
    }
    let (elements, parameters) = (input.elements(), weight.elements());
    let row = parameters.checked_mul(places).filter(|&row| row > 0);
    let rows = match row {
        _ if elements == 0 => 0,
        // A row of the normalization is one row, or some of its parameters.
        Some(row)
            if elements.is_multiple_of(row)
                && row.is_multiple_of(length)
                && length.is_multiple_of(places) =>
        {
            elements / row
        }
        _ => {
            let rule = "elements are [rows, parameters, places], and it has one for each parameter";
            return Err(rules.misfit(&weight, &input, rule));
        }
    };
    let (sizes, sums, dtype) = ([rows, parameters, places], 1 + usize::from(bias.is_some()), input.dtype());
    rules.workspace(rules.room(workspace)?, Workspace::LayerNormSums { sizes, sums, dtype })
}

pub(super) fn cross_entropy(
    rules: Rules<'_>,
    logits: &View<'_>,
    targets: &View<'_>,
    losses: &ViewMut<'_>,
) -> Result<()> {
    let [logits, targets] = [rules.read("logits", logits)?, rules.read("targets", targets)?];
    let losses = rules.written("losses", losses)?;
    of_rows(rules, logits, targets)?;
    rules.same_shape(losses, targets)?;
    rules.same_computed([logits, losses])
}

/// That there is a target for each row of logits.
fn of_rows(rules: Rules<'_>, logits: Operand<'_>, targets: Operand<'_>) -> Result<()> {
    rules.typed(targets, DType::I64)?;
    let &[rows, _] = logits.dims() else {
        return Err(Error::BadRank { op: rules.op, expected: "logits of two axes", shape: *logits.shape() });
    };
    rules.sized(targets, &[rows], logits, "there is one for each row of logits")
}

pub(super) fn cross_entropy_grad(
    rules: Rules<'_>,
    [logits, targets, grad]: [&View<'_>; 3],
    out: &ViewMut<'_>,
) -> Result<()> {
    let [logits, targets] = [rules.read("logits", logits)?, rules.read("targets", targets)?];
    let [grad, out] = [rules.read("grad", grad)?, rules.written("out", out)?];
    of_rows(rules, logits, targets)?;
    rules.same_shape(grad, targets)?;
    rules.same_shape(out, logits)?;
    rules.same_computed([logits, grad, out])
}
