//! Cross-entropy with label smoothing, ignored rows and class weights.
//!
//! With pᵢ = softmax(xᵢ), smoothing ε, C classes of weights w and W = Σ w, the loss of row i is (1 - ε) w\[tᵢ\] (-ln
//! pᵢ\[tᵢ\]) + ε/C Σ_c w\[c\] (-ln pᵢ\[c\]). An ignored row has a loss and a gradient of 0, whatever its elements. The
//! mean is Σ losses / Σ w\[tᵢ\] over the other rows, as in PyTorch. (Szegedy et al. 2016.)
//!
//! ∂lossᵢ/∂xᵢ = (1 - ε) w\[tᵢ\] (pᵢ - one_hot(tᵢ)) + ε/C (W pᵢ - w). Saves x, t and w. Smoothing allocates temporaries
//! of the size of x. 16-bit floats are upcast to f32 first.

use super::positions;
use super::reduction::Reduction;
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::ops::create::constant_like;
use crate::ops::index::as_i64;
use crate::ops::same_dtype;
use crate::shape::{DType, Element, Shape};
use crate::tensor::Tensor;

/// Options of [`Tensor::cross_entropy_with`]. The defaults match [`Tensor::cross_entropy`]. A [`Reduction`] converts to
/// options with that reduction.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyOptions<'a> {
    /// The share of each target, from 0 to 1, that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// The target of ignored rows; it need not be a valid class.
    pub ignore_index: Option<i64>,
    /// Class weights: a tensor `[classes]` of the logits' type, without gradient. `None` means 1 for each class.
    pub class_weights: Option<&'a Tensor>,
    /// The reduction of the rows' losses. The mean divides by the sum of the weights of the rows' targets.
    pub reduction: Reduction,
}

impl From<Reduction> for CrossEntropyOptions<'_> {
    fn from(reduction: Reduction) -> Self {
        Self { reduction, ..Self::default() }
    }
}

const OP: &str = "cross_entropy";

/// The op. Its inputs are logits, targets and optional class weights.
#[derive(Debug)]
struct WeightedCrossEntropy {
    smoothing: f64,
    ignored: Option<i64>,
    reduction: Reduction,
}

/// Fails unless the smoothing is from 0 to 1.
pub(super) fn check_smoothing(op: &'static str, smoothing: f64) -> Result<()> {
    if (0.0..=1.0).contains(&smoothing) {
        return Ok(());
    }
    let (argument, expected) = ("label_smoothing", "from 0 to 1");
    Err(Error::BadArgument { op, argument, expected, got: smoothing.to_string() })
}

/// Targets and weights of the rows.
pub(super) struct Rows {
    /// Targets, all of which are valid classes.
    targets: Tensor,
    /// A mask of the rows that are not ignored; `None` if no row is ignored.
    kept: Option<Tensor>,
    /// The weight of each row.
    weights: Tensor,
}

impl Rows {
    /// Returns valid targets, and a mask of the rows that are not ignored. `targets` are i64, which represents every
    /// ignored target.
    pub(super) fn kept(ignored: Option<i64>, targets: Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let Some(ignored) = ignored else { return Ok((targets, None)) };
        let kept = targets.ne(&constant_like(&targets, ignored)?)?;
        let any_class = constant_like(&targets, 0)?;
        Ok((kept.where_(&targets, &any_class)?, Some(kept)))
    }

    /// Computes the rows' weights from valid `targets`.
    fn new(
        (targets, kept): (Tensor, Option<Tensor>),
        logits: &Tensor,
        class_weights: Option<&Tensor>,
    ) -> Result<Self> {
        let weights = match class_weights {
            Some(weights) => weights.index_select(0, &targets)?,
            None => constant_like(logits, 1)?.broadcast_to(targets.shape())?,
        };
        let rows = Self { targets, kept, weights: weights.clone() };
        Ok(Self { weights: rows.only_kept(weights)?, ..rows })
    }

    /// Sets the elements of ignored rows to 0, even if they are NaN.
    fn only_kept(&self, numbers: Tensor) -> Result<Tensor> {
        let Some(kept) = &self.kept else { return Ok(numbers) };
        let zero = constant_like(&numbers, 0)?;
        if numbers.dims().len() > 1 {
            return kept.unsqueeze(1)?.where_(&numbers, &zero);
        }
        kept.where_(&numbers, &zero)
    }
}

impl WeightedCrossEntropy {
    /// Returns the smoothing per class.
    fn smoothing_of_each(&self, logits: &Tensor) -> f64 {
        self.smoothing / logits.dims()[1] as f64
    }
}

