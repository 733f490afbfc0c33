//! Cross-entropy of a linear projection by chunks of rows, without a tensor of all logits.
//!
//! ```text
//! rows of a chunk · W = logits ─ losses
//!                         │ in place
//!                         G = softmax - targets ─ G·Wᵀ: rows of the gradient of the hidden states
//!                                               └ rowsᵀ·G, added to the gradient of W
//! ```
//!
//! The forward pass computes the gradients too, as no later pass has the logits. So no product is computed twice. The
//! gradients are those of the sum of the losses: backward multiplies them, in place, by ∂L/∂y, and divides by the number
//! of targets for the mean. Hence 16-bit gradients of G keep their precision. (Hsu et al. 2024: Liger Kernel.)
//!
//! For 16-bit floats, the logits, their softmax, and the sums of W's gradient are f32.

use super::reduction::Reduction;
use super::weighted::{Rows, check_smoothing};
use super::{scaled, share_of_all};
use crate::autograd::apply;
use crate::backend::{Binary, BlockFormat, Reduce, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext, Summation};
use crate::ops::index::{as_i64, expect_indices};
use crate::ops::quantized::{Product, QuantizedMatrix};
use crate::ops::{matmul, promoted_factors, supported};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;
use bfc_core::Category;

const OP: &str = "linear_cross_entropy";

/// The most bytes of the logits of a chunk, unless fewer than [`LEAST_ROWS`] rows would fit.
const CHUNK_BYTES: usize = 32 << 20;

/// With fewer rows, products take longer to read W than to multiply.
const LEAST_ROWS: usize = 16;

const QUANTIZED: &ShapeRule =
    &ShapeRule::Other("the matrix must have one column per element of a hidden state");

const TARGETS: &ShapeRule = &ShapeRule::Other("there must be one target per row of hidden states");

/// The output layer of [`Tensor::linear_cross_entropy`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Projection<'a> {
    /// A matrix `[width, classes]`, in any layout: the transposed view of a table of embeddings needs no copy.
    Dense(&'a Tensor),
    /// A constant matrix `[classes, width]` in quantized blocks.
    Quantized(&'a QuantizedMatrix),
}

impl<'a> From<&'a Tensor> for Projection<'a> {
    fn from(weight: &'a Tensor) -> Self {
        Self::Dense(weight)
    }
}

impl<'a> From<&'a QuantizedMatrix> for Projection<'a> {
    fn from(weight: &'a QuantizedMatrix) -> Self {
        Self::Quantized(weight)
    }
}

/// Options of [`Tensor::linear_cross_entropy`]. A [`Reduction`] converts to options with that reduction.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearCrossEntropyOptions {
    /// The share of each target, from 0 to 1, that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// The target of ignored rows; it need not be a valid class.
    pub ignore_index: Option<i64>,
    /// The reduction of the rows' losses: the mean over the rows that are not ignored, or the sum.
    pub reduction: Reduction,
    /// The rows whose logits exist at a time. By default as many as fit into 32 MiB, at least 16.
    pub chunk: Option<usize>,
}

impl From<Reduction> for LinearCrossEntropyOptions {
    fn from(reduction: Reduction) -> Self {
        Self { reduction, ..Self::default() }
    }
}

/// Returns the default rows of a chunk. Chunks have about the same size.
fn default_chunk(rows: usize, classes: usize, dtype: DType) -> usize {
    let bytes_per_row = classes.saturating_mul(dtype.computed_as().size()).max(1);
    let most = (CHUNK_BYTES / bytes_per_row).max(LEAST_ROWS);
    let chunks = rows.div_ceil(most).max(1);
    rows.div_ceil(chunks).next_multiple_of(8).min(most)
}

/// The op. Its inputs are hidden states `[rows, width]`, W or its blocks, and targets `[rows]`.
#[derive(Debug)]
struct LinearCrossEntropy {
    smoothing: f64,
    ignored: Option<i64>,
    is_mean: bool,
    /// The rows of a chunk.
    chunk: usize,
    /// Whether the classes are the outer axis of W in memory. The gradient has the same order.
    is_by_class: bool,
    /// The format of a quantized W.
    format: Option<BlockFormat>,
}

