//! Creation of tensors: constants and host values.

use bfc_core::{AllocationAttributes, Category};

use super::unary::exact_scalar;
use crate::backend::{check, kernels};
use crate::device::{Device, DeviceAllocator, Place, PlacementReason};
use crate::error::{Error, Result};
use crate::layout::IntoShape;
use crate::op::OpContext;
use crate::shape::{DType, Element, Scalar, Shape};
use crate::storage::ViewMut;
use crate::tensor::Tensor;

/// Options for creating a tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorOptions<'a> {
    /// The element type; `f32` by default.
    pub dtype: DType,
    /// Allocation attributes: whether to wait for memory, and which memory to use.
    pub attributes: AllocationAttributes<'a>,
    /// The category of the memory; `Output` by default.
    pub category: Category,
}

impl Default for TensorOptions<'_> {
    fn default() -> Self {
        Self { dtype: DType::F32, attributes: AllocationAttributes::default(), category: Category::Output }
    }
}

/// Runs an op that creates a tensor: allocates the memory, then calls `fill` to write it.
pub(super) fn create(
    op: &'static str,
    place: &impl Place,
    shape: impl IntoShape,
    options: TensorOptions<'_>,
    fill: impl FnOnce(&OpContext<'_>, ViewMut<'_>) -> Result<()>,
) -> Result<Tensor> {
    let shape = shape.into_shape().map_err(|error| error.in_op(op))?;
    let device = place.device();
    device.placement().notify(op, device, PlacementReason::Requested);
    let ctx =
        OpContext::create(op, device, place.memory()?, options.category).with_attributes(&options.attributes);
    let mut out = ctx.output(&shape, options.dtype)?;
    fill(&ctx, out.view_mut())?;
    Ok(out.finish())
}

/// Creates a tensor with one value everywhere.
fn filled(
    op: &'static str,
    place: &impl Place,
    shape: impl IntoShape,
    value: Scalar,
    options: TensorOptions<'_>,
) -> Result<Tensor> {
    create(op, place, shape, options, |ctx, out| ctx.compute(kernels::Fill { value, out }))
}

/// Creates a tensor from host values in row-major order.
pub(crate) fn uploaded<T: Element>(
    op: &'static str,
    place: &impl Place,
    shape: impl IntoShape,
    values: &[T],
    category: Category,
) -> Result<Tensor> {
    let (shape, elements) = (shape.into_shape().map_err(|error| error.in_op(op))?, values.len());
    if shape.checked_elements() != Some(elements) {
        return Err(Error::ElementCount { op, elements, shape });
    }
    let options = TensorOptions { dtype: T::DTYPE, category, ..TensorOptions::default() };
    create(op, place, shape, options, |ctx, out| {
        Ok(check::upload(ctx.device().as_ref(), op, T::bytes_of(values), out)?)
    })
}

/// Creates a scalar tensor with the type and device of `like`, as a temporary of the current op.
pub(super) fn constant_like(like: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    Tensor::full_for(like.device(), Shape::SCALAR, value, like.dtype(), Category::Temporary)
}

/// # Create tensors
///
/// Constants, ranges and host values.
impl Tensor {
    /// Creates a tensor of zeros (`f32`) in memory of `alloc`.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory; [`Error::RankTooLarge`] and [`Error::TooManyElements`] for
    /// unsupported shapes.
    pub fn new(alloc: &DeviceAllocator, shape: impl IntoShape) -> Result<Self> {
        Self::new_with(alloc, shape, TensorOptions::default())
    }

