//! The tensor: a shared buffer, a layout and a gradient edge.

mod display;
pub(crate) mod edge;
pub(crate) mod inner;
mod rng;
pub(crate) mod tape;

use std::ptr;
use std::sync::Arc;

use bfc_core::Category;

use self::edge::GradEdge;
use self::inner::TensorInner;
pub use self::rng::Rng;
pub use self::tape::is_replaying;
use crate::backend::check;
use crate::device::Device;
use crate::device::DryRead;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::{DType, Element, Shape};
use crate::storage::leaf::LeafId;
use crate::storage::{Storage, TensorStorage, View, ViewMut};

/// A tensor: a multi-dimensional array of elements on a device, with automatic differentiation.
///
/// # First steps
///
/// Create tensors, compute, compute gradients, and read values back:
///
/// ```
/// use highwater::{Device, Tensor};
///
/// let device = Device::cpu()?; // `Device::best()` prefers a GPU
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let w = Tensor::ones(&device, [2, 1])?.requiring_grad()?;
///
/// let y = x.matmul(&w)?; // shape [2, 1]
/// let loss = (&y * 0.5)?.square()?.mean_all()?;
/// let gradients = loss.backward()?;
///
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 7.0]);
/// assert_eq!(loss.item::<f32>()?, 7.25);
/// assert_eq!(gradients.get(&w).unwrap().dims(), [2, 1]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// - Every op that allocates returns a [`Result`]: a tensor that does not fit into memory is an error, not a panic.
/// - [`Tensor::zeros`], [`ones`](Self::ones), [`from_slice`](Self::from_slice), [`arange`](Self::arange) and
///   [`normal`](Self::normal) create tensors. [`to_vec`](Self::to_vec) and [`item`](Self::item) read them.
/// - Operands broadcast as in NumPy. Different element types are promoted (see [`DType`]).
/// - Axes are given as one number, an array, a slice or a vector. Negative axes count from the back.
/// - [`requiring_grad`](Self::requiring_grad) marks a tensor for gradients, and [`backward`](Self::backward) returns
///   them.
///
/// # Memory
///
/// Cloning is cheap: clones and views share one buffer. The allocator gets the buffer back when the last of them is
/// dropped. Ops never write to a shared buffer, so threads can share tensors freely.
#[derive(Clone)]
pub struct Tensor {
    inner: Arc<TensorInner>,
    /// The destination of gradients. Clones do not share it, so that an op can save a tensor without its
    /// gradient edge.
    grad: Option<GradEdge>,
}

/// # Inspect and read
impl Tensor {
    /// Returns a tensor that owns its buffer, without a gradient edge.
    pub(crate) fn new_in(storage: TensorStorage, layout: Layout, device: Device) -> Self {
        Self::from_inner(TensorInner::new(storage, layout, device))
    }

    /// Returns a tensor without a gradient edge.
    pub(crate) const fn from_inner(inner: Arc<TensorInner>) -> Self {
        Self { inner, grad: None }
    }

