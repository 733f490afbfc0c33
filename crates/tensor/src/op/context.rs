//! The context of one op execution: every byte the op uses is taken here.

use std::cell::RefCell;
use std::sync::Arc;

use bfc_core::{Allocation, AllocationAttributes, Allocator, Category, Contents, Request, Tag};
use highwater_tracking::{OpRun, Phase, here};

use super::upcast;
use crate::backend::{Backend, Kernel, Workspace, check};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout::{Layout, bytes_of};
use crate::shape::{DType, RawElement, Shape};
use crate::storage::{Storage, View, ViewMut};
use crate::tensor::Tensor;

/// What an op may use while it runs: memory that is charged to it, the backend, and a place for what backward needs.
///
/// The op's account closes when the context is dropped: its high-water mark is final then.
#[derive(Debug)]
pub struct OpContext<'a> {
    op: &'static str,
    device: &'a Device,
    /// What the op's memory is taken from.
    memory: &'a Arc<dyn Allocator>,
    /// What outputs are for: results in forward, gradients in backward.
    output_category: Category,
    /// Whether the op is hung into the graph of gradients, so that saving makes sense.
    recording: bool,
    saved: RefCell<Vec<Tensor>>,
    /// How its memory is asked for, if not as usual.
    attributes: Option<&'a AllocationAttributes<'a>>,
    /// Last, so that the account closes after everything above has been given back.
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
            run: device.tracker().begin_over(op, memory),
        }
    }

    /// The context of an op's forward, over the memory that its outputs come from. What is computed in a backward pass,
    /// by an op that the backward of another one calls, is a gradient or goes into one.
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

    /// Returns the context of an op without inputs: one that creates a tensor, or the step of an optimizer. Outputs count as
    /// `category`. Ops with inputs implement [`Op`](crate::Op) instead.
    ///
    /// ```
    /// use highwater::alloc::Category;
    /// use highwater::backend::Kernel;
    /// use highwater::{DType, Device, IntoShape, OpContext, Scalar};
    /// let device = Device::cpu()?;
    /// let ctx = OpContext::create("sevens", &device, device.default_allocator()?, Category::Input);
    /// let mut out = ctx.output(&[3].into_shape()?, DType::F32)?;
    /// ctx.compute(Kernel::Fill { value: Scalar::Float(7.0), out: out.view_mut() })?;
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

    /// The same, whose allocations are made as `attributes` say.
    pub(crate) fn with_attributes(self, attributes: &'a AllocationAttributes<'a>) -> Self {
        Self { attributes: Some(attributes), ..self }
    }

    /// The context of an op's backward.
    pub(crate) fn backward(op: &'static str, device: &'a Device, memory: &'a Arc<dyn Allocator>) -> Self {
        Self::new(op, device, memory, Category::Gradient, false)
    }

    /// The op's name.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        self.op
    }

    /// The device the op runs on.
    #[must_use]
    pub const fn device(&self) -> &Device {
        self.device
    }

    /// The device's arithmetic.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        self.device.backend()
    }

    /// Runs a kernel on the device, on memory that the op has allocated before. A kernel that computes with 16-bit floats
    /// may allocate f32 temporaries as workspace for its duration.
    ///
    /// # Errors
    /// [`Error::Operand`] if shapes, element types or devices of the kernel's operands do not fit,
    /// [`Error::AxisOutOfRange`], [`Error::RangeOutOfBounds`], [`Error::EmptyReduction`], [`Error::BadArgument`] and
    /// [`Error::UnsupportedDType`] for what it is to do with them, and [`Error::Allocation`] if there is no memory for the
    /// temporaries of halves: nothing is written then. Else as [`Backend::run`].
    pub fn compute(&self, mut kernel: Kernel<'_>) -> Result<()> {
        let checked = check::kernel(self.device.as_ref(), self.op, &mut kernel)?;
        if upcast::applies_to(&mut kernel) {
            return upcast::run(self, kernel);
        }
        self.backend().run(self.op, &mut kernel, checked)
    }

    /// Copies values from the host to memory that the op has taken before, in logical order, as raw bytes of its element
    /// type.
    ///
    /// # Errors
    /// [`Error::Operand`] for memory of another device, [`Error::ElementCount`] for another number of values; else if the
    /// transfer fails.
    pub fn upload(&self, values: &[u8], out: ViewMut<'_>) -> Result<()> {
        self.device.upload(self.op, values, out)
    }

    /// Copies values of a tensor on the op's device to the host, in logical order, as raw bytes of its element type.
    ///
    /// # Errors
    /// [`Error::NoData`] on a device that computes nothing; else as [`upload`](Self::upload).
    pub fn download(&self, input: View<'_>, values: &mut [u8]) -> Result<()> {
        self.device.download(self.op, input, values)
    }

    /// The allocator that everything the op takes is charged through.
    #[must_use]
    pub const fn allocator(&self) -> &Arc<dyn Allocator> {
        match self.run.allocator() {
            Some(tracking) => tracking,
            None => self.memory,
        }
    }

    /// The op's account with the tracker.
    pub const fn run(&self) -> &OpRun<'a> {
        &self.run
    }

    /// Memory for the op's result, with arbitrary values in it.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is none, [`Error::TooManyElements`] if it cannot be counted.
    #[inline]
    pub fn output(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer(shape, dtype, self.output_category)
    }

    /// The same for a result that the op [saves](Self::save): where a gradient is recorded it is an activation from the beginning.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    #[inline]
    pub fn output_saved(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer(shape, dtype, self.if_saved(self.output_category))
    }

    /// Memory that the op gives back before it returns, with arbitrary values in it.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    #[inline]
    pub fn temp(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer(shape, dtype, Category::Temporary)
    }

    /// The same for what the op [saves](Self::save), if only where a gradient is recorded.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    #[inline]
    pub fn temp_saved(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        self.buffer(shape, dtype, self.if_saved(Category::Temporary))
    }

    /// What memory is for that is kept for backward, where there will be one.
    const fn if_saved(&self, otherwise: Category) -> Category {
        if self.recording { Category::Activation } else { otherwise }
    }

    /// The bytes that a kernel takes while it runs, if any.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn workspace(&self, of: Workspace<'_>) -> Result<Option<Buffer>> {
        match self.backend().workspace(of.of_computed()) {
            0 => Ok(None),
            bytes => self.buffer(&Shape::new(&[bytes])?, DType::U8, Category::Workspace).map(Some),
        }
    }

    /// Memory for a stated purpose, with arbitrary values in it.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn buffer(&self, shape: &Shape, dtype: DType, category: Category) -> Result<Buffer> {
        let Some(bytes) = bytes_of(shape, dtype) else {
            return Err(Error::TooManyElements { op: self.op, shape: *shape, dtype });
        };
        let mut request = Request::new(bytes as u64);
        request.tag = Tag { category, owner: self.run.owner() };
        if let Some(attributes) = self.attributes {
            request.attributes = *attributes;
        }
        request.contents = Some(Contents { extents: shape.dims(), element: dtype.name() });
        match Allocation::new(self.allocator(), &request) {
            Ok(allocation) => Ok(Buffer {
                storage: Storage::new(allocation, self.device.serial(), bytes, dtype, category),
                layout: Layout::row_major(shape),
                device: self.device.clone(),
            }),
            Err(error) => Err(Error::Allocation { op: self.op, shape: *shape, dtype, error }),
        }
    }

    /// Keeps a tensor for backward, where [`Saved::tensor`](crate::Saved::tensor) gives it back in the order of
    /// saving. Does nothing when no gradient is recorded. The memory counts as an activation once the op has returned.
    pub fn save(&self, tensor: &Tensor) {
        if !self.recording {
            return;
        }
        // Without its place in the graph, so that an op may save its own output without keeping itself alive.
        self.saved.borrow_mut().push(tensor.detach());
    }

    /// Whether a backward of this op may follow, so that it is worth computing what only backward reads.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.recording
    }

    /// Takes what an op that has succeeded saved: it counts as activations from now on.
    pub(crate) fn take_saved(&mut self) -> Vec<Tensor> {
        let saved = std::mem::take(self.saved.get_mut());
        for tensor in &saved {
            tensor.storage().keep_for_backward();
        }
        saved
    }
}

/// Fresh memory that an op fills and then returns as a [`Tensor`]. Only the op sees it until then.
#[derive(Debug)]
pub struct Buffer {
    storage: Storage,
    layout: Layout,
    device: Device,
}

impl Buffer {
    /// The buffer as kernels write it.
    #[must_use]
    pub const fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::new(&mut self.storage, &self.layout)
    }

    /// The buffer as kernels read it.
    #[must_use]
    pub const fn view(&self) -> View<'_> {
        View::new(&self.storage, &self.layout)
    }

    /// The elements on the host, to be written. `None` if the host cannot write them, as on a dry device, or if the
    /// elements are not stored as `T`.
    #[must_use]
    pub fn host_mut<T: RawElement>(&mut self) -> Option<&mut [T]> {
        self.view_mut().into_host()
    }

    /// The buffer as a tensor.
    #[must_use]
    pub fn finish(self) -> Tensor {
        Tensor::new_in(self.storage, self.layout, self.device)
    }
}
