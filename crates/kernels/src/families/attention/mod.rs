//! Scaled dot-product attention.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Workspace};
use crate::cost::{Class, Work, times};
use crate::error::Result;
use crate::layout::Layout;
use crate::operands::{CheckedOperand, Rules, checked, operands};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// The operands of attention. All but the mask are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// The factor of the products of queries and keys.
    pub scale: f64,
    /// Whether query i attends only to the keys 0 to i.
    pub causal: bool,
    /// Shape `[heads, queries, width]`.
    pub query: View<'a>,
    /// Shape `[heads, keys, width]`.
    pub key: View<'a>,
    /// Shape `[heads, keys, values]`.
    pub value: View<'a>,
    /// Shape `[heads, queries, keys]`. Booleans select the keys that a query attends to. Floats of the query's type are
    /// added to the scores.
    pub mask: Option<View<'a>>,
}

/// `out = softmax(scale · query · keyᵀ + mask) · value` for each head (PyTorch's `scaled_dot_product_attention`). A
/// query that attends to no key returns 0.
#[derive(Debug)]
pub struct Attention<'a> {
    /// Queries, keys, values and options.
    pub of: AttentionInputs<'a>,
    /// At least as many bytes as [`AttentionWorkspace`] requires; `None` if it
    /// requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// Shape `[heads, queries, values]`.
    pub out: ViewMut<'a>,
    /// Shape `[heads, queries]`: ln Σ exp of the unmasked scores of each query.
    pub log_sums: ViewMut<'a>,
}

impl<'a> Computation<'a> for Attention<'a> {
    operands!(
        ReadContiguous of.query, ReadContiguous of.key, ReadContiguous of.value, Read of.mask,
        Scratch workspace, Write out, Write log_sums,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (query, key, value, mask) = checked!(self: of.query, of.key, of.value, of.mask);
        let (workspace, out, log_sums) = checked!(self: workspace, out, log_sums);
        inputs(rules, [query, key, value], mask)?;
        results(rules, [query, value], [out, log_sums])?;
        let (query, value, dtype) = (query.shape(), value.shape(), query.dtype());
        rules.workspace(workspace, &AttentionWorkspace { query, value, dtype })
    }

    fn work(&self) -> Work {
        work_of(&self.of, Class::Attention)
    }
}

/// The gradients of [`Attention`]. Inputs are contiguous.
#[derive(Debug)]
pub struct AttentionGrad<'a> {
    /// Queries, keys, values and options.
    pub of: AttentionInputs<'a>,
    /// `out` of the forward kernel.
    pub output: View<'a>,
    /// `log_sums` of the forward kernel.
    pub log_sums: View<'a>,
    /// The gradient of the output.
    pub grad: View<'a>,
    /// At least as many bytes as [`AttentionWorkspace`] requires; `None` if it
    /// requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The gradient of the query.
    pub query_grad: ViewMut<'a>,
    /// The gradient of the key.
    pub key_grad: ViewMut<'a>,
    /// The gradient of the value.
    pub value_grad: ViewMut<'a>,
}

impl<'a> Computation<'a> for AttentionGrad<'a> {
    operands!(
        ReadContiguous of.query, ReadContiguous of.key, ReadContiguous of.value, Read of.mask,
        ReadContiguous output, ReadContiguous log_sums, ReadContiguous grad,
        Scratch workspace, Write query_grad, Write key_grad, Write value_grad,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (query, key, value, mask) = checked!(self: of.query, of.key, of.value, of.mask);
        let (result, log_sums, grad, workspace) = checked!(self: output, log_sums, grad, workspace);
        inputs(rules, [query, key, value], mask)?;
        results(rules, [query, value], [result, log_sums])?;
        rules.same_shape(grad, result)?;
        rules.same_type(grad, result)?;
        let (query_grad, key_grad, value_grad) = checked!(self: query_grad, key_grad, value_grad);
        for (out, input) in [(query_grad, query), (key_grad, key), (value_grad, value)] {
            rules.same_shape(out, input)?;
            rules.same_type(out, input)?;
        }
        let (query, value, dtype) = (query.shape(), value.shape(), query.dtype());
        rules.workspace(workspace, &AttentionWorkspace { query, value, dtype })
    }

    fn work(&self) -> Work {
        work_of(&self.of, Class::AttentionGrad)
    }
}

