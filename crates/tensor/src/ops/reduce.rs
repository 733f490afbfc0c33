//! Reductions along axes: sum, mean, maximum, minimum and their indices.
//!
//! | op | y | ∂L/∂x | saved | element types |
//! |---|---|---|---|---|
//! | `sum` | Σ x, 0 for no elements | ∂L/∂y, repeated (a view) | | all; integers and booleans are summed as i64 |
//! | `mean` | Σ x / n, NaN for no elements | ∂L/∂y / n, repeated (a view) | | floats |
//! | `max`, `min` | the extreme; NaN if any is | ∂L/∂y, shared evenly among ties | x, y | all but bool |
//! | `argmax`, `argmin` | the index of the first extreme | | | all but bool |
//!
//! Further reductions are in `product`, `variance`, `logsumexp` and `vector_norm`.
//!
//! The reduced axes vanish, or stay with size 1 in the `_keepdim` forms. Narrow integers and booleans would overflow,
//! so the op converts x to i64 piece by piece. 16-bit floats are summed in f32. Besides its output, an op allocates the
//! backend's workspace.

use super::axes::{Axes, AxisSet};
use super::shape::restored;
use super::{is_numeric, supported};
use crate::autograd::apply;
use crate::backend::{Binary, Reduce, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext, Summation};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

/// Returns the element type of sums and products: i64 for integers and booleans, otherwise `dtype`.
pub(super) const fn summed_as(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// Folds axes of `x` to size 1, into an output of the type of its sums.
pub(super) fn fold_wide(ctx: &OpContext<'_>, f: Reduce, x: &Tensor, axes: &AxisSet) -> Result<Tensor> {
    let dtype = summed_as(x.dtype());
    let mut out = ctx.output(&axes.folded_shape(x.shape()), dtype)?;
    if dtype == x.dtype() {
        fold(ctx, f, x.view(), axes, &mut out)?;
    } else {
        fold_pieces(ctx, f, x, axes, &mut out)?;
    }
    Ok(out.finish())
}

/// Folds axes of `x`, converted to the type of `out` piece by piece along its longest axis. Converting all of x at once
/// could allocate eight times its memory.
fn fold_pieces(ctx: &OpContext<'_>, f: Reduce, x: &Tensor, axes: &AxisSet, out: &mut Buffer) -> Result<()> {
    let (shape, elements, piece) = (x.shape(), x.elements(), ctx.backend().rules().chunk_elements());
    let longest = (0..x.rank()).max_by_key(|&axis| shape[axis]);
    let Some(axis) = longest.filter(|_| elements > piece) else {
        return fold_widened(ctx, f, x.view(), axes, out);
    };
    let len = shape[axis];
    let step = (piece / (elements / len)).max(1);
    for start in (0..len).step_by(step) {
        let layout = x.layout().sliced(ctx.op(), axis, start..len.min(start + step), 1)?;
        let part = x.view().with_layout(&layout);
        let is_folded = axes.as_slice()[axis];
        if is_folded && start == 0 {
            fold_widened(ctx, f, part, axes, out)?;
            continue;
        }
        let mut folded = ctx.temp(&axes.folded_shape(layout.shape()), out.view().dtype())?;
        fold_widened(ctx, f, part, axes, &mut folded)?;
        let (input, out) = (folded.view(), out.view_mut());
        if is_folded {
            // Integer sums and products wrap, so the order does not matter.
            ctx.compute(kernels::Accumulate { f: joining(f), input, acc: out })?;
        } else {
            ctx.compute(kernels::CopyInto { input, axis, start, step: 1, out })?;
        }
    }
    Ok(())
}

/// The function of two partial results of a reduction.
const fn joining(f: Reduce) -> Binary {
    match f.of_parts() {
        Reduce::Sum | Reduce::SumMagnitudes | Reduce::SumSquares => Binary::Add,
        Reduce::Prod => Binary::Mul,
        Reduce::Max => Binary::Maximum,
        Reduce::Min => Binary::Minimum,
    }
}

/// Folds axes of `input` into `out`, after converting it to the type of `out`.
fn fold_widened(
    ctx: &OpContext<'_>,
    f: Reduce,
    input: View<'_>,
    axes: &AxisSet,
    out: &mut Buffer,
) -> Result<()> {
    let mut wide = ctx.temp(input.layout().shape(), out.view().dtype())?;
    ctx.compute(kernels::Copy { input, out: wide.view_mut() })?;
    fold(ctx, f, wide.view(), axes, out)
}

/// Folds axes of `input` to size 1 into `out`.
pub(super) fn fold(
    ctx: &OpContext<'_>,
    f: Reduce,
    input: View<'_>,
    axes: &AxisSet,
    out: &mut Buffer,
) -> Result<()> {
    fold_shares(ctx, (f, 1.0), input, axes, out.view_mut())
}

/// Folds axes of `input` to size 1 into `out`, and divides by a number.
#[inline(always)]
fn fold_shares(
    ctx: &OpContext<'_>,
    (f, divisor): (Reduce, f64),
    input: View<'_>,
    axes: &AxisSet,
    out: ViewMut<'_>,
) -> Result<()> {
    let axes = axes.as_slice();
    let mut workspace =
        ctx.workspace(kernels::FoldWorkspace { shape: input.layout().shape(), axes, dtype: input.dtype() })?;
    let workspace = workspace.as_mut().map(Buffer::view_mut);
    ctx.compute(kernels::Fold { f, divisor, input, axes, workspace, out })
}

/// Folds axes of `input` to size 1 and divides by a number, into the op's output of type `dtype`. A sum may exceed the
/// range of a 16-bit float where the mean does not, so 16-bit floats are divided in f32.
pub(super) fn share(
    ctx: &OpContext<'_>,
    f: (Reduce, f64),
    input: View<'_>,
    axes: &AxisSet,
    dtype: DType,
) -> Result<Tensor> {
    let mut out = ctx.output(&axes.folded_shape(input.layout().shape()), dtype)?;
    fold_shares(ctx, f, input, axes, out.view_mut())?;
    Ok(out.finish())
}

/// Like [`share`], into a buffer of any shape with the same number of elements.
pub(super) fn share_into(
    ctx: &OpContext<'_>,
    f: (Reduce, f64),
    input: View<'_>,
    axes: &AxisSet,
    mut out: Buffer,
) -> Result<Tensor> {
    fold_shares(ctx, f, input, axes, out.view_mut())?;
    Ok(out.finish())
}

/// Reshapes a new contiguous tensor.
pub(super) fn reshaped(tensor: Tensor, shape: Shape) -> Result<Tensor> {
    let layout = tensor.layout().reshaped(shape).ok_or_else(|| Error::ShapeMismatch {
        op: "reshape",
        lhs: *tensor.shape(),
        rhs: shape,
        rule: &ShapeRule::Other("their sizes must multiply to the same number"),
    })?;
    Ok(tensor.into_layout(layout))
}

/// The reduced axes, and whether they stay with size 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) axes: AxisSet,
    keepdim: bool,
}

