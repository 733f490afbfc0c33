//! Scaled dot-product attention.
//!
//! - y = softmax(scale · q·kᵀ)·v for q `[.., queries, width]`, k `[.., keys, width]`, v `[.., keys, values]` and y
//!   `[.., queries, values]`. The leading axes of all operands are equal, except that each head of k and v may serve
//!   several heads of q (grouped-query attention, Ainslie et al. 2023). Heads of k and v are not copied.
//! - Causal attention: query i of Q sees the keys 0 to K - Q + i of K. A boolean mask, broadcast to `[.., queries, keys]`, selects the
//!   keys that each query sees. A query that sees no key gives 0.
//! - With p the softmax and g = ∂L/∂y: ∂L/∂v = pᵀ·g, and with d = p (g·vᵀ - Σ g y): ∂L/∂q = scale · d·k, ∂L/∂k = scale · dᵀ·q.
//! - The kernels work tile by tile and never store the score matrix: memory grows with the queries plus the keys, not
//!   with their product. Forward saves q, k, v, y and one value per query. Backward recomputes the scores from them.
//! - A float mask is added to the scores, for example as relative positions. Its gradient d / scale is as large as the
//!   scores. Backward computes it only if the mask requires a gradient. Dropout on the weights also needs the full
//!   matrix: see `whole`.

mod whole;

use bfc_core::Category;

use super::{if_needed, mixed_operands, same_dtype, supported};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// Options of scaled dot-product attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// Whether each query sees only the keys up to its own position. The last query has the position of the last key: of Q
    /// queries and K keys, query i sees the keys 0 to K - Q + i (PyTorch's `causal_lower_right`). The first Q - K queries
    /// see no key if there are fewer keys than queries.
    ///
    /// For Q = K, this equals PyTorch's `is_causal=True`, which always lets query i see the keys 0 to i.
    pub causal: bool,
    /// The factor for the products of queries and keys; `None` selects 1/√width.
    pub scale: Option<f64>,
}

/// Attention of stacks of matrices.
#[derive(Debug)]
pub(super) struct ScaledDotProduct {
    pub(super) scale: f64,
    pub(super) causal: bool,
}

/// The op. Its inputs are stacks of queries, keys and values, and optionally a mask that broadcasts to the scores.
#[derive(Debug)]
struct Attend {
    of: ScaledDotProduct,
    /// The shape of the scores, with the leading axes of the queries instead of those of a stack.
    scores: Shape,
}

impl ScaledDotProduct {
    fn operands<'a>(
        &self,
        [query, key, value]: [&'a Tensor; 3],
        mask: Option<&'a Tensor>,
    ) -> kernels::AttentionInputs<'a> {
        kernels::AttentionInputs {
            scale: self.scale,
            causal: self.causal,
            query: query.view(),
            key: key.view(),
            value: value.view(),
            mask: mask.map(Tensor::view),
        }
    }

    fn workspace<'a>(query: &'a Tensor, value: &'a Tensor) -> kernels::AttentionWorkspace<'a> {
        kernels::AttentionWorkspace { query: query.shape(), value: value.shape(), dtype: query.dtype() }
    }

    /// Computes the attention into `out` and returns ln Σ exp of each query's scores.
    pub(super) fn attend(
        &self,
        ctx: &OpContext<'_>,
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        mut out: Buffer,
    ) -> Result<[Tensor; 2]> {
        let rows = Shape::new(&query.dims()[..2])?;
        let mut log_sums = ctx.buffer(&rows, query.dtype().computed_as(), Category::Temporary)?;
        let mut workspace = ctx.workspace(Self::workspace(query, value))?;
        ctx.compute(kernels::Attention {
            of: self.operands([query, key, value], mask),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: out.view_mut(),
            log_sums: log_sums.view_mut(),
        })?;
        Ok([out.finish(), log_sums.finish()])
    }

    /// Computes the gradients of query, key and value from the result of [`attend`](Self::attend) and its gradient. One
    /// call computes all three because they share tiles.
    pub(super) fn gradients(
        &self,
        ctx: &OpContext<'_>,
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        [output, log_sums]: [&Tensor; 2],
        grad: &Tensor,
        mut allocate: impl FnMut(usize, &Tensor) -> Result<Buffer>,
    ) -> Result<[Tensor; 3]> {
        let (mut to_query, mut to_key, mut to_value) =
            (allocate(0, query)?, allocate(1, key)?, allocate(2, value)?);
        let mut workspace = ctx.workspace(kernels::AttentionGradWorkspace(Self::workspace(query, value)))?;
        ctx.compute(kernels::AttentionGrad {
            of: self.operands([query, key, value], mask),
            output: output.view(),
            log_sums: log_sums.view(),
            grad: grad.view(),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            query_grad: to_query.view_mut(),
            key_grad: to_key.view_mut(),
            value_grad: to_value.view_mut(),
        })?;
        Ok([to_query, to_key, to_value].map(Buffer::finish))
    }
}