/// Checks query, key, value and mask.
fn inputs(
    rules: &Rules<'_>,
    [query, key, value]: [CheckedOperand<'_>; 3],
    mask: Option<CheckedOperand<'_>>,
) -> Result<()> {
    let &[heads, queries, width] = query.dims() else {
        return Err(rules.mismatch(&query, &key, "they must have three axes: heads, rows and columns"));
    };
    let &[_, keys, values] = value.dims() else {
        return Err(rules.mismatch(&value, &query, "they must have three axes: heads, rows and columns"));
    };
    rules.sized(key, &[heads, keys, width], query, "it must be [heads, keys, width]")?;
    rules.sized(value, &[heads, keys, values], query, "it must be [heads, keys, values]")?;
    rules.same_type(key, query)?;
    rules.same_type(value, query)?;
    let Some(mask) = mask else { return Ok(()) };
    rules.sized(mask, &[heads, queries, keys], query, "it must be [heads, queries, keys]")?;
    if mask.dtype() == DType::Bool { Ok(()) } else { rules.same_type(mask, query) }
}

/// Checks the results of attention.
fn results(
    rules: &Rules<'_>,
    [query, value]: [CheckedOperand<'_>; 2],
    [out, log_sums]: [CheckedOperand<'_>; 2],
) -> Result<()> {
    // `inputs` has checked that both have three axes.
    let (rows, values) = (&query.dims()[..2], value.dims()[2]);
    rules.sized(out, &[rows[0], rows[1], values], query, "it must be [heads, queries, values]")?;
    rules.sized(log_sums, rows, query, "it must be [heads, queries]")?;
    rules.same_type(out, query)?;
    rules.typed(log_sums, query.dtype().computed_as())
}

/// The rows and columns of a tile of attention.
const TILE: u64 = 64;

fn work_of(of: &AttentionInputs<'_>, class: Class) -> Work {
    let dims = |layout: &Layout| match *layout.shape().dims() {
        [heads, rows, width] => [heads, rows, width],
        _ => [0; 3],
    };
    let ([heads, queries, width], [_, keys, values]) = (dims(of.query.layout()), dims(of.value.layout()));
    // Query i attends to the keys 0 to i. Tiles in which a query attends to a key are computed in full.
    let (pairs, computed) = match of.causal {
        true => {
            let seen = queries.min(keys) as u64;
            let rest = times(&[queries.saturating_sub(keys), keys]);
            let side = seen.div_ceil(TILE).saturating_mul(TILE);
            let in_tiles = side.saturating_mul(side.saturating_add(TILE)) / 2;
            let all = times(&[queries.min(keys), keys]);
            (seen.saturating_mul(seen + 1) / 2 + rest, in_tiles.min(all) + rest)
        }
        false => (times(&[queries, keys]), times(&[queries, keys])),
    };
    // Forward: scores and their sums of values. Backward: the scores again, and the gradients of four factors.
    let columns = match class {
        Class::AttentionGrad => 3 * width as u64 + 2 * values as u64,
        _ => width as u64 + values as u64,
    };
    let of_all = |pairs: u64| pairs.saturating_mul(heads as u64);
    Work {
        is_half: of.query.dtype().is_half(),
        multiply_adds: of_all(pairs).saturating_mul(columns),
        computed: of_all(computed).saturating_mul(columns),
        sides: [queries, keys],
        elements: of_all(pairs),
        ..Work::new(class)
    }
}

/// The workspace of [`Attention`] and its gradient.
#[derive(Clone, Copy, Debug)]
pub struct AttentionWorkspace<'a> {
    /// The query's shape.
    pub query: &'a Shape,
    /// The value's shape.
    pub value: &'a Shape,
    /// The element type.
    pub dtype: DType,
}

impl Workspace for AttentionWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        cpu::workspace(self.query.dims(), self.value.dims(), self.dtype.computed_as())
    }

    /// The kernels of a GPU keep their tiles in shared memory.
    fn gpu_bytes(&self) -> usize {
        0
    }
}
