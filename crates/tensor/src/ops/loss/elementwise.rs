//! Losses of one prediction x and one target t per element.
//!
//! | op | loss | slope by x | slope by t |
//! |---|---|---|---|
//! | `l1_loss` | \|x - t\| | sign(x - t) | -sign(x - t) |
//! | `huber_loss` | d²/2 up to \|d\| = δ, then δ (\|d\| - δ/2), with d = x - t | d, at most δ | -d, at most δ |
//! | `bce_with_logits` | -t ln σ(x) - (1 - t) ln(1 - σ(x)) | σ(x) - t | -x |
//! | `kl_div` | t (ln t - x), 0 for t = 0 | -t | ln t + 1 - x |
//! | `poisson_nll_loss` | eˣ - t x | eˣ - t | -x |
//!
//! (Huber 1964; Kullback and Leibler 1951.) Saves x and t. Forward and backward allocate a few temporaries of their
//! size, in f32 for 16-bit floats.

use super::reduction::Reduction;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::ops::create::constant_like;
use crate::ops::{apply_promoted, if_needed, same_dtype, supported};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// The loss function.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Absolute,
    Huber { delta: f64 },
    BinaryCrossEntropy,
    KullbackLeibler,
    Poisson,
}

impl Kind {
    /// Computes the loss of each element.
    fn losses(self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        match self {
            Self::Absolute => x.sub(target)?.abs(),
            Self::Huber { delta } => {
                // With c = min(|d|, δ), both branches equal c (|d| - c/2).
                let distance = x.sub(target)?.abs()?;
                let inner = distance.clamp(0.0, delta)?;
                distance.sub(&inner.mul_scalar(0.5)?)?.mul(&inner)
            }
            Self::BinaryCrossEntropy => {
                // ln σ(x) would be -∞ where σ rounds to 0. (1 - t) x + ln(1 + e⁻ˣ) is the same sum without overflow.
                let certain = target.neg()?.add_scalar(1.0)?.mul(x)?;
                x.neg()?.softplus()?.add(&certain)
            }
            Self::KullbackLeibler => {
                let losses = target.log()?.sub(x)?.mul(target)?;
                let zero = constant_like(x, 0)?;
                target.eq(&zero)?.where_(&zero, &losses)
            }
            Self::Poisson => x.exp()?.sub(&x.mul(target)?),
        }
    }

    /// Computes the derivative of each element's loss by x.
    fn slope(self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        match self {
            Self::Absolute => x.sub(target)?.sign(),
            Self::Huber { delta } => x.sub(target)?.clamp(-delta, delta),
            Self::BinaryCrossEntropy => x.sigmoid()?.sub(target),
            Self::KullbackLeibler => target.neg(),
            Self::Poisson => x.exp()?.sub(target),
        }
    }

    /// Computes the derivative of each element's loss by the target.
    fn target_slope(self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        match self {
            Self::Absolute | Self::Huber { .. } => self.slope(target, x),
            Self::BinaryCrossEntropy | Self::Poisson => x.neg(),
            Self::KullbackLeibler => target.log()?.add_scalar(1.0)?.sub(x),
        }
    }
}

#[derive(Debug)]
struct ElementLoss {
    op: &'static str,
    kind: Kind,
    reduction: Reduction,
}

impl Op for ElementLoss {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let [x, target] = [inputs[0], inputs[1]];
        same_dtype(self.op, x, target)?;
        supported(self.op, x.dtype(), DType::is_float)?;
        if x.shape() != target.shape() {
            return Err(Error::ShapeMismatch {
                op: self.op,
                lhs: *x.shape(),
                rhs: *target.shape(),
                rule: &ShapeRule::Same,
            });
        }
        let losses = self.kind.losses(&x.upcast()?, &target.upcast()?)?;
        let loss = self.reduction.fold(losses)?.to_dtype(self.reduction.dtype(x.dtype()))?;
        ctx.save(x);
        ctx.save(target);
        Ok(loss)
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (x, target) = (&saved.tensor(0)?.upcast()?, &saved.tensor(1)?.upcast()?);
        let share = self.reduction.spread(&grad.upcast()?, x.shape())?;
        let rounded = |slope: Tensor| slope.mul(&share)?.to_dtype(saved.input_dtype(0));
        let to_x = if_needed(saved, 0, || rounded(self.kind.slope(x, target)?))?;
        let to_target = if_needed(saved, 1, || rounded(self.kind.target_slope(x, target)?))?;
        Ok(vec![to_x, to_target])
    }

    fn summation(&self, inputs: &[Shape]) -> Summation {
        self.reduction.summation(inputs.last().map_or(1, Shape::elements))
    }
}

/// # Elementwise loss functions
///
/// Each loss is a mean. Its variant that ends in `_with` takes a [`Reduction`].
impl Tensor {
    fn element_loss(
        &self,
        op: &'static str,
        target: &Self,
        kind: Kind,
        reduction: Reduction,
    ) -> Result<Self> {
        apply_promoted(ElementLoss { op, kind, reduction }, self, target)
    }

    /// L1 loss: the mean of the absolute differences from `target`, which has the same shape. The gradient is 0 where
    /// the difference is 0.
    ///
    /// ```
    /// use highwater::{Device, Reduction, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], [2])?;
    /// let target = Tensor::from_slice(&device, &[2.0f32, 2.0], [2])?;
    /// assert_eq!(x.l1_loss(&target)?.item::<f32>()?, 2.0);
    /// assert_eq!(x.l1_loss_with(&target, Reduction::None)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for different shapes, [`Error::UnsupportedDType`] unless the promoted type is a float,
    /// [`Error::Allocation`] if there is no memory.
    pub fn l1_loss(&self, target: &Self) -> Result<Self> {
        self.l1_loss_with(target, Reduction::Mean)
    }