    /// Returns the shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.layout().shape()
    }

    /// Returns the axis sizes.
    #[must_use]
    #[doc(alias("size", "sizes"))]
    pub fn dims(&self) -> &[usize] {
        self.layout().shape().dims()
    }

    /// Returns the sizes of a tensor with two axes.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::zeros(&Device::cpu()?, [64, 784])?;
    /// let (rows, columns) = x.dims2()?;
    /// assert_eq!((rows, columns), (64, 784));
    /// assert_eq!(x.dims3().unwrap_err().to_string(), "dims3: expected three axes, got shape [64, 784]");
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for another number of axes.
    pub fn dims2(&self) -> Result<(usize, usize)> {
        self.exact_dims("dims2", "two axes").map(|[a, b]| (a, b))
    }

    /// Returns the sizes of a tensor with three axes.
    ///
    /// # Errors
    /// [`Error::BadRank`] for another number of axes.
    pub fn dims3(&self) -> Result<(usize, usize, usize)> {
        self.exact_dims("dims3", "three axes").map(|[a, b, c]| (a, b, c))
    }

    /// Returns the sizes of a tensor with four axes.
    ///
    /// # Errors
    /// [`Error::BadRank`] for another number of axes.
    pub fn dims4(&self) -> Result<(usize, usize, usize, usize)> {
        self.exact_dims("dims4", "four axes").map(|[a, b, c, d]| (a, b, c, d))
    }

    fn exact_dims<const N: usize>(&self, op: &'static str, expected: &'static str) -> Result<[usize; N]> {
        let shape = *self.shape();
        self.dims().try_into().map_err(|_| Error::BadRank { op, expected, shape })
    }

    /// Returns the number of axes.
    #[must_use]
    #[doc(alias("ndim", "dim"))]
    pub fn rank(&self) -> usize {
        self.layout().shape().rank()
    }

    /// Returns the number of elements.
    #[must_use]
    #[doc(alias("numel", "nelement"))]
    pub fn elements(&self) -> usize {
        self.layout().shape().elements()
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.inner.dtype()
    }

    /// Returns the layout of the elements in the buffer.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.inner.layout()
    }

    /// Returns the device that holds the buffer and computes on it.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.device()
    }

    /// Returns the buffer, which all views share.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        self.inner.storage()
    }

    /// Returns the buffer with its category and its stale values.
    pub(crate) fn owned_storage(&self) -> &TensorStorage {
        self.inner.owned()
    }

    /// Returns whether this is the only handle to the buffer, so that an op may write in place. Always false
    /// for external memory.
    #[must_use]
    pub fn ref_count_is_one(&self) -> bool {
        TensorInner::is_unique(&self.inner)
    }

    /// Returns whether two tensors share a buffer.
    #[must_use]
    pub fn shares_buffer_with(&self, other: &Self) -> bool {
        ptr::eq(self.storage(), other.storage())
    }

    /// Returns the readable view for kernels.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.inner.view()
    }

    /// Returns whether no other tensor shares the buffer.
    #[must_use]
    pub fn owns_buffer(&mut self) -> bool {
        self.view_mut().is_some()
    }

    /// Returns the writable view for kernels. Requires exclusive ownership of a buffer that is contiguous
    /// from its start.
    pub(crate) fn view_mut(&mut self) -> Option<ViewMut<'_>> {
        Arc::get_mut(&mut self.inner)?.view_mut()
    }

    /// Returns another view of the same buffer, without a gradient edge.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self { inner: Arc::new(TensorInner::with_layout(&self.inner, layout)), grad: None }
    }

    /// Replaces the layout and removes the gradient edge.
    pub(crate) fn into_layout(mut self, layout: Layout) -> Self {
        match Arc::get_mut(&mut self.inner) {
            Some(inner) => {
                inner.set_layout(layout);
                Self { grad: None, ..self }
            }
            None => self.with_layout(layout),
        }
    }

    /// Returns the same values without a gradient edge: no gradient flows through the result.
    #[must_use]
    #[doc(alias("stop_gradient"))]
    pub fn detach(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), grad: None }
    }

    /// Changes the memory category of the buffer.
    #[must_use]
    pub fn with_category(self, category: Category) -> Self {
        self.owned_storage().set_category(category);
        self
    }

    pub(crate) const fn grad_edge(&self) -> Option<&GradEdge> {
        self.grad.as_ref()
    }

    /// Returns the leaf's identifier, if this tensor is a leaf.
    pub(crate) fn leaf(&self) -> Option<LeafId> {
        self.grad.as_ref().and_then(GradEdge::leaf)
    }

    pub(crate) fn with_grad_edge(self, edge: Option<GradEdge>) -> Self {
        Self { grad: edge, ..self }
    }

    /// Returns whether gradients flow to or through this tensor.
    #[must_use]
    pub const fn requires_grad(&self) -> bool {
        self.grad.is_some()
    }

    /// Copies the elements to a vector, in logical (row-major) order.
    ///
    /// # Errors
    /// [`Error::NoData`] on a dry device, unless [`dry_values`](crate::RuntimeBuilder::dry_values) defines
    /// the value; [`Error::BadArgument`] if `T` is not the tensor's element type (convert with
    /// [`Tensor::to_dtype`] first); [`Error::NoHostMemory`] if the host lacks memory for the copy.
    #[doc(alias("tolist"))]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.read("to_vec")
    }

    /// Copies the elements to a vector on behalf of a method.
    fn read<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::BadArgument {
                op,
                argument: "T",
                expected: "the tensor's element type (convert with `to_dtype`)",
                got: format!("{} for {} of shape {}", T::DTYPE, self.dtype(), self.shape()),
            });
        }
        // Checked before any allocation: a dry or broadcast tensor may exceed the memory of this machine.
        let dry_element = if self.device().is_dry() {
            if self.elements() > 0 {
                self.device().backend().simulate_download();
            }
            Some(self.dry_element(op)?)
        } else {
            None
        };
        let mut raw = self.allocate_host_copy(op, self.elements())?;
        let bytes = bytemuck::cast_slice_mut::<T::Raw, u8>(&mut raw);
        match dry_element {
            Some(element) => {
                bytes.chunks_exact_mut(element.len()).for_each(|to| to.copy_from_slice(&element))
            }
            None => check::download(self.device().as_ref(), op, self.view(), bytes)?,
        }
        Ok(raw.into_iter().map(T::from_raw).collect())
    }

    /// Returns the bytes of the value that the program defined for this dry tensor.
    fn dry_element(&self, op: &'static str) -> Result<Vec<u8>> {
        let read = DryRead { op, shape: self.shape(), dtype: self.dtype() };
        let no_data = || Error::NoData { op, device: self.device().to_string() };
        self.device().dry_values().element(&read).ok_or_else(no_data)
    }

    /// Allocates host memory for a copy of this tensor with `count` values.
    pub(crate) fn allocate_host_copy<T: Clone + Default>(
        &self,
        op: &'static str,
        count: usize,
    ) -> Result<Vec<T>> {
        let mut values = Vec::new();
        if values.try_reserve_exact(count).is_err() {
            return Err(Error::NoHostMemory { op, shape: *self.shape(), dtype: self.dtype() });
        }
        values.resize(count, T::default());
        Ok(values)
    }

    /// Returns the value of a tensor with one element.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; [`Error::NotOneElement`] if the tensor has more or fewer elements.
    pub fn item<T: Element>(&self) -> Result<T> {
        const OP: &str = "item";
        match self.elements() {
            // Without a copy if the host can read the memory.
            1 if T::DTYPE == self.dtype() => match self.view().host_contiguous() {
                Some(&[raw]) => Ok(T::from_raw(raw)),
                _ => self.read(OP).map(|values| values[0]),
            },
            1 => self.read(OP).map(|values| values[0]),
            _ => Err(Error::NotOneElement { op: OP, shape: *self.shape() }),
        }
    }

    /// Returns the value of a tensor with one element, or `dry` on a dry device. So one training loop works
    /// for real runs and dry runs.
    ///
    /// # Errors
    /// As [`Tensor::item`], but never [`Error::NoData`].
    pub fn item_or<T: Element>(&self, dry: T) -> Result<T> {
        match self.item() {
            Err(Error::NoData { .. }) => Ok(dry),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn a_copy_that_exceeds_host_memory_is_an_error() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        for elements in [1usize << 60, 1 << 62] {
            let repeated = Tensor::ones(&device, 1).unwrap().broadcast_to(elements).unwrap();
            assert!(matches!(repeated.to_vec::<f32>(), Err(Error::NoHostMemory { op: "to_vec", .. })));
            assert!(repeated.to_string().contains("no data"));
        }
    }

    #[test]
    fn a_huge_dry_tensor_has_no_data_and_allocates_nothing() {
        let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
        let huge = Tensor::ones(&dry, 1).unwrap().broadcast_to(1usize << 60).unwrap();
        assert!(matches!(huge.to_vec::<f32>(), Err(Error::NoData { op: "to_vec", .. })));
        assert!(huge.to_string().ends_with("no data"));
        // Errors of the real run occur in the dry run too.
        assert!(matches!(huge.item_or(0.0f32), Err(Error::NotOneElement { op: "item", .. })));
    }

    #[test]
    fn to_vec_and_item_name_the_actual_element_type() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let message =
            Tensor::ones_of(&device, [2, 3], DType::F64).unwrap().to_vec::<f32>().unwrap_err().to_string();
        assert_eq!(
            message,
            "to_vec: T must be the tensor's element type (convert with `to_dtype`), got f32 for f64 of shape [2, 3]"
        );
        assert_eq!(
            Tensor::ones_of(&device, [1], DType::F64).unwrap().item::<f32>().unwrap_err().to_string(),
            "item: T must be the tensor's element type (convert with `to_dtype`), got f32 for f64 of shape [1]"
        );
    }
}