/// The inputs of a chunk, by rows.
struct Chunk<'a> {
    start: usize,
    hidden: Tensor,
    weight: &'a Tensor,
    /// Valid classes.
    targets: Tensor,
    /// 1 for each row, or 0 for an ignored one.
    factors: Tensor,
}

/// The losses of all rows, and the gradients of their sum.
struct Results {
    losses: Buffer,
    to_hidden: Option<Buffer>,
    to_weight: Option<Buffer>,
}

impl LinearCrossEntropy {
    /// Computes the results of a chunk.
    fn run(&self, ctx: &OpContext<'_>, chunk: &Chunk<'_>, results: &mut Results) -> Result<()> {
        let (rows, dtype) = (chunk.hidden.dims()[0], chunk.hidden.dtype());
        let shape = Shape::matrix(rows, self.classes(chunk.weight));
        let mut logits = self.logits(ctx, chunk, &shape)?;
        let has_gradients = results.to_hidden.is_some() || results.to_weight.is_some();
        in_rows(
            ctx,
            chunk.start,
            &mut results.losses,
            |losses| {
                if has_gradients || self.smoothing > 0.0 {
                    let smoothing = self.smoothing;
                    let (targets, factors) = (chunk.targets.view(), chunk.factors.view());
                    let logits = logits.view_mut();
                    ctx.compute(kernels::CrossEntropyInPlace { smoothing, targets, factors, losses, logits })
                } else {
                    let (logits, targets) = (logits.view(), chunk.targets.view());
                    ctx.compute(kernels::CrossEntropy { logits, targets, losses })
                }
            },
            chunk.targets.shape(),
        )?;
        if !has_gradients {
            return Ok(());
        }
        let mut to_logits = logits;
        if dtype != to_logits.view().dtype() {
            to_logits = converted(ctx, &to_logits, dtype)?;
        }
        if let Some(to_hidden) = &mut results.to_hidden {
            let product =
                |out: ViewMut<'_>| self.product_with_transposed(ctx, to_logits.view(), chunk.weight, out);
            in_rows(ctx, chunk.start, to_hidden, product, chunk.hidden.shape())?;
        }
        if let Some(to_weight) = &mut results.to_weight {
            let (hidden, to_logits) = (chunk.hidden.view(), to_logits.view());
            let layouts = [hidden.layout().transposed(), to_logits.layout().transposed()];
            let factors = if self.is_by_class {
                [to_logits.with_layout(&layouts[1]), hidden]
            } else {
                [hidden.with_layout(&layouts[0]), to_logits]
            };
            add_product(ctx, chunk.start > 0, factors, to_weight.view_mut())?;
        }
        Ok(())
    }

    fn classes(&self, weight: &Tensor) -> usize {
        weight.dims()[usize::from(self.format.is_none())]
    }

    /// Computes the logits of a chunk, in f32 for 16-bit floats.
    fn logits(&self, ctx: &OpContext<'_>, chunk: &Chunk<'_>, shape: &Shape) -> Result<Buffer> {
        let (lhs, weight, dtype) = (chunk.hidden.view(), chunk.weight.view(), chunk.hidden.dtype());
        let Some(format) = self.format else {
            let mut logits = ctx.temp(shape, dtype.computed_as())?;
            add_product(ctx, false, [lhs, weight], logits.view_mut())?;
            return Ok(logits);
        };
        let mut logits = ctx.temp(shape, dtype)?;
        let product = Product { format, blocks: weight, lhs, transposed: true };
        product.compute(ctx, None, logits.view_mut())?;
        if dtype.is_half() { converted(ctx, &logits, DType::F32) } else { Ok(logits) }
    }

    /// Computes the product of a matrix with the transposed W.
    fn product_with_transposed(
        &self,
        ctx: &OpContext<'_>,
        lhs: View<'_>,
        weight: &Tensor,
        out: ViewMut<'_>,
    ) -> Result<()> {
        if let Some(format) = self.format {
            return Product { format, blocks: weight.view(), lhs, transposed: false }.compute(ctx, None, out);
        }
        let transposed = weight.layout().transposed();
        let rhs = weight.view().with_layout(&transposed);
        let mut workspace = matmul::workspace(ctx, lhs, rhs, out.dtype())?;
        let workspace = workspace.as_mut().map(Buffer::view_mut);
        ctx.compute(kernels::MatMul { bias: None, lhs, rhs, activation: None, workspace, out })
    }

