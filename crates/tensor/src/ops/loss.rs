//! Loss functions.
//!
//! | op | y | ∂L/∂x | saved |
//! |---|---|---|---|
//! | `cross_entropy` | `-Σᵢ ln softmax(xᵢ)[tᵢ] / n` | (softmax(x) - one_hot(t)) ∂L/∂y / n | x, t |
//! | `linear_cross_entropy` | that of x·W, by chunks of rows | the same, times Wᵀ | the gradients |
//! | `mse_loss` | (x - t)², folded | 2 (x - t) ∂L/∂y, / elements for the mean | x - t |
//!
//! Per-row losses are temporaries, in f32 for 16-bit floats. The differences are temporaries too, and become the
//! gradient in place. The mean over no rows is NaN, as in PyTorch.
//! `weighted` has cross-entropy with options, `linear` that of a projection, `positions` cross-entropy with more axes, `elementwise` the losses of
//! single elements, `composed` the losses that compose other ops.

mod composed;
mod elementwise;
mod linear;
mod positions;
mod reduction;
mod weighted;

pub use linear::{LinearCrossEntropyOptions, Projection};
pub use reduction::Reduction;
pub use weighted::CrossEntropyOptions;

use positions::Rows;

use super::axes::AxisSet;
use super::index::{as_i64, expect_indices};
use super::reduce::share_into;
use super::{if_needed, promoted, same_dtype, supported};
use crate::autograd::apply;
use crate::backend::{Binary, Reduce, Unary, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::shape::{DType, Scalar, Shape};
use crate::storage::View;
use crate::tensor::Tensor;

const TARGETS: &ShapeRule =
    &ShapeRule::Other("there must be one target per row of logits, and per position of [n, classes, ..]");

/// Folds all elements, divided by a number, into the op's scalar output.
fn share_of_all(ctx: &OpContext<'_>, f: (Reduce, f64), input: View<'_>, dtype: DType) -> Result<Tensor> {
    let axes = AxisSet::all(input.layout().shape().rank());
    share_into(ctx, f, input, &axes, ctx.output(&Shape::SCALAR, dtype)?)
}

/// Checks logits `[n, classes]` and their targets `[n]`.
fn check_classes(op: &'static str, logits: &Tensor, targets: &Tensor) -> Result<()> {
    supported(op, logits.dtype(), DType::is_float)?;
    expect_indices(op, "targets", targets, logits)?;
    match (logits.dims(), targets.dims()) {
        ([rows, _], [targeted]) if rows == targeted => Ok(()),
        _ => Err(Error::ShapeMismatch { op, lhs: *logits.shape(), rhs: *targets.shape(), rule: TARGETS }),
    }
}

#[derive(Debug)]
struct CrossEntropy;

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [logits, targets] = [inputs[0], inputs[1]];
        check_classes(ctx.op(), logits, targets)?;
        let mut losses = ctx.temp(targets.shape(), logits.dtype().computed_as())?;
        ctx.compute(kernels::CrossEntropy {
            logits: logits.view(),
            targets: as_i64(ctx, targets)?.view(),
            losses: losses.view_mut(),
        })?;
        let mean = (Reduce::Sum, targets.elements() as f64);
        let loss = share_of_all(ctx, mean, losses.view(), logits.dtype().computed_as())?;
        ctx.save(logits);
        ctx.save(targets);
        Ok(loss)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (logits, targets) = (saved.tensor(0)?, saved.tensor(1)?);
        let share = grad.upcast()?.div_scalar(targets.elements() as f64)?;
        let everywhere = share.layout().broadcast_to(ctx.op(), targets.shape())?;
        let mut out = ctx.gradient(0, logits.shape(), logits.dtype())?;
        ctx.compute(kernels::CrossEntropyGrad {
            logits: logits.view(),
            targets: as_i64(ctx, targets)?.view(),
            grad: share.view().with_layout(&everywhere),
            out: out.view_mut(),
        })?;
        Ok(vec![Some(out.finish()), None])
    }

    fn summation(&self, inputs: &[Shape]) -> Summation {
        Reduction::Mean.summation(inputs.last().map_or(1, Shape::elements))
    }
}

