//! Scaled dot-product attention.
//!
//! - y = softmax(scale · q·kᵀ)·v for q `[.., queries, width]`, k `[.., keys, width]`, v `[.., keys, values]`, y
//!   `[.., queries, values]`; leading axes are the same. Causal: query i sees the keys 0 to i. A mask (bool, broadcast to
//!   `[.., queries, keys]`) says which keys a query sees. A query that sees none gives 0.
//! - With p the softmax and g = ∂L/∂y: ∂L/∂v = pᵀ·g, and with d = p (g·vᵀ - Σ g y): ∂L/∂q = scale · d·k, ∂L/∂k = scale · dᵀ·q.
//! - The matrix of scores is never there: memory grows with the queries and the keys, not with their product. Saves q, k, v, y
//!   and one number for each query, from which backward makes the scores again, tile by tile.
//! - A mask of numbers is added to the scores, as in relative positions. ∂L/∂mask is d / scale: a matrix as large as the scores, which
//!   backward makes if the mask asks for a gradient. Weights that are dropped are in memory as a whole too: see `whole`.

mod whole;

use bfc_core::Category;

use super::{same_dtype, supported, wanted};
use crate::autograd::apply;
use crate::backend::{Attention, Kernel, Workspace};
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// How queries look at keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// Whether query i sees the keys 0 to i alone.
    pub causal: bool,
    /// What the products of queries and keys are multiplied with; 1/√width if not said.
    pub scale: Option<f64>,
}

/// On stacks of matrices; the fourth input, if there is one, is the mask.
#[derive(Debug)]
pub(super) struct ScaledDotProduct {
    pub(super) scale: f64,
    pub(super) causal: bool,
}

impl ScaledDotProduct {
    fn operands<'a>(&self, [query, key, value]: [&'a Tensor; 3], mask: Option<&'a Tensor>) -> Attention<'a> {
        Attention {
            scale: self.scale,
            causal: self.causal,
            query: query.view(),
            key: key.view(),
            value: value.view(),
            mask: mask.map(Tensor::view),
        }
    }

    fn workspace(ctx: &OpContext<'_>, query: &Tensor, value: &Tensor) -> Result<Option<Buffer>> {
        ctx.workspace(Workspace::Attention {
            query: query.shape(),
            value: value.shape(),
            dtype: query.dtype(),
        })
    }

    /// What the queries see, in `out`, which holds as many rows; and ln Σ exp of the scores of each query.
    pub(super) fn attend(
        &self,
        ctx: &OpContext<'_>,
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        mut out: Buffer,
    ) -> Result<[Tensor; 2]> {
        let rows = Shape::new(&query.dims()[..2])?;
        let mut log_sums = ctx.buffer(&rows, query.dtype().computed_as(), Category::Temporary)?;
        let mut workspace = Self::workspace(ctx, query, value)?;
        ctx.compute(Kernel::Attention {
            of: self.operands([query, key, value], mask),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: out.view_mut(),
            log_sums: log_sums.view_mut(),
        })?;
        Ok([out.finish(), log_sums.finish()])
    }

    /// The gradients of query, key and value from what [`attend`](Self::attend) made and the gradient of its result. All
    /// three are made at once, as they come from the same tiles.
    pub(super) fn gradients(
        &self,
        ctx: &OpContext<'_>,
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        [output, log_sums]: [&Tensor; 2],
        grad: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let like = |input: &Tensor| ctx.output(input.shape(), input.dtype());
        let (mut to_query, mut to_key, mut to_value) = (like(query)?, like(key)?, like(value)?);
        let mut workspace = Self::workspace(ctx, query, value)?;
        ctx.compute(Kernel::AttentionGrad {
            of: self.operands([query, key, value], mask),
            results: [output.view(), log_sums.view()],
            grad: grad.view(),
            workspace: workspace.as_mut().map(Buffer::view_mut),
            out: [to_query.view_mut(), to_key.view_mut(), to_value.view_mut()],
        })?;
        Ok([to_query, to_key, to_value].map(Buffer::finish))
    }
}

impl Op for ScaledDotProduct {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [query, key, value] = [inputs[0], inputs[1], inputs[2]].map(Tensor::contiguous);
        let (query, key, value) = (query?, key?, value?);
        let [heads, queries, _] = *query.dims() else {
            return Err(Error::BadRank { op: OP, expected: "three axes", shape: *query.shape() });
        };
        let values = value.dims().last().copied().unwrap_or(0);
        let out = ctx.output(&Shape::new(&[heads, queries, values])?, query.dtype())?;
        let [out, log_sums] = self.attend(ctx, [&query, &key, &value], inputs.get(3).copied(), out)?;
        for kept in [&query, &key, &value, &out, &log_sums] {
            ctx.save(kept);
        }
        if let Some(mask) = inputs.get(3) {
            ctx.save(mask);
        }
        Ok(out)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let (query, key, value) = (saved.tensor(0)?, saved.tensor(1)?, saved.tensor(2)?);
        let (output, log_sums) = (saved.tensor(3)?, saved.tensor(4)?);
        let mask = if saved.inputs() > 3 { Some(saved.tensor(5)?) } else { None };
        let grad = grad.contiguous()?;
        let made = self.gradients(ctx, [query, key, value], mask, [output, log_sums], &grad)?;
        let mut made: Vec<_> = made.into_iter().map(Some).collect();
        if let Some(mask) = mask {
            made.push(wanted(saved, 3, || {
                self.mask_gradient([query, key, value], mask, [output, log_sums], &grad)
            })?);
        }
        Ok(made)
    }
}