    /// Returns the shape of W's gradient in memory.
    fn memory_shape(&self, weight: &Shape) -> Shape {
        if self.is_by_class { Shape::matrix(weight[1], weight[0]) } else { *weight }
    }
}

/// Returns a copy in another element type.
fn converted(ctx: &OpContext<'_>, values: &Buffer, dtype: DType) -> Result<Buffer> {
    let mut converted = ctx.temp(values.view().layout().shape(), dtype)?;
    ctx.compute(kernels::Copy { input: values.view(), out: converted.view_mut() })?;
    Ok(converted)
}

/// Stores the product of two matrices in `out`, or adds it.
fn add_product(
    ctx: &OpContext<'_>,
    accumulate: bool,
    [lhs, rhs]: [View<'_>; 2],
    out: ViewMut<'_>,
) -> Result<()> {
    let mut workspace = matmul::workspace(ctx, lhs, rhs, out.dtype())?;
    let workspace = workspace.as_mut().map(Buffer::view_mut);
    ctx.compute(kernels::MatMulSum { accumulate, lhs, rhs, workspace, out })
}

/// Computes the rows of `out` from `start` on. Kernels write whole buffers, so a part is computed in a temporary.
fn in_rows(
    ctx: &OpContext<'_>,
    start: usize,
    out: &mut Buffer,
    compute: impl FnOnce(ViewMut<'_>) -> Result<()>,
    part: &Shape,
) -> Result<()> {
    if out.view().layout().shape() == part {
        return compute(out.view_mut());
    }
    let mut rows = ctx.temp(part, out.view().dtype())?;
    compute(rows.view_mut())?;
    let (axis, step) = (0, 1);
    ctx.compute(kernels::CopyInto { input: rows.view(), axis, start, step, out: out.view_mut() })
}

impl Op for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [hidden, weight, targets] = [inputs[0], inputs[1], inputs[2]];
        let (rows, dtype) = (hidden.dims()[0], hidden.dtype());
        let computed = dtype.computed_as();
        let (targets, kept) = Rows::kept(self.ignored, as_i64(ctx, targets)?)?;
        let factors = match &kept {
            Some(kept) => kept.to_dtype(computed)?,
            None => Tensor::full_for(ctx.device(), Shape::SCALAR, 1.0, computed, Category::Temporary)?
                .broadcast_to(targets.shape())?,
        };
        // The number of targets, unless it is that of the rows.
        let count = if kept.is_some() && self.is_mean { Some(factors.sum_all()?) } else { None };
        let saved = |input: &Tensor, shape: &Shape, dtype| {
            let is_needed = ctx.is_recording() && input.requires_grad();
            is_needed.then(|| ctx.temp_saved(shape, dtype)).transpose()
        };
        let mut results = Results {
            losses: ctx.temp(targets.shape(), computed)?,
            to_hidden: saved(hidden, hidden.shape(), dtype)?,
            to_weight: saved(weight, &self.memory_shape(weight.shape()), computed)?,
        };
        let mut start = 0;
        loop {
            let len = self.chunk.min(rows - start);
            let of = |tensor: &Tensor| tensor.narrow(0, start, len);
            let [hidden, targets, factors] = [of(hidden)?, of(&targets)?, of(&factors)?];
            self.run(ctx, &Chunk { start, hidden, weight, targets, factors }, &mut results)?;
            start += len;
            // Also for no rows: the gradient of W is 0 then.
            if start >= rows {
                break;
            }
        }
        let Results { losses, to_hidden, to_weight } = results;
        let has_gradients = to_hidden.is_some() || to_weight.is_some();
        let mut losses = losses.finish();
        if let Some(kept) = kept.filter(|_| !has_gradients && self.smoothing == 0.0) {
            losses = kept.where_(&losses, &losses.zeros_like()?)?;
        }
        let loss = match &count {
            Some(count) => losses.sum_all()?.div(count)?,
            None => {
                let divisor = if self.is_mean { rows as f64 } else { 1.0 };
                share_of_all(ctx, (Reduce::Sum, divisor), losses.view(), computed)?
            }
        };
        let gradients = [to_weight, to_hidden].into_iter().flatten().map(Buffer::finish);
        count.into_iter().chain(gradients).for_each(|tensor| ctx.save(&tensor));
        Ok(loss)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let to_hidden = if saved.needs_grad(0) { Some(saved.take_last()?) } else { None };
        let to_weight = if saved.needs_grad(1) { Some(saved.take_last()?) } else { None };
        let scale = if !self.is_mean {
            grad.upcast()?
        } else if self.ignored.is_some() {
            // The gradients of no targets are 0, although their mean is NaN.
            grad.upcast()?.div(&saved.tensor(0)?.clamp(1.0, f64::INFINITY)?)?
        } else {
            scaled(ctx, grad, 1.0 / saved.input_shape(0)[0].max(1) as f64)?
        };
        let to_hidden = to_hidden.map(|to_hidden| times(ctx, to_hidden, &scale)).transpose()?;
        let to_weight = to_weight.map(|to_weight| {
            let mut to_weight = times(ctx, to_weight, &scale)?;
            if to_weight.dtype() != saved.gradient_dtype(1) {
                to_weight = to_weight.to_dtype(saved.gradient_dtype(1))?;
            }
            let layout = *to_weight.layout();
            Ok::<_, Error>(if self.is_by_class {
                to_weight.into_layout(layout.transposed())
            } else {
                to_weight
            })
        });
        Ok(vec![to_hidden, to_weight.transpose()?, None])
    }

    fn summation(&self, inputs: &[Shape]) -> Summation {
        let rows = inputs.last().map_or(1, Shape::elements);
        match (self.is_mean, self.ignored) {
            (true, Some(_)) => Summation::MeanOfKept { rows },
            (true, None) => Reduction::Mean.summation(rows),
            (false, _) => Reduction::Sum.summation(rows),
        }
    }

    fn kept_rows(&self, saved: &Saved) -> Result<usize> {
        let count = saved.tensor(0)?;
        Ok(if count.dtype() == DType::F64 {
            count.item::<f64>()? as usize
        } else {
            count.item::<f32>()? as usize
        })
    }
}

