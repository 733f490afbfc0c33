//! Conversion of the element type.

use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext, Summation};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// y = x, converted. Between floats ∂L/∂x is ∂L/∂y, converted back. No gradient flows through integers.
#[derive(Debug)]
struct Cast(DType);

impl Op for Cast {
    fn name(&self) -> &'static str {
        "to_dtype"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let mut out = ctx.output(inputs[0].shape(), self.0)?;
        ctx.compute(kernels::Copy { input: inputs[0].view(), out: out.view_mut() })?;
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.to_dtype(saved.input_dtype(0))?)])
    }

    fn passes_gradient(&self) -> bool {
        self.0.is_half()
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ELEMENTWISE
    }
}

/// # Convert the element type
impl Tensor {
    /// Converts the elements to `dtype`; returns the tensor itself if it already has that type.
    ///
    /// Floats become integers by truncation towards zero, and saturate. NaN becomes 0. Every element except 0 becomes
    /// true.
    ///
    /// ```
    /// use highwater::{DType, Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[-1.7f32, 0.0, 1e30], [3])?;
    /// assert_eq!(x.to_dtype(DType::I64)?.to_vec::<i64>()?, [-1, 0, i64::MAX]);
    /// assert_eq!(x.to_dtype(DType::Bool)?.to_vec::<bool>()?, [true, false, true]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    #[doc(alias("astype", "cast"))]
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() {
            return Ok(self.unchanged());
        }
        apply(Cast(dtype), &[self])
    }

    /// Upcasts 16-bit floats to the type that ops [compute with](DType::computed_as). Ops of several steps upcast
    /// before the first step and round after the last.
    pub(crate) fn upcast(&self) -> Result<Self> {
        self.to_dtype(self.dtype().computed_as())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn gradients_come_back_in_the_type_of_the_input() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::ones(&device, 2).unwrap().requiring_grad().unwrap();
        let y = x.to_dtype(DType::F64).unwrap().square().unwrap().sum_all().unwrap();
        let gradients = y.backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0]);
        assert!(!x.to_dtype(DType::I64).unwrap().requires_grad());
    }

    #[test]
    fn every_type_converts_to_every_other() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let zero_one = Tensor::arange(&device, 0, 2).unwrap();
        for from in DType::ALL {
            for to in DType::ALL {
                let converted = zero_one.to_dtype(from).unwrap().to_dtype(to).unwrap();
                assert_eq!(converted.dtype(), to);
                let back = converted.to_dtype(DType::I64).unwrap();
                assert_eq!(back.to_vec::<i64>().unwrap(), [0, 1], "{from} to {to}");
            }
        }
    }
}