impl Target {
    /// Returns the same axes, staying with size 1.
    pub(super) const fn kept(&self) -> Self {
        Self { axes: self.axes, keepdim: true }
    }

    /// Removes the reduced axes of size 1, unless they stay.
    pub(super) fn finish(&self, folded: Tensor, of: &Shape) -> Result<Tensor> {
        if self.keepdim { Ok(folded) } else { reshaped(folded, self.axes.remaining_shape(of)) }
    }

    /// Restores the reduced axes of the gradient as axes of size 1.
    pub(super) fn restore(&self, grad: &Tensor) -> Result<Tensor> {
        if self.keepdim { Ok(grad.clone()) } else { restored(grad, &self.axes) }
    }
}

#[derive(Debug)]
struct Sum(Target);

impl Op for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        self.0.finish(fold_wide(ctx, Reduce::Sum, x, &self.0.axes)?, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.0.restore(&grad)?.broadcast_to(saved.input_shape(0))?)])
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ONCE
    }
}

/// A reduction inside another op, without a gradient of its own.
#[derive(Debug)]
struct Folded {
    f: Reduce,
    /// The divisor of the results.
    divisor: f64,
    target: Target,
}

impl Op for Folded {
    fn name(&self) -> &'static str {
        self.f.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, f) = (inputs[0], (self.f, self.divisor));
        supported(ctx.op(), x.dtype(), DType::is_float)?;
        self.target.finish(share(ctx, f, x.view(), &self.target.axes, x.dtype())?, x.shape())
    }
}

#[derive(Debug)]
struct Mean(Target);

impl Op for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        supported(ctx.op(), x.dtype(), DType::is_float)?;
        let f = (Reduce::Sum, self.0.axes.count(x.shape()) as f64);
        self.0.finish(share(ctx, f, x.view(), &self.0.axes, x.dtype())?, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let shape = saved.input_shape(0);
        let share = self.0.restore(&grad)?.div_scalar(self.0.axes.count(&shape) as f64)?;
        Ok(vec![Some(share.broadcast_to(shape)?)])
    }

    fn summation(&self, inputs: &[Shape]) -> Summation {
        let count = inputs.first().map_or(1, |shape| self.0.axes.count(shape));
        Summation::Elements { factor: 1.0 / count as f64 }
    }
}