    /// L1 loss with another reduction. See [`Tensor::l1_loss`].
    ///
    /// # Errors
    /// See [`Tensor::l1_loss`].
    pub fn l1_loss_with(&self, target: &Self, reduction: Reduction) -> Result<Self> {
        self.element_loss("l1_loss", target, Kind::Absolute, reduction)
    }

    /// Huber loss with the difference d from `target`: the mean of d²/2 up to |d| = `delta`, and of `delta`
    /// (|d| - `delta`/2) above. It limits the weight of outliers.
    ///
    /// ```
    /// use highwater::{Device, Reduction, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[0.5f32, 3.0], [2])?;
    /// let loss = x.huber_loss_with(&x.zeros_like()?, 1.0, Reduction::None)?;
    /// assert_eq!(loss.to_vec::<f32>()?, [0.125, 2.5]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless `delta` is above 0; otherwise see [`Tensor::l1_loss`].
    #[doc(alias("smooth_l1_loss"))]
    pub fn huber_loss(&self, target: &Self, delta: f64) -> Result<Self> {
        self.huber_loss_with(target, delta, Reduction::Mean)
    }

    /// Huber loss with another reduction. See [`Tensor::huber_loss`].
    ///
    /// # Errors
    /// See [`Tensor::huber_loss`].
    pub fn huber_loss_with(&self, target: &Self, delta: f64, reduction: Reduction) -> Result<Self> {
        let op = "huber_loss";
        if delta > 0.0 {
            return self.element_loss(op, target, Kind::Huber { delta }, reduction);
        }
        Err(Error::BadArgument { op, argument: "delta", expected: "above 0", got: delta.to_string() })
    }

    /// Binary cross-entropy of logits with target probabilities: the mean over the elements. Finite for every finite
    /// logit.
    ///
    /// ```
    /// use highwater::{Device, Reduction, Tensor};
    /// let device = Device::cpu()?;
    /// let logits = Tensor::from_slice(&device, &[0.0f32, 1000.0], [2])?;
    /// let target = Tensor::from_slice(&device, &[1.0f32, 0.0], [2])?;
    /// let losses = logits.bce_with_logits_with(&target, Reduction::None)?;
    /// assert_eq!(losses.to_vec::<f32>()?, [2f32.ln(), 1000.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::l1_loss`].
    #[doc(alias("binary_cross_entropy_with_logits"))]
    pub fn bce_with_logits(&self, target: &Self) -> Result<Self> {
        self.bce_with_logits_with(target, Reduction::Mean)
    }

    /// Binary cross-entropy of logits with another reduction. See [`Tensor::bce_with_logits`].
    ///
    /// # Errors
    /// See [`Tensor::bce_with_logits`].
    pub fn bce_with_logits_with(&self, target: &Self, reduction: Reduction) -> Result<Self> {
        self.element_loss("bce_with_logits", target, Kind::BinaryCrossEntropy, reduction)
    }

    /// Kullback-Leibler divergence: the mean of the terms t (ln t - x) for target probabilities t and log-probabilities x
    /// (`self`).
    ///
    /// The divergence is the sum over a distribution. For the rows of a batch, use [`Tensor::kl_div_with`] and
    /// [`Reduction::Sum`], and divide by the number of rows, which PyTorch calls "batchmean".
    ///
    /// ```
    /// use highwater::{Device, Reduction, Tensor};
    /// let device = Device::cpu()?;
    /// let even = Tensor::full(&device, [2], 0.5)?;
    /// let sure = Tensor::from_slice(&device, &[1.0f32, 0.0], [2])?;
    /// let divergence = even.log()?.kl_div_with(&sure, Reduction::Sum)?;
    /// assert_eq!(divergence.item::<f32>()?, 2f32.ln());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::l1_loss`].
    pub fn kl_div(&self, target: &Self) -> Result<Self> {
        self.kl_div_with(target, Reduction::Mean)
    }

    /// Kullback-Leibler divergence with another reduction. See [`Tensor::kl_div`].
    ///
    /// # Errors
    /// See [`Tensor::kl_div`].
    pub fn kl_div_with(&self, target: &Self, reduction: Reduction) -> Result<Self> {
        self.element_loss("kl_div", target, Kind::KullbackLeibler, reduction)
    }

    /// Negative log-likelihood of counts t (`target`) with a Poisson distribution: the mean of eˣ - t x for the logarithms x
    /// (`self`) of the expected counts. As PyTorch's default, it leaves out the term ln t!, which has no gradient to x.
    ///
    /// ```
    /// use highwater::{Device, Reduction, Tensor};
    /// let device = Device::cpu()?;
    /// let expected = Tensor::from_slice(&device, &[1.0f32, 4.0], [2])?;
    /// let counts = Tensor::from_slice(&device, &[0.0f32, 4.0], [2])?;
    /// let losses = expected.log()?.poisson_nll_loss_with(&counts, Reduction::None)?.to_vec::<f32>()?;
    /// assert!((losses[0] - 1.0).abs() < 1e-5 && (losses[1] - (4.0 - 4.0 * 4f32.ln())).abs() < 1e-5);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::l1_loss`].
    pub fn poisson_nll_loss(&self, target: &Self) -> Result<Self> {
        self.poisson_nll_loss_with(target, Reduction::Mean)
    }

    /// Negative log-likelihood of counts with another reduction. See [`Tensor::poisson_nll_loss`].
    ///
    /// # Errors
    /// See [`Tensor::l1_loss`].
    pub fn poisson_nll_loss_with(&self, target: &Self, reduction: Reduction) -> Result<Self> {
        self.element_loss("poisson_nll_loss", target, Kind::Poisson, reduction)
    }
}
