//! Cross-entropy with all its options: smoothed labels, rows that do not count, classes that count more than others.
//!
//! With pᵢ = softmax(xᵢ), ε the smoothing, C classes of weights w and W = Σ w, the loss of row i is
//! (1 - ε) w\[tᵢ\] (-ln pᵢ\[tᵢ\]) + ε/C Σ_c w\[c\] (-ln pᵢ\[c\]), and 0 with a gradient of 0 for a row that is ignored, whatever it holds. The mean is Σ losses / Σ w\[tᵢ\]
//! over the rows that count, as in PyTorch. (Szegedy and others 2016.)
//!
//! ∂lossᵢ/∂xᵢ = (1 - ε) w\[tᵢ\] (pᵢ - one_hot(tᵢ)) + ε/C (W pᵢ - w). Saves x, t and w; smoothing takes temporaries of the size of x,
//! and halves are widened to f32 first.

use super::positions;
use super::reduction::Reduction;
use crate::autograd::apply;
use crate::backend::Kernel;
use crate::error::{Error, Result};
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::ops::create::constant_like;
use crate::ops::same_dtype;
use crate::tensor::Tensor;

/// How [`Tensor::cross_entropy_with`] counts. By default as [`Tensor::cross_entropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyOptions<'a> {
    /// The share of each target, from 0 to 1, that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// The target of rows that do not count: it need not be a class.
    pub ignore_index: Option<i64>,
    /// What each class counts: a tensor `[classes]` of the logits' type, to which no gradient flows. `None` is 1 for each.
    pub class_weights: Option<&'a Tensor>,
    /// What becomes of the rows' losses. The mean is over the weights of the targets that count.
    pub reduction: Reduction,
}

const OP: &str = "cross_entropy";

/// After logits and targets comes the tensor of weights, if there is one.
#[derive(Debug)]
struct WeightedCrossEntropy {
    smoothing: f64,
    ignored: Option<i64>,
    reduction: Reduction,
}

/// What the options say of the rows.
struct Rows {
    /// Targets that all are classes.
    targets: Tensor,
    /// Which rows count, unless all do.
    kept: Option<Tensor>,
    /// What each row counts.
    weights: Tensor,
}

impl Rows {
    /// The targets that are classes, and which rows have one.
    fn kept(ignored: Option<i64>, targets: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let Some(ignored) = ignored else { return Ok((targets.clone(), None)) };
        let kept = targets.ne(&constant_like(targets, ignored)?)?;
        let any_class = constant_like(targets, 0)?;
        Ok((kept.where_(targets, &any_class)?, Some(kept)))
    }

    /// The rows; `targets` were checked to be classes.
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

    /// A number for each row, or a row of them, but 0 for those that do not count: also where it is no number.
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
    /// Smoothing for each class.
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
                return Err(Error::ShapeMismatch { op: OP, lhs: *logits.shape(), rhs: *weights.shape() });
            }
        }
        let (dtype, logits) = (logits.dtype(), &logits.upcast()?);
        let class_weights = class_weights.map(Tensor::upcast).transpose()?;
        let kept = Rows::kept(self.ignored, targets)?;
        let mut losses = ctx.temp(targets.shape(), logits.dtype())?;
        ctx.compute(Kernel::CrossEntropy {
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
        loss.to_dtype(dtype)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let (logits, targets) = (&saved.tensor(0)?.upcast()?, saved.tensor(1)?);
        let class_weights = if saved.inputs() > 2 { Some(saved.tensor(2)?.upcast()?) } else { None };
        let grad = &grad.upcast()?;
        let rows = Rows::new(Rows::kept(self.ignored, targets)?, logits, class_weights.as_ref())?;
        let share = match self.reduction {
            Reduction::Mean => grad.div(&rows.weights.sum_all()?)?.broadcast_to(targets.shape())?,
            other => other.spread(grad, targets.shape())?,
        };
        let sharp = rows.only_kept(share.mul(&rows.weights)?.mul_scalar(1.0 - self.smoothing)?)?;
        let mut out = ctx.output(logits.shape(), logits.dtype())?;
        ctx.compute(Kernel::CrossEntropyGrad {
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
}

impl Tensor {
    /// [`Tensor::cross_entropy`] with options: smoothed labels, rows that do not count, weights of classes, and the losses
    /// themselves or their sum in place of the mean.
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
    /// Without a reduction the losses have the shape of the targets. No gradient flows to what is ignored, whatever it holds.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the smoothing is from 0 to 1; [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] for
    /// weights that are not `[classes]` of the logits' type; else as [`Tensor::cross_entropy`].
    pub fn cross_entropy_with(&self, targets: &Self, options: CrossEntropyOptions<'_>) -> Result<Self> {
        let smoothing = options.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            let got = smoothing.to_string();
            return Err(Error::BadArgument {
                op: OP,
                argument: "label_smoothing",
                expected: "from 0 to 1",
                got,
            });
        }
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