impl Op for WeightedCrossEntropy {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let ([logits, targets], class_weights) = ([inputs[0], inputs[1]], inputs.get(2).copied());
        super::check_classes(OP, logits, targets)?;
        if let Some(weights) = class_weights {
            same_dtype(OP, logits, weights)?;
            if weights.dims() != [logits.dims()[1]] {
                return Err(Error::ShapeMismatch {
                    op: OP,
                    lhs: *logits.shape(),
                    rhs: *weights.shape(),
                    rule: &ShapeRule::Other("there must be one weight per class"),
                });
            }
        }
        let (dtype, logits) = (logits.dtype(), &logits.upcast()?);
        let class_weights = class_weights.map(Tensor::upcast).transpose()?;
        let kept = Rows::kept(self.ignored, as_i64(ctx, targets)?)?;
        let mut losses = ctx.temp(targets.shape(), logits.dtype())?;
        ctx.compute(kernels::CrossEntropy {
            logits: logits.view(),
            targets: kept.0.view(),
            losses: losses.view_mut(),
        })?;
        let rows = Rows::new(kept, logits, class_weights.as_ref())?;
        let mut losses = losses.finish().mul(&rows.weights)?.mul_scalar(1.0 - self.smoothing)?;
        if self.smoothing > 0.0 {
            let logarithms = logits.log_softmax(1)?;
            let sums = match &class_weights {
                Some(weights) => logarithms.matmul(weights)?,
                None => logarithms.sum(1)?,
            };
            losses = losses.sub(&sums.mul_scalar(self.smoothing_of_each(logits))?)?;
        }
        let losses = rows.only_kept(losses)?;
        let loss = match self.reduction {
            Reduction::Mean => losses.sum_all()?.div(&rows.weights.sum_all()?)?,
            other => other.fold(losses)?,
        };
        inputs.iter().for_each(|input| ctx.save(input));
        loss.to_dtype(self.reduction.dtype(dtype))
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (logits, targets) = (&saved.tensor(0)?.upcast()?, saved.tensor(1)?);
        let class_weights = if saved.inputs() > 2 { Some(saved.tensor(2)?.upcast()?) } else { None };
        let grad = &grad.upcast()?;
        let rows =
            Rows::new(Rows::kept(self.ignored, as_i64(ctx, targets)?)?, logits, class_weights.as_ref())?;
        let share = match self.reduction {
            Reduction::Mean => grad.div(&rows.weights.sum_all()?)?.broadcast_to(targets.shape())?,
            other => other.spread(grad, targets.shape())?,
        };
        let sharp = rows.only_kept(share.mul(&rows.weights)?.mul_scalar(1.0 - self.smoothing)?)?;
        let mut out = ctx.gradient(0, logits.shape(), logits.dtype())?;
        ctx.compute(kernels::CrossEntropyGrad {
            logits: logits.view(),
            targets: rows.targets.view(),
            grad: sharp.view(),
            out: out.view_mut(),
        })?;
        let mut to_logits = out.finish();
        if self.smoothing > 0.0 {
            let probabilities = logits.softmax(1)?;
            let pull = match &class_weights {
                Some(weights) => probabilities.mul(&weights.sum_all()?)?.sub(weights)?,
                None => probabilities.mul_scalar(logits.dims()[1] as f64)?.sub_scalar(1.0)?,
            };
            let share = rows.only_kept(share)?.mul_scalar(self.smoothing_of_each(logits))?;
            to_logits = to_logits.add(&rows.only_kept(pull.mul(&share.unsqueeze(1)?)?)?)?;
        }
        let to_logits = to_logits.to_dtype(saved.input_dtype(0))?;
        Ok([Some(to_logits), None, None].into_iter().take(saved.inputs()).collect())
    }

    fn summation(&self, inputs: &[Shape]) -> Summation {
        let rows = inputs.get(1).map_or(1, Shape::elements);
        match self.reduction {
            // The mean divides by the weights of the targets.
            Reduction::Mean if inputs.len() > 2 => Summation::Other,
            Reduction::Mean if self.ignored.is_some() => Summation::MeanOfKept { rows },
            reduction => reduction.summation(rows),
        }
    }

    fn kept_rows(&self, saved: &Saved) -> Result<usize> {
        let targets = saved.tensor(1)?;
        Ok(match self.ignored {
            Some(ignored) => targets.elements() - count_of(targets, ignored)?,
            None => targets.elements(),
        })
    }
}

/// Counts an index on the host, without memory of the device.
fn count_of(indices: &Tensor, index: i64) -> Result<usize> {
    fn count<T: Element + Into<i64>>(indices: &Tensor, index: i64) -> Result<usize> {
        Ok(indices.to_vec::<T>()?.into_iter().filter(|&other| other.into() == index).count())
    }
    match indices.dtype() {
        DType::U8 => count::<u8>(indices, index),
        DType::I32 => count::<i32>(indices, index),
        DType::U32 => count::<u32>(indices, index),
        _ => count::<i64>(indices, index),
    }
}

/// # Cross-entropy with options
impl Tensor {
    /// Cross-entropy loss with another reduction, or with options: label smoothing, ignored rows, class weights and the
    /// reduction. See [`Tensor::cross_entropy`].
    ///
    /// ```
    /// use highwater::{CrossEntropyOptions, Device, Tensor};
    /// let device = Device::cpu()?;
    /// let logits = Tensor::from_slice(&device, &[0.0f32, 0.0, 9.0, 1.0], [2, 2])?;
    /// let targets = Tensor::from_slice(&device, &[1i64, -100], [2])?;
    /// let options = CrossEntropyOptions { ignore_index: Some(-100), ..Default::default() };
    /// let loss = logits.cross_entropy_with(&targets, options)?; // of the first row alone
    /// assert_eq!(loss.item::<f32>()?, 2f32.ln());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// Without a reduction, the losses have the shape of the targets. No gradient flows to ignored rows.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the smoothing is from 0 to 1; [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`]
    /// unless the weights are `[classes]` of the logits' type; otherwise see [`Tensor::cross_entropy`].
    pub fn cross_entropy_with<'a>(
        &self,
        targets: &Self,
        options: impl Into<CrossEntropyOptions<'a>>,
    ) -> Result<Self> {
        let options = options.into();
        let smoothing = options.label_smoothing;
        check_smoothing(OP, smoothing)?;
        let op =
            WeightedCrossEntropy { smoothing, ignored: options.ignore_index, reduction: options.reduction };
        let positions = positions::Rows::of(OP, self, targets)?;
        let (logits, rows) = match &positions {
            Some(positions) => (&positions.logits, &positions.targets),
            None => (self, targets),
        };
        let loss = match options.class_weights {
            Some(weights) => apply(op, &[logits, rows, weights]),
            None => apply(op, &[logits, rows]),
        }?;
        if options.reduction == Reduction::None { loss.reshape(*targets.shape()) } else { Ok(loss) }
    }
}