#[derive(Debug)]
struct Extreme {
    f: Reduce,
    target: Target,
}

impl Op for Extreme {
    fn name(&self) -> &'static str {
        self.f.name()
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, axes) = (inputs[0], &self.target.axes);
        supported(ctx.op(), x.dtype(), is_numeric)?;
        let folded = axes.folded_shape(x.shape());
        not_empty(ctx.op(), x, &folded)?;
        let mut out = ctx.output(&folded, x.dtype())?;
        fold(ctx, self.f, x.view(), axes, &mut out)?;
        let extreme = out.finish();
        ctx.save(x);
        ctx.save(&extreme);
        self.target.finish(extreme, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        // The number of ties may exceed the range of a 16-bit float.
        let hits = saved.tensor(0)?.eq(saved.tensor(1)?)?.to_dtype(grad.dtype().computed_as())?;
        let ties = hits.sum_over(self.target.kept())?;
        let share = self.target.restore(&grad)?.upcast()?.div(&ties)?;
        Ok(vec![Some(hits.mul(&share)?.to_dtype(grad.dtype())?)])
    }
}

#[derive(Debug)]
struct ArgExtreme {
    largest: bool,
    axis: usize,
}

impl Op for ArgExtreme {
    fn name(&self) -> &'static str {
        if self.largest { "argmax" } else { "argmin" }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, x) = (ctx.op(), inputs[0]);
        supported(op, x.dtype(), is_numeric)?;
        let axis = self.axis;
        let folded = x.shape().with_dim(axis, 1);
        not_empty(op, x, &folded)?;
        let mut out = ctx.output(&folded, DType::I64)?;
        ctx.compute(kernels::ArgReduce {
            largest: self.largest,
            input: x.view(),
            axis,
            out: out.view_mut(),
        })?;
        reshaped(out.finish(), x.shape().without(axis))
    }
}

/// Fails if an element of the result would fold no elements. An empty result is valid.
pub(super) fn not_empty(op: &'static str, x: &Tensor, folded: &Shape) -> Result<()> {
    if x.elements() == 0 && folded.elements() != 0 {
        return Err(Error::EmptyReduction { op, shape: *x.shape() });
    }
    Ok(())
}

/// # Reductions
///
/// `axes` is one axis, or an array, slice or vector of axes.
impl Tensor {
    pub(super) fn target(&self, op: &'static str, axes: &impl Axes, keepdim: bool) -> Result<Target> {
        Ok(Target { axes: AxisSet::of(op, self.shape(), axes)?, keepdim })
    }

    pub(super) fn all_axes(&self) -> Target {
        Target { axes: AxisSet::all(self.rank()), keepdim: false }
    }

    pub(super) fn sum_over(&self, target: Target) -> Result<Self> {
        apply(Sum(target), &[self])
    }

    /// Folds floats without recording a gradient.
    pub(super) fn folded(&self, f: Reduce, target: Target) -> Result<Self> {
        self.folded_shares((f, 1.0), target)
    }

    /// Folds floats and divides by a number, without recording a gradient.
    pub(super) fn folded_shares(&self, (f, divisor): (Reduce, f64), target: Target) -> Result<Self> {
        apply(Folded { f, divisor, target }, &[self])
    }

    /// Sums the squares of all elements, without recording a gradient.
    pub(crate) fn sum_of_squares(&self) -> Result<Self> {
        self.folded(Reduce::SumSquares, self.all_axes())
    }

    pub(super) fn mean_over(&self, target: Target) -> Result<Self> {
        apply(Mean(target), &[self])
    }

    pub(super) fn max_over(&self, target: Target) -> Result<Self> {
        self.extreme(Reduce::Max, target)
    }

    fn extreme(&self, f: Reduce, target: Target) -> Result<Self> {
        apply(Extreme { f, target }, &[self])
    }

    /// Sum of the elements along axes, which vanish; 0 for no elements. Integers and booleans are summed as i64, which
    /// wraps.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// assert_eq!(x.sum(0)?.to_vec::<f32>()?, [4.0, 6.0]);
    /// assert_eq!(x.sum([0, -1])?.item::<f32>()?, 10.0);
    /// let large = x.gt(&Tensor::full(x.device(), 1, 1.5)?)?;
    /// assert_eq!(large.sum_all()?.item::<i64>()?, 3);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], and [`Error::BadArgument`] for a repeated axis; [`Error::Allocation`] if there is no
    /// memory.
    pub fn sum(&self, axes: impl Axes) -> Result<Self> {
        self.sum_over(self.target("sum", &axes, false)?)
    }

