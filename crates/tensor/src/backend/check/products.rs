//! Products of matrices, and attention.

use super::operand::{Operand, Rules};
use crate::backend::{Attention, Workspace};
use crate::error::Result;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

const FACTORS: &str = "factors are [.., i, k] and [.., k, j]";
const PRODUCT: &str = "the product of [.., i, k] and [.., k, j] is [.., i, j]";

/// A product, without its bias, its activation and its workspace.
pub(super) fn mat_mul(rules: Rules<'_>, [lhs, rhs]: [&View<'_>; 2], out: &ViewMut<'_>) -> Result<()> {
    let [lhs, rhs] = [rules.read("lhs", lhs)?, rules.read("rhs", rhs)?];
    let out = rules.written("out", out)?;
    rules.same_type(lhs, out)?;
    rules.same_type(rhs, out)?;
    // Matrices, by far the most common, take no loop.
    if let (Some([rows, depth]), Some([inner, columns]), Some(product)) =
        (lhs.shape().as_matrix(), rhs.shape().as_matrix(), out.shape().as_matrix())
        && depth == inner
        && product == [rows, columns]
    {
        return Ok(());
    }
    stacked(rules, [lhs, rhs, out])
}

/// A product of stacks of matrices, or one that does not fit.
fn stacked(rules: Rules<'_>, [lhs, rhs, out]: [Operand<'_>; 3]) -> Result<()> {
    let [left, right, product] = [lhs, rhs, out].map(|operand| operand.dims().split_last_chunk::<2>());
    let (Some((stack, &[rows, depth])), Some((other, &[inner, columns]))) = (left, right) else {
        return Err(rules.misfit(&lhs, &rhs, FACTORS));
    };
    if stack != other || depth != inner {
        return Err(rules.misfit(&rhs, &lhs, FACTORS));
    }
    if product != Some((stack, &[rows, columns])) {
        return Err(rules.misfit(&out, &lhs, PRODUCT));
    }
    Ok(())
}

/// What a product's rows start with.
pub(super) fn bias(rules: Rules<'_>, bias: &View<'_>, out: &ViewMut<'_>) -> Result<()> {
    let [bias, out] = [rules.read("bias", bias)?, rules.placed("out", out)?];
    rules.same_type(bias, out)?;
    // A product has two axes at least.
    if bias.dims().len() != 1 || bias.dims().last() != out.dims().last() {
        return Err(rules.misfit(&bias, &out, "it is one row of the product"));
    }
    Ok(())
}

pub(super) fn attention(
    rules: Rules<'_>,
    of: &Attention<'_>,
    workspace: Option<&ViewMut<'_>>,
    [out, log_sums]: [&ViewMut<'_>; 2],
) -> Result<()> {
    let [query, _, value] = heads(rules, of)?;
    let [out, log_sums] = [rules.written("out", out)?, rules.written("log_sums", log_sums)?];
    results(rules, [query, value], [out, log_sums])?;
    let (query, value, dtype) = (query.shape(), value.shape(), query.dtype());
    rules.workspace(rules.room(workspace)?, Workspace::Attention { query, value, dtype })
}

pub(super) fn attention_grad(
    rules: Rules<'_>,
    of: &Attention<'_>,
    (&[result, log_sums], grad): (&[View<'_>; 2], &View<'_>),
    workspace: Option<&ViewMut<'_>>,
    out: &[ViewMut<'_>; 3],
) -> Result<()> {
    let operands = heads(rules, of)?;
    let [query, _, value] = operands;
    let [result, log_sums] = [rules.packed("results.0", &result)?, rules.packed("results.1", &log_sums)?];
    results(rules, [query, value], [result, log_sums])?;
    let grad = rules.packed("grad", grad)?;
    rules.same_shape(grad, result)?;
    rules.same_type(grad, result)?;
    for ((name, out), operand) in ["out.0", "out.1", "out.2"].into_iter().zip(out).zip(operands) {
        let out = rules.written(name, out)?;
        rules.same_shape(out, operand)?;
        rules.same_type(out, operand)?;
    }
    let (query, value, dtype) = (query.shape(), value.shape(), query.dtype());
    rules.workspace(rules.room(workspace)?, Workspace::Attention { query, value, dtype })
}

/// Query, key and value, which fit each other and the mask.
fn heads<'a>(rules: Rules<'_>, of: &Attention<'a>) -> Result<[Operand<'a>; 3]> {
    let query = rules.packed("query", &of.query)?;
    let [key, value] = [rules.packed("key", &of.key)?, rules.packed("value", &of.value)?];
    let &[heads, queries, width] = query.dims() else {
        return Err(rules.misfit(&query, &key, "they have three axes: heads, rows and columns"));
    };
    let &[_, keys, values] = value.dims() else {
        return Err(rules.misfit(&value, &query, "they have three axes: heads, rows and columns"));
    };
    rules.sized(key, &[heads, keys, width], query, "[heads, keys, width] fits [heads, queries, width]")?;
    rules.sized(
        value,
        &[heads, keys, values],
        query,
        "[heads, keys, values] fits [heads, queries, width]",
    )?;
    rules.same_type(key, query)?;
    rules.same_type(value, query)?;
    if let Some(mask) = &of.mask {
        let mask = rules.read("mask", mask)?;
        rules.sized(mask, &[heads, queries, keys], query, "it is [heads, queries, keys]")?;
        if mask.dtype() != DType::Bool {
            rules.same_type(mask, query)?;
        }
    }
    Ok([query, key, value])
}

/// What attention gives.
fn results(
    rules: Rules<'_>,
    [query, value]: [Operand<'_>; 2],
    [out, log_sums]: [Operand<'_>; 2],
) -> Result<()> {
    // Both were found to have three axes.
    let (rows, values) = (&query.dims()[..2], value.dims()[2]);
    rules.sized(out, &[rows[0], rows[1], values], query, "it is [heads, queries, values]")?;
    rules.sized(log_sums, rows, query, "it is [heads, queries]")?;
    rules.same_type(out, query)?;
    rules.typed(log_sums, query.dtype().computed_as())
}