#[derive(Debug)]
struct MseLoss(Reduction);

impl Op for MseLoss {
    fn name(&self) -> &'static str {
        "mse_loss"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [x, target]) = (ctx.op(), [inputs[0], inputs[1]]);
        same_dtype(op, x, target)?;
        supported(op, x.dtype(), DType::is_float)?;
        if x.shape() != target.shape() {
            return Err(Error::ShapeMismatch {
                op,
                lhs: *x.shape(),
                rhs: *target.shape(),
                rule: &ShapeRule::Same,
            });
        }
        let mut difference = ctx.temp_saved(x.shape(), x.dtype().computed_as())?;
        let (lhs, rhs) = (x.view(), target.view());
        ctx.compute(kernels::Zip { f: Binary::Sub, lhs, rhs, out: difference.view_mut() })?;
        let all = |divisor: f64, difference: View<'_>| {
            share_of_all(ctx, (Reduce::SumSquares, divisor), difference, x.dtype().computed_as())
        };
        let loss = match self.0 {
            Reduction::Mean => all(x.elements() as f64, difference.view())?,
            Reduction::Sum => all(1.0, difference.view())?,
            Reduction::None => {
                let mut out = ctx.output(x.shape(), x.dtype())?;
                let (f, input) = (Unary::Square, difference.view());
                ctx.compute(kernels::Map { f, input, out: out.view_mut() })?;
                out.finish()
            }
        };
        ctx.save(&difference.finish());
        Ok(loss)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        // The gradients, in the buffer of the differences if no other handle shares it.
        let mut difference = saved.take_last()?;
        let scale = scaled(ctx, grad, self.slope(saved))?;
        let everywhere = scale.layout().broadcast_to(ctx.op(), difference.shape())?;
        let scale = scale.view().with_layout(&everywhere);
        let slopes = if let Some(acc) = difference.view_mut() {
            ctx.compute(kernels::Accumulate { f: Binary::Mul, input: scale, acc })?;
            difference.owned_storage().becomes_gradient();
            difference
        } else {
            let mut out = ctx.output(difference.shape(), difference.dtype())?;
            let (lhs, out_view) = (difference.view(), out.view_mut());
            ctx.compute(kernels::Zip { f: Binary::Mul, lhs, rhs: scale, out: out_view })?;
            out.finish()
        };
        given_on(saved, slopes)
    }

    fn summation(&self, inputs: &[Shape]) -> Summation {
        self.0.summation(inputs.last().map_or(1, Shape::elements))
    }
}

impl MseLoss {
    /// Returns the factor for the differences.
    fn slope(&self, saved: &Saved) -> f64 {
        match self.0 {
            Reduction::Mean => 2.0 / saved.input_shape(0).elements() as f64,
            Reduction::Sum | Reduction::None => 2.0,
        }
    }
}

/// Returns the gradients of predictions and targets, given those of the predictions.
fn given_on(saved: &Saved, slopes: Tensor) -> Result<Vec<Option<Tensor>>> {
    let dtype = saved.input_dtype(0);
    let to_x = if slopes.dtype() == dtype { slopes } else { slopes.to_dtype(dtype)? };
    let to_target = if_needed(saved, 1, || to_x.neg())?;
    Ok(vec![Some(to_x), to_target])
}

/// Multiplies a gradient by a number, in the type that ops compute with: the gradient of one element may underflow in
/// 16 bits before the multiplication. Works in place if no other handle shares the buffer.
fn scaled(ctx: &OpContext<'_>, mut grad: Tensor, factor: f64) -> Result<Tensor> {
    if let Some(values) = grad.view_mut().filter(|values| !values.dtype().is_half()) {
        ctx.compute(kernels::Scale { factor, values })?;
        return Ok(grad);
    }
    let mut scaled = ctx.temp(grad.shape(), grad.dtype().computed_as())?;
    let f = Unary::MulScalar(Scalar::Float(factor));
    ctx.compute(kernels::Map { f, input: grad.view(), out: scaled.view_mut() })?;
    Ok(scaled.finish())
}

