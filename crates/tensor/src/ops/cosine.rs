//! Cosine similarity: Σ xᵢyᵢ / (max(‖x‖, ε) max(‖y‖, ε)) along an axis.
//!
//! A composition of a product, a sum and two norms. Keeps both operands for backward, in f32 for 16-bit floats, and a few
//! tensors of the size of the result.

use super::random::check;
use super::vector_norm::Norm;
use super::{promote, supported};
use crate::error::Result;
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// # Similarity
impl Tensor {
    /// Cosine similarity with `other` along an axis, which vanishes: Σ xᵢyᵢ / (max(‖x‖, ε) max(‖y‖, ε)), as PyTorch's
    /// `cosine_similarity`. Between -1 and 1; ε (`epsilon`, 10⁻⁸ in PyTorch) prevents a division by 0.
    ///
    /// The operands broadcast, and `axis` is one of the broadcast shape. Operands of different types are promoted (see
    /// [`DType`]).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[3.0f32, 4.0, 1.0, 0.0], [2, 2])?;
    /// let y = Tensor::from_slice(&device, &[0.0f32, 2.0], [2])?;
    /// assert_eq!(x.cosine_similarity(&y, -1, 1e-8)?.to_vec::<f32>()?, [0.8, 0.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for shapes that do not broadcast;
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange);
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) unless the promoted type is a float;
    /// [`Error::BadArgument`](crate::Error::BadArgument) unless `epsilon` is finite and not negative;
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn cosine_similarity(&self, other: &Self, axis: isize, epsilon: f64) -> Result<Self> {
        let op = "cosine_similarity";
        let shape = Shape::broadcast(op, self.shape(), other.shape())?;
        let axis = shape.axis(op, axis)? as isize;
        let dtype = promote(self.dtype(), other.dtype());
        supported(op, dtype, DType::is_float)?;
        check(op, "epsilon", "finite and not negative", epsilon, |e| e.is_finite() && e >= 0.0)?;
        let operand = |x: &Self| x.to_dtype(dtype.computed_as())?.broadcast_to(shape);
        let (x, y) = (operand(self)?, operand(other)?);
        let length = |x: &Self| x.norm(Norm::L2, axis)?.clamp(epsilon, f64::INFINITY);
        x.mul(&y)?.sum(axis)?.div(&length(&x)?.mul(&length(&y)?)?)?.to_dtype(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn similarities_are_cosines_and_zero_has_none() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::from_slice(&device, &[1.0f32, 0.0, 2.0, 0.0, -1.0, 2.0], [2, 3]).unwrap();
        let y = Tensor::from_slice(&device, &[1.0f64, 1.0], [2, 1]).unwrap();
        // Columns (1, 0), (0, -1) and (2, 2) with (1, 1), in f64.
        let found = x.cosine_similarity(&y, 0, 1e-8).unwrap().to_vec::<f64>().unwrap();
        let half = 0.5f64.sqrt();
        let apart = found.iter().zip([half, -half, 1.0]).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f64::max) < 1e-15, "{found:?}");

        let zero = Tensor::zeros(&device, [2]).unwrap().requiring_grad().unwrap();
        let similarity = zero.cosine_similarity(&Tensor::ones(&device, [2]).unwrap(), 0, 1e-8).unwrap();
        assert_eq!(similarity.item::<f32>().unwrap(), 0.0);
        let gradient = similarity.backward().unwrap().get(&zero).unwrap().to_vec::<f32>().unwrap();
        assert!(gradient.iter().all(|slope| slope.is_finite()), "{gradient:?}");

        // The squares exceed f16.
        let large = Tensor::full(&device, [4], 300.0).unwrap().to_dtype(DType::F16).unwrap();
        let same = large.cosine_similarity(&large, 0, 1e-8).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(same.item::<f32>().unwrap(), 1.0);
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let ones = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        let x = ones(&[2, 3]);
        assert!(
            message(x.cosine_similarity(&ones(&[2]), 0, 0.0)).starts_with("cosine_similarity: shapes [2, 3]")
        );
        assert!(message(x.cosine_similarity(&x, 2, 0.0)).starts_with("cosine_similarity: axis 2"));
        for epsilon in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(
                message(x.cosine_similarity(&x, 0, epsilon)),
                format!("cosine_similarity: epsilon must be finite and not negative, got {epsilon}")
            );
        }
        let whole = Tensor::arange(&device, 0, 3).unwrap();
        assert!(
            message(whole.cosine_similarity(&whole, 0, 0.0)).contains("does not support element type i64")
        );
    }
}