    /// Creates a tensor of zeros in memory of `alloc`, with `options`.
    ///
    /// ```
    /// use highwater::alloc::{AllocationAttributes, AllocatorAttributes, Category};
    /// use highwater::{DType, Device, Tensor, TensorOptions};
    ///
    /// let alloc = Device::cpu()?.allocator(AllocatorAttributes::default())?;
    /// let options = TensorOptions {
    ///     dtype: DType::F64,
    ///     attributes: AllocationAttributes::no_retry(),
    ///     category: Category::Parameter,
    /// };
    /// let weights = Tensor::new_with(&alloc, [2, 2], options)?;
    /// assert_eq!(weights.to_vec::<f64>()?, [0.0; 4]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn new_with(
        alloc: &DeviceAllocator,
        shape: impl IntoShape,
        options: TensorOptions<'_>,
    ) -> Result<Self> {
        filled("new", alloc, shape, Scalar::Int(0), options)
    }

    /// Creates a tensor of zeros (`f32`).
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn zeros(place: &impl Place, shape: impl IntoShape) -> Result<Self> {
        Self::zeros_of(place, shape, DType::F32)
    }

    /// Creates a tensor of zeros with element type `dtype`.
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn zeros_of(place: &impl Place, shape: impl IntoShape, dtype: DType) -> Result<Self> {
        let options = TensorOptions { dtype, ..TensorOptions::default() };
        filled("zeros", place, shape, Scalar::Int(0), options)
    }

    /// Creates a tensor of ones (`f32`).
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn ones(place: &impl Place, shape: impl IntoShape) -> Result<Self> {
        Self::ones_of(place, shape, DType::F32)
    }

    /// Creates a tensor of ones with element type `dtype`.
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn ones_of(place: &impl Place, shape: impl IntoShape, dtype: DType) -> Result<Self> {
        let options = TensorOptions { dtype, ..TensorOptions::default() };
        filled("ones", place, shape, Scalar::Int(1), options)
    }

    /// Creates a tensor filled with `value` (`f32`).
    ///
    /// # Errors
    /// See [`Tensor::new`].
    pub fn full(place: &impl Place, shape: impl IntoShape, value: impl Into<Scalar>) -> Result<Self> {
        Self::full_of(place, shape, value, DType::F32)
    }

    /// Creates a tensor filled with `value`, with element type `dtype`. Floats round the value; integers must represent
    /// it exactly.
    ///
    /// ```
    /// use highwater::{DType, Device, Tensor};
    /// let device = Device::cpu()?;
    /// assert_eq!(Tensor::full_of(&device, 2, 255, DType::U8)?.to_vec::<u8>()?, [255, 255]);
    /// let error = Tensor::full_of(&device, 2, 300, DType::U8).unwrap_err();
    /// assert_eq!(error.to_string(), "full: scalar must be a number that the element type can represent, got 300 for a tensor of u8");
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::new`]; [`Error::BadArgument`] if `dtype` is an integer type that cannot represent the value.
    pub fn full_of(
        place: &impl Place,
        shape: impl IntoShape,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Self> {
        const OP: &str = "full";
        let options = TensorOptions { dtype, ..TensorOptions::default() };
        filled(OP, place, shape, exact_scalar(OP, value.into(), dtype)?, options)
    }

    /// Creates a tensor filled with `value`, for a category and op of the caller.
    pub(crate) fn full_for(
        device: &Device,
        shape: Shape,
        value: impl Into<Scalar>,
        dtype: DType,
        category: Category,
    ) -> Result<Self> {
        let options = TensorOptions { dtype, category, ..TensorOptions::default() };
        filled("full", device, shape, value.into(), options)
    }

    /// Creates a tensor of zeros with this tensor's shape, type and device.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn zeros_like(&self) -> Result<Self> {
        let options = TensorOptions { dtype: self.dtype(), ..TensorOptions::default() };
        filled("zeros_like", self.device(), self.shape(), Scalar::Int(0), options)
    }

    /// Creates a tensor of ones with this tensor's shape, type and device.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn ones_like(&self) -> Result<Self> {
        let options = TensorOptions { dtype: self.dtype(), ..TensorOptions::default() };
        filled("ones_like", self.device(), self.shape(), Scalar::Int(1), options)
    }

    /// Creates a scalar: a tensor without axes.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn scalar<T: Element>(place: &impl Place, value: T) -> Result<Self> {
        uploaded("scalar", place, (), &[value], Category::Output)
    }

    /// Creates a tensor from a slice of host values in row-major order. The memory has the category input.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1i64, 2, 3, 4, 5, 6], [2, 3])?;
    /// assert_eq!(x.slice(0, 1..)?.to_vec::<i64>()?, [4, 5, 6]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the shape has another number of elements; otherwise see [`Tensor::new`].
    #[doc(alias("tensor", "array", "from_numpy"))]
    pub fn from_slice<T: Element>(place: &impl Place, values: &[T], shape: impl IntoShape) -> Result<Self> {
        uploaded("from_slice", place, shape, values, Category::Input)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::device::Runtime;

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn constants_have_the_value_and_the_type_asked_for() {
        let device = cpu();
        assert_eq!(Tensor::zeros(&device, [2, 2]).unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
        assert_eq!(Tensor::ones_of(&device, 3, DType::U8).unwrap().to_vec::<u8>().unwrap(), [1; 3]);
        assert_eq!(Tensor::full(&device, 2, 0.5).unwrap().to_vec::<f32>().unwrap(), [0.5; 2]);
        assert_eq!(
            Tensor::full_of(&device, 2, true, DType::Bool).unwrap().to_vec::<bool>().unwrap(),
            [true; 2]
        );
        let large = i64::MAX - 1;
        assert_eq!(Tensor::full_of(&device, 1, large, DType::I64).unwrap().to_vec::<i64>().unwrap(), [large]);
        assert_eq!(Tensor::scalar(&device, 2.5f64).unwrap().item::<f64>().unwrap(), 2.5);
        let x = Tensor::from_slice(&device, &[true, false], 2).unwrap();
        assert_eq!(x.to_vec::<bool>().unwrap(), [true, false]);
        assert_eq!(x.ones_like().unwrap().to_vec::<bool>().unwrap(), [true, true]);
        assert_eq!(x.zeros_like().unwrap().to_vec::<bool>().unwrap(), [false, false]);
    }

    #[test]
    fn a_fill_value_outside_the_type_is_refused() {
        let device = cpu();
        let mask = Tensor::full_of(&device, 2, true, DType::Bool).unwrap();
        let values = [300.0, -1.0, 1.5, f64::NAN, 2_147_483_648.0, 255.0, 0.0].map(Scalar::Float);
        for value in values.into_iter().chain([300, -1, 1 << 31, 255].map(Scalar::Int)) {
            for dtype in [DType::U8, DType::I32, DType::I64, DType::F16, DType::F32] {
                let full = Tensor::full_of(&device, 2, value, dtype);
                let masked = Tensor::zeros_of(&device, 2, dtype).unwrap().masked_fill(&mask, value);
                assert_eq!(full.is_ok(), masked.is_ok(), "{value:?} of {dtype}");
                let Err(error) = full else { continue };
                assert!(
                    matches!(error, Error::BadArgument { op: "full", argument: "scalar", .. }),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn tensors_without_elements_can_be_made() {
        let device = cpu();
        assert_eq!(Tensor::zeros(&device, [0, 3]).unwrap().to_vec::<f32>().unwrap(), [0.0; 0]);
        assert_eq!(Tensor::from_slice::<i64>(&device, &[], [2, 0]).unwrap().dims(), [2, 0]);
    }

    #[test]
    fn the_purpose_of_a_new_tensor_is_in_its_tag() {
        let device = cpu();
        let category = |tensor: Tensor| tensor.storage().category();
        assert_eq!(category(Tensor::zeros(&device, 1).unwrap()), Some(Category::Output));
        assert_eq!(category(Tensor::from_slice(&device, &[1u8], 1).unwrap()), Some(Category::Input));
        let gradient = Tensor::full_for(&device, Shape::SCALAR, 1.0, DType::F32, Category::Gradient);
        assert_eq!(category(gradient.unwrap()), Some(Category::Gradient));
    }

    #[test]
    fn every_op_tells_where_it_runs_and_why() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let device = runtime.cpu().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        runtime.on_placement(move |placement| listener.lock().unwrap().push(placement.to_string()));
        let x = Tensor::ones(&device, ()).unwrap().requiring_grad().unwrap();
        x.exp().unwrap().backward().unwrap();
        let expected = [
            "ones on cpu:0: requested",
            "exp on cpu:0: device of its inputs",
            "full on cpu:0: requested",
            "exp on cpu:0: device of its forward pass",
        ];
        assert_eq!(*told.lock().unwrap(), expected);
    }

    #[test]
    fn a_listener_may_run_ops_itself() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let device = runtime.cpu().unwrap();
        let told = Arc::new(Mutex::new(0));
        let (count, x) = (Arc::clone(&told), Tensor::ones(&device, 1).unwrap());
        runtime.on_placement(move |_| {
            *count.lock().unwrap() += 1;
            x.exp().unwrap();
        });
        Tensor::ones(&device, 1).unwrap();
        Tensor::ones(&device, 1).unwrap();
        assert_eq!(*told.lock().unwrap(), 2);
        // The listener holds a tensor, and the tensor its device, which holds the listener.
        runtime.on_placement(|_| ());
    }

    #[test]
    fn a_slice_of_another_length_than_the_shape_is_an_error() {
        let error = Tensor::from_slice(&cpu(), &[1.0f32, 2.0], [3]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "from_slice: shape [3] does not match 2 elements; the sizes must multiply to that number"
        );
    }
}