    /// Sum of the elements along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    pub fn sum_keepdim(&self, axes: impl Axes) -> Result<Self> {
        self.sum_over(self.target("sum", &axes, true)?)
    }

    /// Sum of all elements.
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    pub fn sum_all(&self) -> Result<Self> {
        self.sum_over(self.all_axes())
    }

    /// Mean of the elements along axes, which vanish; NaN for no elements.
    ///
    /// # Errors
    /// See [`Tensor::sum`], and [`Error::UnsupportedDType`] unless the elements are floats.
    pub fn mean(&self, axes: impl Axes) -> Result<Self> {
        apply(Mean(self.target("mean", &axes, false)?), &[self])
    }

    /// Mean of the elements along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn mean_keepdim(&self, axes: impl Axes) -> Result<Self> {
        apply(Mean(self.target("mean", &axes, true)?), &[self])
    }

    /// Mean of all elements.
    ///
    /// # Errors
    /// See [`Tensor::mean`].
    pub fn mean_all(&self) -> Result<Self> {
        apply(Mean(self.all_axes()), &[self])
    }

    /// Maximum along axes, which vanish; NaN if an element is NaN. Ties share the gradient evenly, as in PyTorch's
    /// `amax`.
    ///
    /// # Errors
    /// See [`Tensor::sum`]; [`Error::EmptyReduction`] for no elements; [`Error::UnsupportedDType`] for booleans.
    pub fn max(&self, axes: impl Axes) -> Result<Self> {
        self.extreme(Reduce::Max, self.target("max", &axes, false)?)
    }

    /// Maximum along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::max`].
    pub fn max_keepdim(&self, axes: impl Axes) -> Result<Self> {
        self.extreme(Reduce::Max, self.target("max", &axes, true)?)
    }

    /// Maximum of all elements.
    ///
    /// # Errors
    /// See [`Tensor::max`].
    #[doc(alias("amax"))]
    pub fn max_all(&self) -> Result<Self> {
        self.extreme(Reduce::Max, self.all_axes())
    }

    /// Minimum along axes, which vanish; NaN if an element is NaN. Ties share the gradient evenly, as in PyTorch's
    /// `amin`.
    ///
    /// # Errors
    /// See [`Tensor::max`].
    pub fn min(&self, axes: impl Axes) -> Result<Self> {
        self.extreme(Reduce::Min, self.target("min", &axes, false)?)
    }

    /// Minimum along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::max`].
    pub fn min_keepdim(&self, axes: impl Axes) -> Result<Self> {
        self.extreme(Reduce::Min, self.target("min", &axes, true)?)
    }

    /// Minimum of all elements.
    ///
    /// # Errors
    /// See [`Tensor::max`].
    #[doc(alias("amin"))]
    pub fn min_all(&self) -> Result<Self> {
        self.extreme(Reduce::Min, self.all_axes())
    }

    /// Index (i64) of the first maximum along axes, which vanish; a NaN counts as the maximum.
    ///
    /// Along several axes, the index counts the elements in logical order. The op then copies them unless they are
    /// contiguous.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 4.0, 3.0, 2.0], [2, 2])?;
    /// assert_eq!(x.argmax(0)?.to_vec::<i64>()?, [1, 0]);
    /// assert_eq!(x.argmax([0, 1])?.item::<i64>()?, 1);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], and [`Error::BadArgument`] for a repeated axis; [`Error::EmptyReduction`] for no
    /// elements; [`Error::UnsupportedDType`] for booleans; [`Error::Allocation`] if there is no memory.
    pub fn argmax(&self, axes: impl Axes) -> Result<Self> {
        self.arg_extreme("argmax", true, &axes)
    }

    /// Index (i64) of the first minimum along axes, which vanish; a NaN counts as the minimum.
    ///
    /// # Errors
    /// See [`Tensor::argmax`].
    pub fn argmin(&self, axes: impl Axes) -> Result<Self> {
        self.arg_extreme("argmin", false, &axes)
    }

    fn arg_extreme(&self, op: &'static str, largest: bool, axes: &impl Axes) -> Result<Self> {
        if let [axis] = *axes.axes() {
            return apply(ArgExtreme { largest, axis: self.shape().axis(op, axis)? }, &[self]);
        }
        let axes = AxisSet::of(op, self.shape(), axes)?;
        let kept = (0..self.rank()).filter(|&axis| !axes.as_slice()[axis]);
        let order: Vec<isize> = kept.chain(axes.iter()).map(|axis| axis as isize).collect();
        let sequences = axes.remaining_shape(self.shape());
        let (rank, count) = (sequences.rank(), axes.count(self.shape()));
        let flat = self.permute(&order)?.reshape([sequences.dims(), &[count]].concat())?;
        apply(ArgExtreme { largest, axis: rank }, &[&flat])
    }
}

#[cfg(test)]
mod tests;
