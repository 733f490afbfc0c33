//! Checks of matrix products and attention.

use super::operand::{CheckedOperand, CheckedOperands, Rules};
use crate::backend::{Precision, Workspace};
use crate::error::Result;
use crate::shape::DType;

const FACTORS: &str = "the factors must be [.., i, k] and [.., k, j]";
const PRODUCT: &str = "the product of [.., i, k] and [.., k, j] must be [.., i, j]";

pub(super) fn mat_mul(rules: Rules<'_>, operands: &CheckedOperands<'_>, precision: Precision) -> Result<()> {
    let ([lhs, rhs], out) = (operands.first(), operands.last());
    rules.same_type(lhs, out)?;
    rules.same_type(rhs, out)?;
    rules.precise(precision, out)?;
    batched(rules, [lhs, rhs, out])?;
    if let Some(bias) = operands.named("bias") {
        rules.same_type(bias, out)?;
        // A product has at least two axes.
        if bias.dims().len() != 1 || bias.dims().last() != out.dims().last() {
            return Err(rules.misfit(&bias, &out, "it must be one row of the product"));
        }
    }
    if let Some(arguments) = operands.named("arguments") {
        rules.same_shape(arguments, out)?;
        rules.same_type(arguments, out)?;
    }
    // A product of full precision without a workspace is valid on every backend.
    if precision == Precision::Full && operands.named("workspace").is_none() {
        return Ok(());
    }
    let of = Workspace::MatMul { lhs: lhs.layout(), rhs: rhs.layout(), dtype: lhs.dtype(), precision };
    rules.workspace(operands, of)
}

/// Checks the shapes of a batched matrix product.
fn batched(rules: Rules<'_>, [lhs, rhs, out]: [CheckedOperand<'_>; 3]) -> Result<()> {
    let [left, right, product] = [lhs, rhs, out].map(|operand| operand.dims().split_last_chunk::<2>());
    let (Some((batch, &[rows, depth])), Some((other, &[inner, columns]))) = (left, right) else {
        return Err(rules.misfit(&lhs, &rhs, FACTORS));
    };
    if batch != other || depth != inner {
        return Err(rules.misfit(&rhs, &lhs, FACTORS));
    }
    if product != Some((batch, &[rows, columns])) {
        return Err(rules.misfit(&out, &lhs, PRODUCT));
    }
    Ok(())
}

pub(super) fn attention(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let [query, _, value] = heads(rules, operands)?;
    results(rules, [query, value], [operands.required("out"), operands.last()])?;
    let (query, value, dtype) = (query.shape(), value.shape(), query.dtype());
    rules.workspace(operands, Workspace::Attention { query, value, dtype })
}

pub(super) fn attention_grad(rules: Rules<'_>, operands: &CheckedOperands<'_>) -> Result<()> {
    let inputs = heads(rules, operands)?;
    let [query, _, value] = inputs;
    let [result, log_sums, grad] = ["results.0", "results.1", "grad"].map(|name| operands.required(name));
    results(rules, [query, value], [result, log_sums])?;
    rules.same_shape(grad, result)?;
    rules.same_type(grad, result)?;
    for (name, input) in ["out.0", "out.1", "out.2"].into_iter().zip(inputs) {
        let out = operands.required(name);
        rules.same_shape(out, input)?;
        rules.same_type(out, input)?;
    }
    let (query, value, dtype) = (query.shape(), value.shape(), query.dtype());
    rules.workspace(operands, Workspace::Attention { query, value, dtype })
}

/// Checks query, key, value and mask. Returns the first three.
fn heads<'a>(rules: Rules<'_>, operands: &CheckedOperands<'a>) -> Result<[CheckedOperand<'a>; 3]> {
    let [query, key, value] = operands.first();
    let &[heads, queries, width] = query.dims() else {
        return Err(rules.misfit(&query, &key, "they must have three axes: heads, rows and columns"));
    };
    let &[_, keys, values] = value.dims() else {
        return Err(rules.misfit(&value, &query, "they must have three axes: heads, rows and columns"));
    };
    rules.sized(key, &[heads, keys, width], query, "it must be [heads, keys, width]")?;
    rules.sized(value, &[heads, keys, values], query, "it must be [heads, keys, values]")?;
    rules.same_type(key, query)?;
    rules.same_type(value, query)?;
    if let Some(mask) = operands.named("mask") {
        rules.sized(mask, &[heads, queries, keys], query, "it must be [heads, queries, keys]")?;
        if mask.dtype() != DType::Bool {
            rules.same_type(mask, query)?;
        }
    }
    Ok([query, key, value])
}

/// Checks the results of attention.
fn results(
    rules: Rules<'_>,
    [query, value]: [CheckedOperand<'_>; 2],
    [out, log_sums]: [CheckedOperand<'_>; 2],
) -> Result<()> {
    // `heads` has checked that both have three axes.
    let (rows, values) = (&query.dims()[..2], value.dims()[2]);
    rules.sized(out, &[rows[0], rows[1], values], query, "it must be [heads, queries, values]")?;
    rules.sized(log_sums, rows, query, "it must be [heads, queries]")?;
    rules.same_type(out, query)?;
    rules.typed(log_sums, query.dtype().computed_as())
}
