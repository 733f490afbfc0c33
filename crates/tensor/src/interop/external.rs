//! Tensors over memory that other code owns.

use bfc_core::{Category, Tag};

use crate::device::Device;
use crate::device::external::Lent;
use crate::error::{DlpackError, Error, Result};
use crate::layout::{IntoShape, Layout};
use crate::shape::{DType, Element};
use crate::storage::Storage;
use crate::tensor::Tensor;

/// # Use external memory
impl Tensor {
    /// A tensor over the elements that `owner` has: a `Vec`, an `Arc<[T]>`, a `&'static [T]` or a file mapped into memory. They
    /// are not copied, and never written; the owner is dropped with the last tensor that looks into them. The memory
    /// counts as input, from [outside](Device::outside_memory).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_owner(&device, vec![1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// assert_eq!(x.sum_all()?.item::<f32>()?, 10.0);
    /// assert_eq!(device.outside_memory().bytes_in_use, 16);
    /// drop(x);
    /// assert_eq!(device.outside_memory().bytes_in_use, 0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the shape has not as many elements; [`Error::Dlpack`] on a device whose memory is not the
    /// host's.
    pub fn from_owner<T: Element>(
        device: &Device,
        owner: impl AsRef<[T]> + Send + 'static,
        shape: impl IntoShape,
    ) -> Result<Self> {
        const OP: &str = "from_owner";
        if !device.reads_host_memory() {
            return Err(DlpackError::NotHostDevice { device: device.to_string() }.into());
        }
        let (shape, dtype) = (shape.into_shape().map_err(|error| error.in_op(OP))?, T::DTYPE);
        let lent = Lent::of_owner(owner);
        let elements = lent.bytes() / dtype.size();
        if shape.checked_elements() != Some(elements) {
            return Err(Error::ElementCount { op: OP, elements, shape });
        }
        let layout = Layout::contiguous(OP, shape, dtype)?;
        Self::outside(OP, device, lent, layout, dtype)
    }

    /// A tensor over memory of others, charged as input to the op in the device's account of such memory.
    pub(crate) fn outside(
        op: &'static str,
        device: &Device,
        lent: Lent,
        layout: Layout,
        dtype: DType,
    ) -> Result<Self> {
        let tag = Tag { owner: device.tracker().owner_here(op), category: Category::Input };
        let shape = *layout.shape();
        let storage = Storage::outside(device, lent, dtype, tag).map_err(|error| Error::Allocation {
            op,
            shape,
            dtype,
            error,
        })?;
        Ok(Self::new_in(storage, layout, device.clone()))
    }
}
