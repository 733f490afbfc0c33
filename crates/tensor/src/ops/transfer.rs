//! Copies between devices.

use bfc_core::Category;

use super::create::{TensorOptions, create};
use crate::autograd::apply;
use crate::backend::check;
use crate::device::Device;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

/// y = x on another device. ∂L/∂x is ∂L/∂y, copied back.
#[derive(Debug)]
struct ToDevice {
    from: Device,
    to: Device,
}

impl Op for ToDevice {
    fn name(&self) -> &'static str {
        "to_device"
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        copy(self.name(), inputs[0], &self.to, Category::Output)
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(copy(self.name(), &grad, &self.from, Category::Gradient)?)])
    }
}

/// Copies a tensor through host memory.
fn copy(op: &'static str, tensor: &Tensor, to: &Device, category: Category) -> Result<Tensor> {
    let options = TensorOptions { dtype: tensor.dtype(), category, ..TensorOptions::default() };
    create(op, to, tensor.shape(), options, |ctx, out| {
        let bytes = tensor.elements() * tensor.dtype().size();
        if ctx.backend().is_dry() {
            ctx.backend().simulate_upload(bytes);
            return Ok(());
        }
        // Uses whole words, so that the bytes are aligned for every element type.
        let mut words = tensor.allocate_host_copy::<u64>(op, bytes.div_ceil(size_of::<u64>()))?;
        let values = &mut bytemuck::cast_slice_mut(&mut words)[..bytes];
        check::download(tensor.device().as_ref(), op, tensor.view(), values)?;
        Ok(check::upload(ctx.device().as_ref(), op, values, out)?)
    })
}

/// # Copy to another device
impl Tensor {
    /// Copies this tensor to `device`; returns the tensor itself if it is already there.
    ///
    /// From a real device to a dry one, the op allocates memory and copies nothing.
    ///
    /// # Errors
    /// [`Error::NoData`](crate::Error::NoData) from a dry device to a real one;
    /// [`Error::Allocation`](crate::Error::Allocation) if there is no memory.
    #[doc(alias("to", "cuda"))]
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if self.device() == device {
            return Ok(self.unchanged());
        }
        apply(ToDevice { from: self.device().clone(), to: device.clone() }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Runtime;
    use crate::error::Error;
    use crate::tensor::Tensor;

    #[test]
    fn values_and_gradients_travel_between_devices() {
        let (here, there) = (
            Runtime::builder().threads(1).build().unwrap().cpu().unwrap(),
            Runtime::builder().threads(1).build().unwrap().cpu().unwrap(),
        );
        let x = Tensor::from_slice(&here, &[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let x = x.requiring_grad().unwrap();
        let y = x.t().unwrap().to_device(&there).unwrap();
        assert_eq!((y.device(), y.to_vec::<f32>().unwrap()), (&there, vec![1.0, 3.0, 2.0, 4.0]));
        let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
        let gradient = gradients.get(&x).unwrap();
        assert_eq!((gradient.device(), gradient.to_vec::<f32>().unwrap()), (&here, vec![2.0, 4.0, 6.0, 8.0]));
    }

    #[test]
    fn a_dry_device_allocates_memory_and_has_no_data() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let (cpu, dry) = (runtime.cpu().unwrap(), runtime.dry().unwrap());
        let x = Tensor::ones(&cpu, [3, 5]).unwrap();
        let moved = x.to_device(&dry).unwrap();
        assert_eq!((moved.dims(), moved.device()), (x.dims(), &dry));
        assert!(matches!(moved.to_device(&cpu), Err(Error::NoData { op: "to_device", .. })));
        assert!(x.to_device(&cpu).unwrap().shares_buffer_with(&x));
    }
}