impl Op for Attend {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let query = inputs[0].contiguous()?;
        let (key, value) = (with_contiguous_heads(inputs[1])?, with_contiguous_heads(inputs[2])?);
        let [heads, queries, _] = *query.dims() else {
            return Err(Error::BadRank { op: OP, expected: "three axes", shape: *query.shape() });
        };
        let values = value.dims().last().copied().unwrap_or(0);
        let mask = inputs.get(3).map(|mask| self.stacked_mask(mask, heads)).transpose()?;
        let out = ctx.output(&Shape::new(&[heads, queries, values])?, query.dtype())?;
        let [out, log_sums] = self.of.attend(ctx, [&query, &key, &value], mask.as_ref(), out)?;
        for kept in [&query, &key, &value, &out, &log_sums] {
            ctx.save(kept);
        }
        if let Some(mask) = &mask {
            ctx.save(mask);
        }
        Ok(out)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        // The gradient of a mask needs all scores in f32 anyway. So the other gradients are of f32 scores too, as PyTorch's.
        let of_mask = saved.needs_grad(3);
        let operand = |index: usize| {
            let operand = saved.tensor(index)?;
            if of_mask { operand.upcast() } else { Ok(operand.clone()) }
        };
        let (query, key, value, output) = (operand(0)?, operand(1)?, operand(2)?, operand(3)?);
        let log_sums = saved.tensor(4)?;
        let mask = if saved.inputs() > 3 { Some(operand(5)?) } else { None };
        let grad = if of_mask { grad.upcast()? } else { grad }.contiguous()?;
        let gradient = |input: usize, of: &Tensor| {
            if of.dtype() == saved.input_dtype(input) {
                ctx.gradient(input, of.shape(), of.dtype())
            } else {
                ctx.temp(of.shape(), of.dtype())
            }
        };
        let (operands, results) = ([&query, &key, &value], [&output, log_sums]);
        let made = self.of.gradients(ctx, operands, mask.as_ref(), results, &grad, gradient)?;
        let rounded = |(input, made): (usize, Tensor)| made.to_dtype(saved.input_dtype(input)).map(Some);
        let mut made = made.into_iter().enumerate().map(rounded).collect::<Result<Vec<_>>>()?;
        if let Some(mask) = &mask {
            made.push(if_needed(saved, 3, || {
                let scores = self.of.mask_gradient(operands, mask, results, &grad)?;
                // Rounds once, after the sum.
                scores.reshape(self.scores)?.sum_to(saved.input_shape(3))?.to_dtype(saved.input_dtype(3))
            })?);
        }
        Ok(made)
    }
}

impl Attend {
    /// Reshapes a checked mask to a stack of matrices. Copies it per head only if heads have different masks, and never
    /// along queries or keys.
    fn stacked_mask(&self, mask: &Tensor, heads: usize) -> Result<Tensor> {
        let mut mask = mask.unchanged();
        while mask.rank() < 2 {
            mask = mask.unsqueeze(0)?;
        }
        let ([leading @ .., rows, columns], [of_scores @ .., queries, keys]) =
            (mask.dims(), self.scores.dims())
        else {
            return Ok(mask);
        };
        let stacked = if leading.iter().all(|&size| size == 1) {
            mask.reshape([1, *rows, *columns])?
        } else {
            let by_head = mask.broadcast_to([of_scores, &[*rows, *columns]].concat())?;
            by_head.reshape([heads, *rows, *columns])?
        };
        stacked.broadcast_to([heads, *queries, *keys])
    }
}