const OP: &str = "attention";

/// Queries, keys and values that fit each other.
struct Between<'a> {
    /// Which op they are for.
    op: &'static str,
    query: &'a Tensor,
    key: &'a Tensor,
    value: &'a Tensor,
    /// The axes before those of the matrices.
    leading: &'a [usize],
    queries: usize,
    keys: usize,
    causal: bool,
    scale: f64,
}

impl<'a> Between<'a> {
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
        let fits = |other: &Tensor, sizes: [usize; 2]| {
            if other.dims() == [leading, &sizes].concat() {
                return Ok(());
            }
            Err(Error::ShapeMismatch { op, lhs: *query.shape(), rhs: *other.shape() })
        };
        let [.., keys, values] = *value.dims() else {
            return Err(Error::ShapeMismatch { op, lhs: *query.shape(), rhs: *value.shape() });
        };
        fits(key, [keys, *width])?;
        fits(value, [keys, values])?;
        if *width == 0 {
            let (argument, expected) = ("width", "at least one element to compare by");
            return Err(Error::BadArgument { op, argument, expected, got: query.shape().to_string() });
        }
        let scale = options.scale.unwrap_or(1.0 / (*width as f64).sqrt());
        let (queries, causal) = (*queries, options.causal);
        Ok(Self { op, query, key, value, leading, queries, keys, causal, scale })
    }

    /// A mask for all scores: a view.
    fn mask(&self, mask: &Tensor) -> Result<Tensor> {
        if mask.dtype() != DType::Bool && mask.dtype() != self.query.dtype() {
            let (dtype, shape) = (mask.dtype(), mask.shape());
            let got = format!("{dtype} of shape {shape} for a tensor of shape {}", self.query.shape());
            let expected = "of type bool, or of the queries' type to be added";
            return Err(Error::BadArgument { op: self.op, argument: "mask", expected, got });
        }
        let scores = Shape::new(&[self.leading, &[self.queries, self.keys]].concat())?;
        mask.broadcast_to(scores).map_err(|error| match error {
            Error::ShapeMismatch { .. } => Error::BadArgument {
                op: self.op,
                argument: "mask",
                expected: "of a shape that broadcasts to that of the scores",
                got: format!("{} for scores of shape {scores}", mask.shape()),
            },
            other => other,
        })
    }

    /// A mask that was checked, for a stack of matrices. It is copied for each head only if heads have masks of their own, and
    /// not along queries or keys.
    fn stacked_mask(&self, mask: &Tensor, heads: usize) -> Result<Tensor> {
        let mut mask = mask.unchanged();
        while mask.rank() < 2 {
            mask = mask.unsqueeze(0)?;
        }
        let [leading @ .., rows, columns] = mask.dims() else { return Ok(mask) };
        let stacked = if leading.iter().all(|&size| size == 1) {
            mask.reshape([1, *rows, *columns])?
        } else {
            let by_head = mask.broadcast_to([self.leading, &[*rows, *columns]].concat())?;
            by_head.reshape([heads, *rows, *columns])?
        };
        stacked.broadcast_to([heads, self.queries, self.keys])
    }

    /// The result without the matrix of scores, from a mask that was checked.
    fn tiled(&self, mask: Option<&Tensor>) -> Result<Tensor> {
        let heads = Shape::new(self.leading)?.elements();
        let stacked = |part: &Tensor| {
            let [.., rows, columns] = *part.dims() else { return Ok(part.unchanged()) };
            part.reshape([heads, rows, columns])
        };
        let op = ScaledDotProduct { scale: self.scale, causal: self.causal };
        let (query, key, value) = (stacked(self.query)?, stacked(self.key)?, stacked(self.value)?);
        let values = value.dims()[2];
        let result = match mask {
            None => apply(op, &[&query, &key, &value])?,
            Some(mask) => apply(op, &[&query, &key, &value, &self.stacked_mask(mask, heads)?])?,
        };
        result.reshape([self.leading, &[self.queries, values]].concat())
    }
}

impl Tensor {
    /// Scaled dot-product attention of these queries (`[.., queries, width]`) to keys (`[.., keys, width]`) and their values
    /// (`[.., keys, values]`), as PyTorch's `scaled_dot_product_attention`. A mask (broadcast to `[.., queries, keys]`) is true
    /// where a query sees a key, or is of the queries' type and added to the scores, where -∞ hides a key. A query that sees none
    /// gives 0.
    ///
    /// Memory grows with the queries and the keys, not with their product, but for the gradient of a mask that is added, where it
    /// asks for one.
    ///
    /// ```
    /// use highwater::{AttentionOptions, Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [1, 3, 1])?;
    /// let causal = AttentionOptions { causal: true, ..AttentionOptions::default() };
    /// let y = x.attention(&x, &x, None, causal)?;
    /// // The first position sees itself alone.
    /// assert_eq!((y.dims(), y.to_vec::<f32>()?[0]), (&[1, 3, 1][..], 1.0));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes, [`Error::ShapeMismatch`] if sizes do not fit, [`Error::BadArgument`] for a mask of
    /// another type or shape, [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] except for floats, [`Error::Allocation`] if
    /// there is no memory.
    #[doc(alias("sdpa", "scaled_dot_product_attention"))]
    pub fn attention(
        &self,
        key: &Self,
        value: &Self,
        mask: Option<&Self>,
        options: AttentionOptions,
    ) -> Result<Self> {
        let between = Between::new(OP, [self, key, value], options)?;
        mask.map(|mask| between.mask(mask)).transpose()?;
        between.tiled(mask)
    }
}
