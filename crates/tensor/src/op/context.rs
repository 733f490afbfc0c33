//! The context of one op execution. The op allocates all of its memory here.

use std::cell::RefCell;
use std::sync::Arc;

use bfc_core::{Allocation, AllocationAttributes, Allocator, Category, Contents, Request, Tag};
use highwater_tracking::{OpRun, Phase, here};

use super::upcast;
use crate::backend::kernels::Workspace;
use crate::backend::{Backend, Kernel, check};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout::{Layout, bytes_of};
use crate::shape::{DType, RawElement, Shape};
use crate::storage::{TensorStorage, View, ViewMut};
use crate::tensor::Tensor;
use crate::tensor::inner::TensorInner;

/// Memory for the gradient of an op's input.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    /// The index of the input.
    pub(crate) input: usize,
    pub(crate) bytes: usize,
    /// Allocates exactly these bytes.
    pub(crate) memory: Arc<dyn Allocator>,
}

/// The resources of a running op: memory with its account, the backend, and the tensors saved for the
/// backward pass.
///
/// Dropping the context closes the op's account; then its high-water mark is final.
#[derive(Debug)]
pub struct OpContext<'a> {
    op: &'static str,
    device: &'a Device,
    /// The allocator of the op's memory.
    memory: &'a Arc<dyn Allocator>,
    /// The category of outputs: results in the forward pass, gradients in the backward pass.
    output_category: Category,
    /// Whether the op adds a node to the gradient graph. Only then it saves tensors.
    recording: bool,
    saved: RefCell<Vec<Tensor>>,
    /// The attributes of the op's allocations, unless they are the default.
    attributes: Option<&'a AllocationAttributes<'a>>,
    /// Memory for gradients, from a [hook](crate::GradientHook).
    destinations: RefCell<Vec<Destination>>,
    /// The last field, so that the account closes after all memory above is freed.
    run: OpRun<'a>,
}

impl<'a> OpContext<'a> {
    fn new(
        op: &'static str,
        device: &'a Device,
        memory: &'a Arc<dyn Allocator>,
        category: Category,
        recording: bool,
    ) -> Self {
        Self {
            op,
            device,
            memory,
            output_category: category,
            recording,
            saved: RefCell::new(Vec::new()),
            attributes: None,
            destinations: RefCell::default(),
            run: device.tracker().begin_over(op, memory, device.finished_accounts()),
        }
    }

    /// Returns the context of an op's forward pass. `memory` is the allocator of the outputs. Ops that run
    /// within a backward pass produce gradients.
    pub(crate) fn forward(
        op: &'static str,
        device: &'a Device,
        memory: &'a Arc<dyn Allocator>,
        recording: bool,
    ) -> Self {
        let category = match here().phase {
            Phase::Backward => Category::Gradient,
            _ => Category::Output,
        };
        Self::new(op, device, memory, category, recording)
    }

