//! Softmax and its logarithm along an axis.
//!
//! - y = eˣ / Σ eˣ, ∂L/∂x = y (g - Σ g y), with g = ∂L/∂y; or y = x - ln Σ eˣ, ∂L/∂x = g - eʸ Σ g.
//! - The op subtracts the largest element first, so nothing overflows. The shape does not change.
//! - It allocates one output and saves it. Views move another axis to the end and back.

use super::supported;
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::shape::DType;
use crate::tensor::Tensor;

/// Softmax along the last axis of a tensor with at least one axis.
#[derive(Debug)]
struct Softmax {
    log: bool,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        supported(ctx.op(), x.dtype(), DType::is_float)?;
        let mut out = ctx.output_saved(x.shape(), x.dtype())?;
        ctx.compute(kernels::SoftmaxRows { log: self.log, input: x.view(), out: out.view_mut() })?;
        let y = out.finish();
        ctx.save(&y);
        Ok(y)
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut out = ctx.gradient(0, grad.shape(), grad.dtype())?;
        let y = saved.tensor(0)?.view();
        ctx.compute(kernels::SoftmaxRowsGrad {
            log: self.log,
            output: y,
            grad: grad.view(),
            out: out.view_mut(),
        })?;
        Ok(vec![Some(out.finish())])
    }
}

/// # Softmax
impl Tensor {
    /// Softmax eˣ / Σ eˣ along an axis: positive values that add up to 1.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[0.0f32, 3f32.ln()], [2])?;
    /// let y = x.softmax(-1)?.to_vec::<f32>()?;
    /// assert!((y[0] - 0.25).abs() < 1e-6 && (y[1] - 0.75).abs() < 1e-6);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange),
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) unless the elements are floats,
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    pub fn softmax(&self, axis: isize) -> Result<Self> {
        self.softmax_along(Softmax { log: false }, axis)
    }

    /// Log-softmax x - ln Σ eˣ along an axis: the logarithm of [`softmax`](Self::softmax), accurate also where that is
    /// nearly 0.
    ///
    /// # Errors
    /// See [`Tensor::softmax`].
    pub fn log_softmax(&self, axis: isize) -> Result<Self> {
        self.softmax_along(Softmax { log: true }, axis)
    }

    fn softmax_along(&self, op: Softmax, axis: isize) -> Result<Self> {
        let axis = self.shape().axis(op.name(), axis)? as isize;
        if axis + 1 == self.rank() as isize {
            return apply(op, &[self]);
        }
        apply(op, &[&self.transpose(axis, -1)?])?.transpose(axis, -1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn large_numbers_do_not_overflow() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::from_slice(&device, &[1000.0f32, 1000.0, -1000.0], 3).unwrap();
        assert_eq!(x.softmax(0).unwrap().to_vec::<f32>().unwrap(), [0.5, 0.5, 0.0]);
        let half = 0.5f32.ln();
        assert_eq!(x.log_softmax(0).unwrap().to_vec::<f32>().unwrap(), [half, half, half - 2000.0]);
    }

    #[test]
    fn every_axis_adds_up_to_one() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::normal(&device, [3, 4, 5], 0.0, 2.0, &crate::Rng::new(1)).unwrap();
        for axis in -3..3 {
            let sums = x.softmax(axis).unwrap().sum(axis).unwrap().to_vec::<f32>().unwrap();
            assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-6), "axis {axis}: {sums:?}");
        }
    }
}