/// Multiplies a saved gradient by a number on the device, in place if no other handle shares it.
fn times(ctx: &OpContext<'_>, mut values: Tensor, scale: &Tensor) -> Result<Tensor> {
    let everywhere = scale.layout().broadcast_to(ctx.op(), values.shape())?;
    let scale = scale.view().with_layout(&everywhere);
    if let Some(acc) = values.view_mut() {
        ctx.compute(kernels::Accumulate { f: Binary::Mul, input: scale, acc })?;
        values.owned_storage().becomes_gradient();
        return Ok(values);
    }
    let mut out = ctx.output(values.shape(), values.dtype())?;
    ctx.compute(kernels::Zip { f: Binary::Mul, lhs: values.view(), rhs: scale, out: out.view_mut() })?;
    Ok(out.finish())
}

/// # Cross-entropy of a linear projection
impl Tensor {
    /// Cross-entropy loss of the logits x·W, by chunks of rows: the last layer of a language model and its loss, without
    /// memory for all logits. The values are those of [`matmul`](Self::matmul) and
    /// [`cross_entropy_with`](Self::cross_entropy_with), within rounding.
    ///
    /// Shapes: x (`self`) `[.., width]`, `weight` `[width, classes]` or a [`QuantizedMatrix`] of `[classes, width]`, `targets`
    /// `[..]` (u8, i32, u32 or i64).
    ///
    /// A pass with gradients computes them together with the loss. It keeps one tensor of the size of x, and one of the
    /// size of W only if W requires a gradient. With 16-bit floats, the logits are f32.
    ///
    /// ```
    /// use highwater::{Device, LinearCrossEntropyOptions, Rng, Tensor};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let hidden = Tensor::normal(&device, [2, 3, 8], 0.0, 1.0, &rng)?.requiring_grad()?;
    /// let embeddings = Tensor::normal(&device, [50, 8], 0.0, 1.0, &rng)?; // tied: W is its transposed view
    /// let targets = Tensor::from_slice(&device, &[7i64, 20, -100, 3, -100, -100], [2, 3])?;
    /// let options = LinearCrossEntropyOptions { ignore_index: Some(-100), ..Default::default() };
    /// let loss = hidden.linear_cross_entropy(&embeddings.t()?, &targets, options)?; // the mean of three
    /// assert_eq!(loss.backward()?.get(&hidden).unwrap().dims(), [2, 3, 8]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::BadRank`] for a scalar, and unless `weight` has two axes; [`Error::ShapeMismatch`] if sizes differ
    /// - [`Error::UnsupportedDType`] unless x and W are floats
    /// - [`Error::BadArgument`] for a smoothing outside of 0 to 1, for [`Reduction::None`], and for a chunk of no rows
    /// - [`Error::BadArgument`] unless the targets are u8, i32, u32 or i64
    /// - [`Error::IndexOutOfRange`] for a target outside of the classes that is not ignored
    /// - [`Error::Allocation`] if there is no memory
    #[doc(alias("fused_linear_cross_entropy", "chunked_cross_entropy"))]
    pub fn linear_cross_entropy<'a>(
        &self,
        weight: impl Into<Projection<'a>>,
        targets: &Self,
        options: impl Into<LinearCrossEntropyOptions>,
    ) -> Result<Self> {
        let (weight, options) = (weight.into(), options.into());
        check_smoothing(OP, options.label_smoothing)?;
        check_options(&options)?;
        supported(OP, self.dtype(), DType::is_float)?;
        expect_indices(OP, "targets", targets, self)?;
        let Some((&width, leading)) = self.dims().split_last() else {
            let expected = "hidden states with at least one axis";
            return Err(Error::BadRank { op: OP, expected, shape: *self.shape() });
        };
        let mismatch = |rhs: Shape, rule| Error::ShapeMismatch { op: OP, lhs: *self.shape(), rhs, rule };
        let (inner, classes, rule) = match weight {
            Projection::Dense(weight) => {
                supported(OP, weight.dtype(), DType::is_float)?;
                let &[inner, classes] = weight.dims() else {
                    let expected = "a weight of two axes: width, classes";
                    return Err(Error::BadRank { op: OP, expected, shape: *weight.shape() });
                };
                (inner, classes, &ShapeRule::Product)
            }
            Projection::Quantized(weight) => (weight.columns(), weight.rows(), QUANTIZED),
        };
        if inner != width {
            let shape = match weight {
                Projection::Dense(weight) => *weight.shape(),
                Projection::Quantized(weight) => weight.shape(),
            };
            return Err(mismatch(shape, rule));
        }
        if targets.dims() != leading {
            return Err(mismatch(*targets.shape(), TARGETS));
        }
        let rows = targets.elements();
        let (hidden, weight, format) = match weight {
            Projection::Dense(weight) => {
                let [hidden, weight] =
                    promoted_factors(self, weight)?.unwrap_or_else(|| [self.clone(), weight.clone()]);
                (hidden, weight, None)
            }
            Projection::Quantized(weight) => (self.clone(), weight.bytes().clone(), Some(weight.format())),
        };
        let is_rows = leading.len() == 1;
        let hidden = if is_rows { hidden } else { hidden.reshape([rows, width])? };
        let targets = if is_rows { targets.clone() } else { targets.reshape([rows])? };
        let chunk = options.chunk.unwrap_or_else(|| default_chunk(rows, classes, hidden.dtype()));
        let op = LinearCrossEntropy {
            smoothing: options.label_smoothing,
            ignored: options.ignore_index,
            is_mean: options.reduction == Reduction::Mean,
            chunk: chunk.clamp(1, rows.max(1)),
            is_by_class: !weight.layout().is_contiguous() && weight.layout().strides()[0] == 1,
            format,
        };
        apply(op, &[&hidden, &weight, &targets])
    }
}

fn check_options(options: &LinearCrossEntropyOptions) -> Result<()> {
    let bad = |argument, expected, got: &str| {
        Err(Error::BadArgument { op: OP, argument, expected, got: got.to_owned() })
    };
    if options.reduction == Reduction::None {
        return bad("reduction", "the mean or the sum, as the gradient of W is a sum over all rows", "None");
    }
    if options.chunk == Some(0) {
        return bad("chunk", "at least one row", "0");
    }
    Ok(())
}
