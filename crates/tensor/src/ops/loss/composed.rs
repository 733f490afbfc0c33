//! Losses that compose other ops, in f32 for 16-bit floats.
//!
//! | op | loss of a row |
//! |---|---|
//! | `cosine_embedding_loss` | 1 - c for alike pairs, max(c - margin, 0) for others, with the cosine similarity c |
//! | `triplet_margin_loss` | max(‖a - p + ε‖ - ‖a - n + ε‖ + margin, 0), with ε = 10⁻⁶ |
//!
//! (Hadsell, Chopra and LeCun 2006; Schroff, Kalenichenko and Philbin 2015.)

use super::reduction::Reduction;
use crate::error::{Error, Result, ShapeRule};
use crate::ops::create::constant_like;
use crate::ops::random::check;
use crate::ops::vector_norm::Norm;
use crate::ops::{promote, supported};
use crate::shape::DType;
use crate::tensor::Tensor;

/// max(x, 0) with the derivative 1 at 0, as PyTorch's `clamp_min`, so that pairs exactly at the margin learn.
fn positive_part(x: &Tensor) -> Result<Tensor> {
    x.lt(0)?.where_(&constant_like(x, 0)?, x)
}

/// # Loss functions of embeddings
///
/// Each loss is a mean. Its variant that ends in `_with` takes a [`Reduction`].
impl Tensor {
    /// Cosine embedding loss: pulls alike embeddings together and pushes others apart. Rows whose `alike` is above 0 have the
    /// loss 1 - c for their cosine similarity c, others max(c - `margin`, 0).
    ///
    /// Shapes: both embeddings `[.., n, width]`, `alike` `[.., n]` of any number type.
    ///
    /// For PyTorch's targets 1 and -1 the loss is PyTorch's, also for embeddings of length 0 up to rounding: c has lengths of
    /// at least 10⁻⁸, where PyTorch adds 10⁻¹² to their squares. PyTorch ignores rows with other targets.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 0.0, 0.0, 2.0], [2, 2])?;
    /// let y = Tensor::from_slice(&device, &[0.0f32, 3.0, 0.0, 1.0], [2, 2])?;
    /// let alike = Tensor::from_slice(&device, &[1i64, -1], [2])?;
    /// // An alike pair at a right angle, and an unlike pair in one direction.
    /// assert_eq!(x.cosine_embedding_loss(&y, &alike, 0.5)?.item::<f32>()?, 0.75);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless there is one target per pair; [`Error::BadArgument`] unless `margin` is between -1 and 1;
    /// otherwise as [`cosine_similarity`](Self::cosine_similarity).
    pub fn cosine_embedding_loss(&self, other: &Self, alike: &Self, margin: f64) -> Result<Self> {
        self.cosine_embedding_loss_with(other, alike, margin, Reduction::Mean)
    }

