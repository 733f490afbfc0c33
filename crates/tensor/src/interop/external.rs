//! Tensors over external memory.

use bfc_core::{Category, Tag};

use crate::device::Device;
use crate::device::external::ExternalMemory;
use crate::error::{DlpackError, Error, Result};
use crate::layout::{IntoShape, Layout};
use crate::shape::{DType, Element};
use crate::storage::TensorStorage;
use crate::tensor::Tensor;

/// # Use external memory
impl Tensor {
    /// Returns a tensor over the elements of `owner`, such as a `Vec`, an `Arc<[T]>`, a `&'static [T]` or a
    /// memory-mapped file. The elements are neither copied nor written. The owner is dropped with the last
    /// tensor that refers to it. The memory counts as input, in [external memory](Device::external_memory).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_owner(&device, vec![1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// assert_eq!(x.sum_all()?.item::<f32>()?, 10.0);
    /// assert_eq!(device.external_memory().bytes_in_use, 16);
    /// drop(x);
    /// assert_eq!(device.external_memory().bytes_in_use, 0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the shape has another number of elements; [`Error::Dlpack`] on a device
    /// that does not compute on host memory.
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
        let memory = ExternalMemory::of_owner(owner);
        let elements = memory.bytes() / dtype.size();
        if shape.checked_elements() != Some(elements) {
            return Err(Error::ElementCount { op: OP, elements, shape });
        }
        let layout = Layout::contiguous(OP, shape, dtype)?;
        Self::external(OP, device, memory, layout, dtype, Category::Input)
    }

    /// Returns a tensor over external memory. The op owns it with this category in the device's account of
    /// external memory.
    pub(crate) fn external(
        op: &'static str,
        device: &Device,
        memory: ExternalMemory,
        layout: Layout,
        dtype: DType,
        category: Category,
    ) -> Result<Self> {
        let tag = Tag { owner: device.tracker().owner_here(op), category };
        let shape = *layout.shape();
        let storage = TensorStorage::external(device, memory, dtype, tag)
            .map_err(|error| Error::Allocation { op, shape, dtype, error })?;
        Ok(Self::new_in(storage, layout, device.clone()))
    }
}