/// # Loss functions
///
/// Each loss is a mean. Its variant that ends in `_with` takes a [`Reduction`]. The mean and the sum of 16-bit losses are f32.
impl Tensor {
    /// Cross-entropy loss of logits with class indices: the mean over the rows of `-ln softmax(row)[target]`. NaN for
    /// no rows.
    ///
    /// Shapes: logits (`self`) `[n, classes]`, targets `[n]` (u8, i32, u32 or i64; other types than i64 need a temporary
    /// of 8 bytes per target).
    ///
    /// As in PyTorch, logits `[n, classes, d1, ...]` with targets `[n, d1, ...]` give one class per position, and
    /// `[classes]` takes one target. If the classes are the last of more axes, reshape to `[rows, classes]`: this
    /// copies nothing, while moving the classes to the second axis would.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let logits = Tensor::zeros(&device, [3, 4])?; // no class is likelier than another
    /// let targets = Tensor::from_slice(&device, &[0i64, 3, 1], [3])?;
    /// let loss = logits.cross_entropy(&targets)?.item::<f32>()?;
    /// assert!((loss - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; [`Error::UnsupportedDType`] unless the logits are floats,
    /// [`Error::BadArgument`] unless the targets are u8, i32, u32 or i64; [`Error::IndexOutOfRange`] for a target outside
    /// of the classes, also a negative one; [`Error::Allocation`] if there is no memory.
    #[doc(alias("softmax_cross_entropy"))]
    pub fn cross_entropy(&self, targets: &Self) -> Result<Self> {
        match Rows::of(CrossEntropy.name(), self, targets)? {
            Some(rows) => apply(CrossEntropy, &[&rows.logits, &rows.targets]),
            None => apply(CrossEntropy, &[self, targets]),
        }
    }

    /// Squared error loss (MSE): the mean of the squared differences from `target`, which has the same shape.
    ///
    /// ```
    /// use highwater::{Device, Reduction, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], [2])?;
    /// let target = Tensor::from_slice(&device, &[2.0f32, 2.0], [2])?;
    /// assert_eq!(x.mse_loss(&target)?.item::<f32>()?, 5.0);
    /// assert_eq!(x.mse_loss_with(&target, Reduction::None)?.to_vec::<f32>()?, [1.0, 9.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for different shapes, [`Error::UnsupportedDType`] unless the promoted type is a float,
    /// [`Error::Allocation`] if there is no memory.
    pub fn mse_loss(&self, target: &Self) -> Result<Self> {
        self.mse_loss_with(target, Reduction::Mean)
    }