/// Copies a stack of keys or values if the rows of a head are not contiguous. A view of a cache needs no copy.
fn with_contiguous_heads(stack: &Tensor) -> Result<Tensor> {
    if kernels::has_contiguous_heads(stack.layout()) { Ok(stack.clone()) } else { stack.contiguous() }
}

const OP: &str = "attention";

const SIZES: &ShapeRule = &ShapeRule::Other(
    "queries must be [.., queries, width], keys [.., keys, width], and values [.., keys, _]",
);

const GROUPS: &ShapeRule = &ShapeRule::Other("the heads of keys must divide those of queries");

/// Checked queries, keys and values.
struct AttentionInputs<'a> {
    /// The op that reports errors.
    op: &'static str,
    query: &'a Tensor,
    key: &'a Tensor,
    value: &'a Tensor,
    /// The leading axes of the query, before those of the matrices.
    leading: &'a [usize],
    /// The leading axes of key and value. Only the last of them, the heads, may be smaller than that of the query.
    key_leading: &'a [usize],
    queries: usize,
    keys: usize,
    causal: bool,
    scale: f64,
}

impl<'a> AttentionInputs<'a> {
    fn new(
        op: &'static str,
        [query, key, value]: [&'a Tensor; 3],
        options: AttentionOptions,
    ) -> Result<Self> {
        for other in [key, value] {
            same_dtype(op, query, other)?;
        }
        supported(op, query.dtype(), DType::is_float)?;
        let [leading @ .., queries, width] = query.dims() else {
            return Err(Error::BadRank { op, expected: "at least two axes", shape: *query.shape() });
        };
        let mismatch = |other: &Tensor, rule: &'static ShapeRule| Error::ShapeMismatch {
            op,
            lhs: *query.shape(),
            rhs: *other.shape(),
            rule,
        };
        let [key_leading @ .., keys, values] = value.dims() else { return Err(mismatch(value, SIZES)) };
        let (keys, values) = (*keys, *values);
        let fits = |other: &Tensor, sizes: [usize; 2]| {
            if other.dims() == [key_leading, &sizes].concat() { Ok(()) } else { Err(mismatch(other, SIZES)) }
        };
        if key_leading != leading {
            let (Some((heads, rest)), Some((key_heads, key_rest))) =
                (leading.split_last(), key_leading.split_last())
            else {
                return Err(mismatch(value, SIZES));
            };
            if rest != key_rest {
                return Err(mismatch(value, SIZES));
            }
            if *heads == 0 || *key_heads == 0 || !heads.is_multiple_of(*key_heads) {
                return Err(mismatch(value, GROUPS));
            }
        }
        fits(key, [keys, *width])?;
        fits(value, [keys, values])?;
        if *width == 0 {
            let (argument, expected) = ("width", "at least one element per query");
            return Err(Error::BadArgument { op, argument, expected, got: query.shape().to_string() });
        }
        let scale = options.scale.unwrap_or(1.0 / (*width as f64).sqrt());
        let (queries, causal) = (*queries, options.causal);
        Ok(Self { op, query, key, value, leading, key_leading, queries, keys, causal, scale })
    }

    fn scores(&self) -> Result<Shape> {
        Ok(Shape::new(&[self.leading, &[self.queries, self.keys]].concat())?)
    }

