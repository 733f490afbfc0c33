//! Checks of layer normalization and cross entropy.

use super::operand::{CheckedOperand, CheckedOperands, Rules};
use crate::backend::Workspace;
use crate::error::{Error, Result};
use crate::shape::DType;

const STATISTICS: &str = "it must be [rows, 2], where a row spans one or several of the last axes";

pub(super) fn layer_norm(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let ([input], statistics) = (operands.first(), operands.last());
    let out = operands.required("out");
    rules.same_shape(out, input)?;
    rules.same_computed(&[out, input])?;
    parameter(rules, operands.named("affine.0"), input)?;
    parameter(rules, operands.named("affine.1"), input)?;
    row_length(rules, input, statistics).map(drop)
}

/// Checks a parameter, which is broadcast to the input.
fn parameter(
    rules: Rules<'_>,
    parameter: Option<CheckedOperand<'_>>,
    input: CheckedOperand<'_>,
) -> Result<()> {
    let Some(parameter) = parameter else { return Ok(()) };
    rules.same_shape(parameter, input)?;
    rules.computed_like(parameter, input)
}

/// The number of elements of a row; 0 if there are no rows.
fn row_length(rules: Rules<'_>, input: CheckedOperand<'_>, statistics: CheckedOperand<'_>) -> Result<usize> {
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

/// Checks the inputs that the gradients of a normalization share. Returns the number of elements of a row.
fn normalized(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<usize> {
    let [input] = operands.first();
    parameter(rules, operands.named("of.weight"), input)?;
    rules.same_shape(operands.required("grad"), input)?;
    row_length(rules, input, operands.required("statistics"))
}

pub(super) fn layer_norm_grad(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    normalized(rules, operands)?;
    let ([input], out) = (operands.first(), operands.last());
    rules.same_shape(out, input)?;
    rules.same_computed(&[input, operands.required("grad"), out])
}

pub(super) fn layer_norm_sums(rules: Rules<'_>, operands: &CheckedOperands<'_>, places: usize) -> Result<()> {
    let length = normalized(rules, operands)?;
    let ([input], weight, bias) = (operands.first(), operands.required("weight"), operands.named("bias"));
    rules.same_computed(&[input, operands.required("grad"), weight])?;
    if let Some(bias) = bias {
        rules.same_shape(bias, weight)?;
        rules.same_type(bias, weight)?;
    }
    let (elements, parameters) = (input.elements(), weight.elements());
    let row = parameters.checked_mul(places).filter(|&row| row > 0);
    let rows = match row {
        _ if elements == 0 => 0,
        // A row of the normalization is one row, or the part that belongs to some of the parameters.
        Some(row)
            if elements.is_multiple_of(row)
                && row.is_multiple_of(length)
                && length.is_multiple_of(places) =>
        {
            elements / row
        }
        _ => {
            let rule = "elements must be [rows, parameters, places], and it must have one for each parameter";
            return Err(rules.misfit(&weight, &input, rule));
        }
    };
    let (sizes, sums, dtype) = ([rows, parameters, places], 1 + usize::from(bias.is_some()), input.dtype());
    rules.workspace(operands, Workspace::LayerNormSums { sizes, sums, dtype })
}

/// Checks that the input has channels, and that each operand has the input's computed type and one row per channel.
fn channels(
    rules: Rules<'_>,
    input: CheckedOperand<'_>,
    of_channels: &[CheckedOperand<'_>],
) -> Result<usize> {
    let &[_, channels, ..] = input.dims() else {
        let expected = "at least two axes: batch, channels, positions";
        return Err(Error::BadRank { op: rules.op, expected, shape: *input.shape() });
    };
    for &operand in of_channels {
        rules.sized(operand, &[channels], input, "it must have one element per channel, which is axis 1")?;
        rules.computed_like(operand, input)?;
    }
    Ok(channels)
}

/// Checks the mean and the scale of each channel.
fn channel_statistics(
    rules: Rules<'_>,
    operands: &CheckedOperands<'_>,
    input: CheckedOperand<'_>,
    channels: usize,
) -> Result<()> {
    let statistics = operands.required("statistics");
    rules.sized(statistics, &[channels, 2], input, "it must be [channels, 2]")?;
    rules.typed(statistics, input.dtype().computed_as())
}

pub(super) fn batch_norm(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let ([input, weight, bias, out], variance) = (operands.first(), operands.last());
    rules.same_shape(out, input)?;
    rules.same_computed(&[out, input])?;
    let channels = channels(rules, input, &[weight, bias])?;
    channel_statistics(rules, operands, input, channels)?;
    rules.sized(variance, &[channels], input, "it must have one element per channel, which is axis 1")?;
    rules.typed(variance, input.dtype().computed_as())
}

pub(super) fn batch_norm_grad(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let ([input], grad) = (operands.first(), operands.required("grad"));
    rules.same_shape(grad, input)?;
    rules.same_computed(&[input, grad])?;
    if let Some(out) = operands.named("out") {
        rules.same_shape(out, input)?;
        rules.computed_like(out, input)?;
    }
    let [weight, bias] = ["weight", "bias"].map(|name| operands.required(name));
    let mut of_channels = vec![weight, bias];
    of_channels.extend(operands.named("of.weight"));
    let channels = channels(rules, input, &of_channels)?;
    channel_statistics(rules, operands, input, channels)
}

pub(super) fn cross_entropy(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let [logits, targets, losses] = operands.first();
    targets_of_rows(rules, logits, targets)?;
    rules.same_shape(losses, targets)?;
    rules.same_computed(&[logits, losses])
}

/// Checks that there is a target for each row of logits.
fn targets_of_rows(rules: Rules<'_>, logits: CheckedOperand<'_>, targets: CheckedOperand<'_>) -> Result<()> {
    rules.typed(targets, DType::I64)?;
    let &[rows, _] = logits.dims() else {
        return Err(Error::BadRank { op: rules.op, expected: "logits of two axes", shape: *logits.shape() });
    };
    rules.sized(targets, &[rows], logits, "there must be one for each row of logits")
}

pub(super) fn cross_entropy_grad(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let [logits, targets, grad, out] = operands.first();
    targets_of_rows(rules, logits, targets)?;
    rules.same_shape(grad, targets)?;
    rules.same_shape(out, logits)?;
    rules.same_computed(&[logits, grad, out])
}
