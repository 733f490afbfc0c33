//! Scaled dot-product attention.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Workspace};
use crate::cost::{Class, Work, times};
use crate::error::{OperandFault, Result};
use crate::layout::Layout;
use crate::operands::{CheckedOperand, Rules, checked, operands};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// The operands of attention. Queries are contiguous. The rows of each head of keys and values are contiguous; the heads
/// may have any stride, for example in a cache with room for more keys.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// The factor of the products of queries and keys.
    pub scale: f64,
    /// Whether the last query attends to all keys, and each query before it to one key fewer: query i of Q attends to
    /// the keys 0 to K - Q + i.
    pub causal: bool,
    /// Shape `[heads, queries, width]`.
    pub query: View<'a>,
    /// Shape `[key heads, keys, width]`. The number of key heads divides that of heads: each serves neighboring heads.
    pub key: View<'a>,
    /// Shape `[key heads, keys, values]`.
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
        ReadContiguous of.query, Read of.key, Read of.value, Read of.mask,
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

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        work_of(&self.of, Class::Attention)
    }
}

/// The gradients of [`Attention`]. The inputs that only the gradients read are contiguous.
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
    /// At least as many bytes as [`AttentionGradWorkspace`] requires; `None` if it
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
        ReadContiguous of.query, Read of.key, Read of.value, Read of.mask,
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
        rules.workspace(workspace, &AttentionGradWorkspace(AttentionWorkspace { query, value, dtype }))
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
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
    let &[key_heads, keys, _] = value.dims() else {
        return Err(rules.mismatch(&value, &query, "they must have three axes: heads, rows and columns"));
    };
    if group_of(heads, key_heads).is_none() {
        return Err(rules.mismatch(&value, &query, "its number of heads must divide that of the queries"));
    }
    rules.sized(key, &[key_heads, keys, width], query, "it must be [key heads, keys, width]")?;
    for operand in [key, value] {
        if !has_contiguous_heads(operand.layout()) {
            return Err(rules.fault(&operand, OperandFault::Strided));
        }
    }
    rules.same_type(key, query)?;
    rules.same_type(value, query)?;
    let Some(mask) = mask else { return Ok(()) };
    rules.sized(mask, &[heads, queries, keys], query, "it must be [heads, queries, keys]")?;
    if mask.dtype() == DType::Bool { Ok(()) } else { rules.same_type(mask, query) }
}

/// The number of query heads that each key head serves: 1 if there are no heads. `None` if the heads cannot be divided.
const fn group_of(heads: usize, key_heads: usize) -> Option<usize> {
    match heads.checked_rem(key_heads) {
        Some(0) if heads > 0 => Some(heads / key_heads),
        None | Some(0) if heads == key_heads => Some(1),
        _ => None,
    }
}

/// Whether the rows of each head of `[heads, rows, columns]` are contiguous. The heads may have any stride.
#[must_use]
pub fn has_contiguous_heads(layout: &Layout) -> bool {
    match (layout.shape().dims(), layout.strides()) {
        (&[_, rows, columns], &[_, row_stride, column_stride]) => {
            (rows <= 1 || row_stride == columns) && (columns <= 1 || column_stride == 1)
                || layout.shape().elements() == 0
        }
        _ => false,
    }
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
    // The last queries, as many as there are keys, attend to a triangle of keys, after those that all of them attend to.
    // Tiles in which a query attends to a key are computed in full.
    let (pairs, computed) = match of.causal {
        true => {
            let seen = queries.min(keys) as u64;
            let before = times(&[queries, keys.saturating_sub(queries)]);
            let side = seen.div_ceil(TILE).saturating_mul(TILE);
            let in_tiles = side.saturating_mul(side.saturating_add(TILE)) / 2;
            let all = seen.saturating_mul(seen);
            (
                (seen.saturating_mul(seen.saturating_add(1)) / 2).saturating_add(before),
                in_tiles.min(all).saturating_add(before),
            )
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

/// The workspace of [`Attention`].
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
        cpu::workspace(self.query.dims(), self.value.dims(), self.dtype)
    }

    /// The kernels of a GPU keep their tiles in shared memory.
    fn gpu_bytes(&self) -> usize {
        0
    }
}

/// The workspace of [`AttentionGrad`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradWorkspace<'a>(pub AttentionWorkspace<'a>);

impl Workspace for AttentionGradWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        let AttentionWorkspace { query, value, dtype } = self.0;
        cpu::workspace_of_gradients(query.dims(), value.dims(), dtype)
    }

    fn gpu_bytes(&self) -> usize {
        self.0.gpu_bytes()
    }
}