    /// Returns the context of an op without inputs, such as an op that creates a tensor, or the step of an
    /// optimizer. Outputs have the category `category`. Ops with inputs implement [`Op`](crate::Op) instead.
    ///
    /// ```
    /// use highwater::alloc::Category;
    /// use highwater::backend::kernels;
    /// use highwater::{DType, Device, IntoShape, OpContext, Scalar};
    /// let device = Device::cpu()?;
    /// let ctx = OpContext::create("sevens", &device, device.default_allocator()?, Category::Input);
    /// let mut out = ctx.output(&[3].into_shape()?, DType::F32)?;
    /// ctx.compute(kernels::Fill { value: Scalar::Float(7.0), out: out.view_mut() })?;
    /// assert_eq!(out.finish().to_vec::<f32>()?, [7.0; 3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    pub fn create(
        op: &'static str,
        device: &'a Device,
        memory: &'a Arc<dyn Allocator>,
        category: Category,
    ) -> Self {
        Self::new(op, device, memory, category, false)
    }

    /// Sets the attributes of the op's allocations.
    pub(crate) fn with_attributes(self, attributes: &'a AllocationAttributes<'a>) -> Self {
        Self { attributes: Some(attributes), ..self }
    }

    /// Returns the context of an op's backward pass.
    pub(crate) fn backward(op: &'static str, device: &'a Device, memory: &'a Arc<dyn Allocator>) -> Self {
        Self::new(op, device, memory, Category::Gradient, false)
    }

    /// Sets memory for the gradients of some inputs.
    pub(crate) fn with_destinations(self, destinations: Vec<Destination>) -> Self {
        Self { destinations: RefCell::new(destinations), ..self }
    }

    /// Takes the memory for the gradient of an input. Sums of 16-bit floats have other bytes, and are converted later.
    fn take_destination(&self, input: usize, bytes: Option<usize>) -> Option<Arc<dyn Allocator>> {
        let mut destinations = self.destinations.try_borrow_mut().ok()?;
        let at = destinations.iter().position(|found| found.input == input && Some(found.bytes) == bytes)?;
        Some(destinations.swap_remove(at).memory)
    }

    /// Returns the op's name.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        self.op
    }

    /// Returns the device that runs the op.
    #[must_use]
    pub const fn device(&self) -> &Device {
        self.device
    }

    /// Returns the device's backend.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        self.device.backend()
    }

    /// Runs a kernel on memory that the op has already allocated. A kernel on 16-bit floats may allocate f32
    /// temporaries as workspace for its duration.
    ///
    /// # Errors
    /// [`Error::Operand`] if shapes, element types or devices of the operands do not match;
    /// [`Error::AxisOutOfRange`], [`Error::RangeOutOfBounds`], [`Error::EmptyReduction`],
    /// [`Error::BadArgument`] and [`Error::UnsupportedDType`] for invalid arguments of the kernel;
    /// [`Error::Allocation`] if there is not enough memory for f32 temporaries. The kernel has written
    /// nothing in these cases. Otherwise as [`Backend::run`].
    // Generic, so that the fast check knows the kernel at compile time.
    pub fn compute<'k>(&self, kernel: impl Into<Kernel<'k>>) -> Result<()> {
        let mut kernel = kernel.into();
        let (checked, dtype) = check::kernel(self.device.as_ref(), self.op, &mut kernel)?;
        if dtype.is_none_or(DType::is_half) && upcast::applies_to(&mut kernel) {
            return upcast::run(self, kernel);
        }
        Ok(self.backend().run(self.op, &mut kernel, checked)?)
    }

    /// Runs kernels that do not depend on each other, such as the updates of all parameters by an optimizer. A GPU computes
    /// neighbors of one kind and type in one launch, and the CPU wakes its threads once for all small kernels. The
    /// results equal those of [`compute`](Self::compute).
    ///
    /// # Errors
    /// As [`compute`](Self::compute) for each kernel. After an error about operands of kernels that
    /// [support 16-bit floats everywhere](Kernel::supports_half_everywhere), no kernel has written anything.
    pub fn compute_together(&self, mut kernels: Vec<Kernel<'_>>) -> Result<()> {
        if kernels.iter_mut().any(upcast::applies_to) {
            return kernels.into_iter().try_for_each(|kernel| self.compute(kernel));
        }
        Ok(check::run_together(self.device.as_ref(), self.op, &mut kernels)?)
    }

    /// Copies values from the host to memory that the op has already allocated. The values are raw bytes of
    /// the element type, in logical order.
    ///
    /// # Errors
    /// [`Error::Operand`] for memory of another device; [`Error::ElementCount`] for another number of values;
    /// [`Error::Device`] if the transfer fails.
    pub fn upload(&self, values: &[u8], out: ViewMut<'_>) -> Result<()> {
        self.device.upload(self.op, values, out)
    }

    /// Copies a tensor on the op's device to the host, as raw bytes of its element type in logical order.
    ///
    /// # Errors
    /// [`Error::NoData`] on a dry device; otherwise as [`upload`](Self::upload).
    pub fn download(&self, input: View<'_>, values: &mut [u8]) -> Result<()> {
        self.device.download(self.op, input, values)
    }

    /// Returns the allocator of all memory of the op. It tracks the op's account.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        match self.run.allocator() {
            Some(tracking) => tracking,
            None => self.memory,
        }
    }

    /// Returns the op's account with the tracker.
    pub const fn run(&self) -> &OpRun<'a> {
        &self.run
    }

    /// Allocates uninitialized memory for the op's result.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the allocation fails, [`Error::TooManyElements`] if the number of bytes
    /// overflows.
    #[inline]
    pub fn output(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer_in(self.allocator(), shape, dtype, self.output_category)
    }

    /// Allocates uninitialized memory for the gradient of the op's input number `input`, in a
    /// [backward pass](crate::Op::backward). `shape` and `dtype` are those of the input.
    ///
    /// As [`output`](Self::output), unless a [hook](crate::GradientHook) has memory for this gradient. Then the hook need
    /// not copy it.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn gradient(&self, input: usize, shape: &Shape, dtype: DType) -> Result<Buffer> {
        let destination = self.take_destination(input, bytes_of(shape, dtype));
        let memory = destination.as_ref().unwrap_or_else(|| self.allocator());
        self.buffer_in(memory, shape, dtype, self.output_category)
    }

    /// Allocates a result that the op [saves](Self::save). If gradients are recorded, its category is
    /// activation from the start.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    #[inline]
    pub fn output_saved(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer_in(self.allocator(), shape, dtype, self.if_saved(self.output_category))
    }

    /// Allocates uninitialized scratch memory, which the op frees before it returns.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    #[inline]
    pub fn temp(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer_in(self.allocator(), shape, dtype, Category::Temporary)
    }

    /// Allocates scratch memory that the op [saves](Self::save) if gradients are recorded.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    #[inline]
    pub fn temp_saved(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer_in(self.allocator(), shape, dtype, self.if_saved(Category::Temporary))
    }

    /// Returns the category of memory that the op saves if gradients are recorded.
    const fn if_saved(&self, otherwise: Category) -> Category {
        if self.recording { Category::Activation } else { otherwise }
    }

    /// Allocates the workspace of a kernel; `None` if the kernel requires none.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn workspace(&self, of: impl Workspace) -> Result<Option<Buffer>> {
        match of.bytes(self.backend().rules()) {
            0 => Ok(None),
            bytes => self.buffer(&Shape::new(&[bytes])?, DType::U8, Category::Workspace).map(Some),
        }
    }

    /// Allocates uninitialized memory of a category.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn buffer(&self, shape: &Shape, dtype: DType, category: Category) -> Result<Buffer> {
        self.buffer_in(self.allocator(), shape, dtype, category)
    }

    fn buffer_in(
        &self,
        memory: &Arc<dyn Allocator>,
        shape: &Shape,
        dtype: DType,
        category: Category,
    ) -> Result<Buffer> {
        let Some(bytes) = bytes_of(shape, dtype) else {
            return Err(Error::TooManyElements { op: self.op, shape: *shape, dtype });
        };
        let mut request = Request::new(bytes as u64);
        request.tag = Tag { category, owner: self.run.owner() };
        if let Some(attributes) = self.attributes {
            request.attributes = *attributes;
        }
        request.contents = Some(Contents { extents: shape.dims(), element: dtype.name() });
        match Allocation::new(memory, &request) {
            Ok(allocation) => {
                let storage = TensorStorage::new(allocation, self.device.serial(), bytes, dtype, category);
                let (layout, device) = (Layout::row_major(shape), self.device.clone());
                Ok(Buffer(TensorInner::new(storage, layout, device)))
            }
            Err(error) => Err(Error::Allocation { op: self.op, shape: *shape, dtype, error }),
        }
    }

    /// Saves a tensor for the backward pass. [`Saved::tensor`](crate::Saved::tensor) returns saved tensors in
    /// the same order. Does nothing if no gradients are recorded. After the op returns, the category of the
    /// memory is activation.
    pub fn save(&self, tensor: &Tensor) {
        if !self.recording {
            return;
        }
        // Detached, so that an op which saves its own output does not keep itself alive.
        self.saved.borrow_mut().push(tensor.detach());
    }

    /// Returns whether a backward pass of this op may follow. Only then it needs values for the backward
    /// pass.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.recording
    }

    /// Takes the tensors that a successful op saved, and changes their category to activation.
    pub(crate) fn take_saved(&mut self) -> Vec<Tensor> {
        let saved = std::mem::take(self.saved.get_mut());
        for tensor in &saved {
            tensor.owned_storage().keep_for_backward();
        }
        saved
    }
}

/// New memory that an op fills and then returns as a [`Tensor`]. Until then only the op can access it.
// The only handle to the tensor's inner data. On the heap from the start, because copies of it cost as much as a small
// kernel.
#[derive(Debug)]
pub struct Buffer(Arc<TensorInner>);

impl Buffer {
    /// Returns the writable view for kernels.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        TensorInner::new_view_mut(&mut self.0)
    }

    /// Returns the readable view for kernels.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.0.view()
    }

    /// Returns the elements on the host for writing. Returns `None` if the host cannot write them, as on a
    /// dry device, or if the elements are not stored as `T`.
    #[must_use]
    pub fn host_mut<T: RawElement>(&mut self) -> Option<&mut [T]> {
        self.view_mut().into_host()
    }

    /// Converts the buffer to a tensor.
    #[must_use]
    pub fn finish(self) -> Tensor {
        Tensor::from_inner(self.0)
    }
}