    /// Cosine embedding loss with another reduction. See [`Tensor::cosine_embedding_loss`].
    ///
    /// # Errors
    /// See [`Tensor::cosine_embedding_loss`].
    pub fn cosine_embedding_loss_with(
        &self,
        other: &Self,
        alike: &Self,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Self> {
        let (op, dtype) = ("cosine_embedding_loss", promote(self.dtype(), other.dtype()));
        check(op, "margin", "between -1 and 1", margin, |margin| (-1.0..=1.0).contains(&margin))?;
        supported(op, dtype, DType::is_float)?;
        let similarity = self.upcast()?.cosine_similarity(&other.upcast()?, -1, 1e-8)?;
        if alike.shape() != similarity.shape() {
            let rule = &ShapeRule::Other("there must be one target per pair of embeddings");
            return Err(Error::ShapeMismatch { op, lhs: *similarity.shape(), rhs: *alike.shape(), rule });
        }
        let of_alike = similarity.neg()?.add_scalar(1.0)?;
        let of_others = positive_part(&similarity.sub_scalar(margin)?)?;
        reduction.fold(alike.gt(0)?.where_(&of_alike, &of_others)?)?.to_dtype(reduction.dtype(dtype))
    }

    /// Triplet margin loss: pulls each anchor (`self`) towards its positive and pushes it from its negative, until the
    /// distances differ by `margin`. The loss of a row is max(‖a - p + ε‖ - ‖a - n + ε‖ + margin, 0), with ε = 10⁻⁶ as in PyTorch.
    ///
    /// Shapes: all three `[.., width]`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let anchor = Tensor::zeros(&device, [1, 2])?;
    /// let positive = Tensor::from_slice(&device, &[3.0f32, 4.0], [1, 2])?;
    /// let negative = Tensor::from_slice(&device, &[0.0f32, 2.0], [1, 2])?;
    /// let loss = anchor.triplet_margin_loss(&positive, &negative, 1.0)?.item::<f32>()?;
    /// assert!((loss - 4.0).abs() < 1e-5); // 5 - 2 + 1
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for different shapes; [`Error::AxisOutOfRange`] for scalars; [`Error::BadArgument`] unless
    /// `margin` is finite and above 0; [`Error::UnsupportedDType`] unless the elements are floats; [`Error::Allocation`] if
    /// there is no memory.
    pub fn triplet_margin_loss(&self, positive: &Self, negative: &Self, margin: f64) -> Result<Self> {
        self.triplet_margin_loss_with(positive, negative, margin, Reduction::Mean)
    }

    /// Triplet margin loss with another reduction. See [`Tensor::triplet_margin_loss`].
    ///
    /// # Errors
    /// See [`Tensor::triplet_margin_loss`].
    pub fn triplet_margin_loss_with(
        &self,
        positive: &Self,
        negative: &Self,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Self> {
        let op = "triplet_margin_loss";
        check(op, "margin", "finite and above 0", margin, |margin| margin.is_finite() && margin > 0.0)?;
        let mut dtype = self.dtype();
        for other in [positive, negative] {
            dtype = promote(dtype, other.dtype());
            if other.shape() != self.shape() {
                let (lhs, rhs) = (*self.shape(), *other.shape());
                return Err(Error::ShapeMismatch { op, lhs, rhs, rule: &ShapeRule::Same });
            }
        }
        supported(op, dtype, DType::is_float)?;
        let wide = dtype.computed_as();
        let anchor = self.to_dtype(wide)?;
        let distance =
            |other: &Self| anchor.sub(&other.to_dtype(wide)?)?.add_scalar(1e-6)?.norm(Norm::L2, -1);
        let difference = distance(positive)?.sub(&distance(negative)?)?;
        reduction.fold(positive_part(&difference.add_scalar(margin)?)?)?.to_dtype(reduction.dtype(dtype))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn pairs_at_the_margin_have_a_gradient() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let row = |x: f32, y: f32| Tensor::from_slice(&device, &[x, y], [1, 2]).unwrap();
        let x = row(2.0, 0.0).requiring_grad().unwrap();
        let alike = Tensor::from_slice(&device, &[-1i64], [1]).unwrap();
        let loss = x.cosine_embedding_loss(&row(0.0, 3.0), &alike, 0.0).unwrap();
        assert_eq!(loss.item::<f32>().unwrap(), 0.0);
        // The cosine is y / |x| near y = 0.
        let gradient = loss.backward().unwrap().take(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(gradient, [0.0, 0.5]);
        let nan = row(f32::NAN, 0.0).cosine_embedding_loss(&row(0.0, 3.0), &alike, 0.0).unwrap();
        assert!(nan.item::<f32>().unwrap().is_nan());
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let ones = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        let x = ones(&[2, 3]);
        assert_eq!(
            message(x.cosine_embedding_loss(&x, &x, 0.0)),
            "cosine_embedding_loss: shapes [2] and [2, 3] do not match: there must be one target per pair of embeddings"
        );
        assert_eq!(
            message(x.cosine_embedding_loss(&x, &ones(&[2]), 1.5)),
            "cosine_embedding_loss: margin must be between -1 and 1, got 1.5"
        );
        assert_eq!(
            message(x.triplet_margin_loss(&x, &ones(&[2, 2]), 1.0)),
            "triplet_margin_loss: shapes [2, 3] and [2, 2] do not match: they must be equal"
        );
        assert_eq!(
            message(x.triplet_margin_loss(&x, &x, f64::NAN)),
            "triplet_margin_loss: margin must be finite and above 0, got NaN"
        );
        let whole = Tensor::arange(&device, 0, 3).unwrap();
        assert!(
            message(whole.triplet_margin_loss(&whole, &whole, 1.0))
                .contains("does not support element type i64")
        );
    }
}