    /// Squared error loss with another reduction. See [`Tensor::mse_loss`].
    ///
    /// # Errors
    /// See [`Tensor::mse_loss`].
    pub fn mse_loss_with(&self, target: &Self, reduction: Reduction) -> Result<Self> {
        if self.dtype() != target.dtype() {
            let [x, target] = promoted(self, target)?;
            return apply(MseLoss(reduction), &[&x, &target]);
        }
        apply(MseLoss(reduction), &[self, target])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn cross_entropy_is_the_mean_negative_log_softmax() {
        let device = cpu();
        let logits = Tensor::normal(&device, [5, 3], 0.0, 2.0, &crate::Rng::new(2)).unwrap();
        let targets = Tensor::from_slice(&device, &[2i64, 0, 1, 1, 2], 5).unwrap();
        let picked = logits.log_softmax(1).unwrap().gather(1, &targets.unsqueeze(1).unwrap()).unwrap();
        let expected = picked.neg().unwrap().mean_all().unwrap().item::<f32>().unwrap();
        let loss = logits.cross_entropy(&targets).unwrap().item::<f32>().unwrap();
        assert!((loss - expected).abs() < 1e-6, "{loss} for {expected}");
    }

    #[test]
    fn the_fused_mse_backward_equals_the_composed_one() {
        let device = cpu();
        let rng = crate::Rng::new(5);
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let leaf = |dims: &[usize]| {
                let leaf = Tensor::normal(&device, dims, 0.0, 1.0, &rng).unwrap().to_dtype(dtype).unwrap();
                leaf.requiring_grad().unwrap()
            };
            for (dims, reduction) in [
                (&[7, 3][..], Reduction::Mean),
                (&[7, 3], Reduction::Sum),
                (&[1], Reduction::None),
                (&[0, 3], Reduction::Mean),
            ] {
                let (x, target) = (leaf(dims), leaf(dims));
                let gradients = |loss: &Tensor| {
                    let gradients = loss.backward().unwrap();
                    [&x, &target].map(|leaf| {
                        let gradient = gradients.get(leaf).unwrap();
                        let charged = gradient.storage().category();
                        assert!(gradient.elements() == 0 || charged == Some(bfc_core::Category::Gradient));
                        let values = gradient.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                        values.into_iter().map(f64::to_bits).collect::<Vec<_>>()
                    })
                };
                let loss = || x.mse_loss_with(&target, reduction).unwrap();
                let through = gradients(&loss().mul_scalar(1.0).unwrap());
                assert_eq!(gradients(&loss()), through, "{reduction:?} of {dims:?} in {dtype}");
            }
        }
    }

    #[test]
    fn the_loss_of_no_rows_is_no_number() {
        let device = cpu();
        let targets = Tensor::from_slice::<i64>(&device, &[], 0).unwrap();
        let logits = Tensor::zeros(&device, [0, 3]).unwrap().requiring_grad().unwrap();
        let loss = logits.cross_entropy(&targets).unwrap();
        assert!(loss.item::<f32>().unwrap().is_nan());
        assert_eq!(loss.backward().unwrap().get(&logits).unwrap().dims(), [0, 3]);
        assert!(logits.mse_loss(&logits).unwrap().item::<f32>().unwrap().is_nan());
    }

    #[test]
    fn targets_that_do_not_fit_are_named_with_both_shapes() {
        let device = cpu();
        let logits = Tensor::zeros(&device, [2, 3]).unwrap();
        let message =
            |targets: Result<Tensor>| logits.cross_entropy(&targets.unwrap()).unwrap_err().to_string();
        assert_eq!(
            message(Tensor::arange(&device, 0, 3)),
            "cross_entropy: shapes [2, 3] and [3] do not match: there must be one target per row of logits, and per position of [n, classes, ..]"
        );
        assert_eq!(
            message(Tensor::zeros(&device, 2)),
            "cross_entropy: targets must be of type u8, i32, u32 or i64, got f32 of shape [2] for a tensor of shape [2, 3]"
        );
        assert_eq!(
            message(Tensor::from_slice(&device, &[0i64, 3], 2)),
            "cross_entropy: index 3 is out of range for length 3"
        );
        assert_eq!(
            message(Tensor::from_slice(&device, &[-1i64, 0], 2)),
            "cross_entropy: index -1 is out of range for length 3"
        );
        assert_eq!(
            logits.mse_loss(&Tensor::zeros(&device, 3).unwrap()).unwrap_err().to_string(),
            "mse_loss: shapes [2, 3] and [3] do not match: they must be equal"
        );
    }

    #[test]
    fn the_squared_error_is_a_mean_with_a_gradient_to_both_sides() {
        let device = cpu();
        let leaf = |values: &[f32]| Tensor::from_slice(&device, values, 2).unwrap().requiring_grad().unwrap();
        let (x, target) = (leaf(&[1.0, 5.0]), leaf(&[2.0, 2.0]));
        let loss = x.mse_loss(&target).unwrap();
        assert_eq!(loss.item::<f32>().unwrap(), 5.0);
        let gradients = loss.backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [-1.0, 3.0]);
        assert_eq!(gradients.get(&target).unwrap().to_vec::<f32>().unwrap(), [1.0, -3.0]);
    }
}