    /// Broadcasts a mask to the shape of the scores, as a view.
    fn mask(&self, mask: &Tensor) -> Result<Tensor> {
        if mask.dtype() != DType::Bool && mask.dtype() != self.query.dtype() {
            let (dtype, shape) = (mask.dtype(), mask.shape());
            let got = format!("{dtype} of shape {shape} for a tensor of shape {}", self.query.shape());
            let expected = "of type bool, or of the queries' type to be added";
            return Err(Error::BadArgument { op: self.op, argument: "mask", expected, got });
        }
        let scores = self.scores()?;
        mask.broadcast_to(scores).map_err(|error| match error {
            Error::ShapeMismatch { .. } => Error::BadArgument {
                op: self.op,
                argument: "mask",
                expected: "of a shape that broadcasts to the scores",
                got: format!("{} for scores of shape {scores}", mask.shape()),
            },
            other => other,
        })
    }

    /// Computes attention tile by tile, with a checked mask.
    fn tiled(&self, mask: Option<&Tensor>) -> Result<Tensor> {
        let stacked = |part: &Tensor| {
            let [leading @ .., rows, columns] = part.dims() else { return Ok(part.unchanged()) };
            part.reshape([Shape::new(leading)?.elements(), *rows, *columns])
        };
        let op = Attend {
            of: ScaledDotProduct { scale: self.scale, causal: self.causal },
            scores: self.scores()?,
        };
        let (query, key, value) = (stacked(self.query)?, stacked(self.key)?, stacked(self.value)?);
        let values = value.dims()[2];
        let result = match mask {
            None => apply(op, &[&query, &key, &value])?,
            Some(mask) => apply(op, &[&query, &key, &value, mask])?,
        };
        result.reshape([self.leading, &[self.queries, values]].concat())
    }
}

/// # Attention
impl Tensor {
    /// Scaled dot-product attention, as PyTorch's `scaled_dot_product_attention`: softmax(scale · q·kᵀ)·v.
    ///
    /// Shapes: queries (`self`) `[.., queries, width]`, keys `[.., keys, width]`, values `[.., keys, values]`. The mask
    /// broadcasts to `[.., queries, keys]`. A boolean mask is true where a query sees a key. A float mask is added to
    /// the scores, and -∞ hides a key. A query that sees no key gives 0.
    ///
    /// Grouped-query attention (PyTorch's `enable_gqa=True`): with queries `[.., heads, queries, width]`, keys and values
    /// may have fewer heads. Their number must divide that of the queries. With a group of g = heads / key heads, the
    /// query heads 0 to g - 1 see the keys of head 0, and so on. Keys are not copied.
    ///
    /// Keys and values can be views of a larger cache: only the rows of each head need to be contiguous.
    ///
    /// Memory grows with the queries plus the keys, not with their product. Only the gradient of a float mask is a full
    /// matrix.
    ///
    /// ```
    /// use highwater::{AttentionOptions, Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [1, 3, 1])?;
    /// let causal = AttentionOptions { causal: true, ..AttentionOptions::default() };
    /// let y = x.attention(&x, &x, None, causal)?;
    /// // The first position sees itself alone.
    /// assert_eq!((y.dims(), y.to_vec::<f32>()?[0]), (&[1, 3, 1][..], 1.0));
    /// // A new query after the keys of a cache sees all of them.
    /// let last = x.slice(1, 2..)?.attention(&x, &x, None, causal)?;
    /// assert_eq!(last.to_vec::<f32>()?[0], y.to_vec::<f32>()?[2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes, [`Error::ShapeMismatch`] if sizes differ, [`Error::BadArgument`] for a mask
    /// of another type or shape, [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] unless the elements are floats,
    /// [`Error::Allocation`] if there is no memory.
    #[doc(alias("sdpa", "scaled_dot_product_attention"))]
    pub fn attention(
        &self,
        key: &Self,
        value: &Self,
        mask: Option<&Self>,
        options: AttentionOptions,
    ) -> Result<Self> {
        let mixed = mixed_operands([self, key, value, mask.unwrap_or(self)])?;
        if let Some([query, key, value, of_mask]) = mixed {
            return query.attention(&key, &value, mask.and(Some(&of_mask)), options);
        }
        let between = AttentionInputs::new(OP, [self, key, value], options)?;
        mask.map(|mask| between.mask(mask)).transpose()?;
        between.tiled(mask)
    }
}
