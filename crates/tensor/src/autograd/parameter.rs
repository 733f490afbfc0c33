//! Parameters: tensors that training changes, behind a handle that modules and optimisers share.

use std::fmt;
use std::sync::Arc;

use bfc_core::sync::{self, Mutex, MutexGuard};
use bfc_core::{Category, Tag};
use highwater_tracking::module;

use super::{Cursor, Gradients};
use crate::autograd::version::LeftBehind;
use crate::backend::{Kernel, check};
use crate::error::{Error, Result};
use crate::op::OpContext;
use crate::op::upcast::{Temporary, allocate, run_copy};
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;
use crate::tensor::tape;

/// The op that the memory of a new parameter is charged to.
const INIT: &str = "init";

/// A trained tensor. Clones are the same parameter: a change through one shows in all.
///
/// The cell holds a leaf of the graph of gradients, and stays the same leaf for as long as it lives. Buffers of tensors
/// are never written while shared, so a change is made in place when nothing else looks into the buffer, and on a
/// fresh copy otherwise: a graph that was recorded earlier keeps the values that it was recorded with, also in a
/// [`checkpoint`](crate::checkpoint()). A change between a forward and its backward costs a copy therefore, and the backward
/// is an error, [`Error::StaleBackward`], unless gradients at the former values are what is wanted, as by
/// [`Tensor::backward_stale`].
///
/// ```
/// use highwater::tensor::{Device, Parameter, Tensor};
/// let weight = Parameter::new(Tensor::ones(&Device::cpu()?, [2])?)?;
/// let before = weight.tensor();
/// weight.set(&Tensor::zeros(&Device::cpu()?, [2])?)?;
/// assert_eq!(before.to_vec::<f32>()?, [1.0, 1.0]);
/// assert_eq!(weight.tensor().to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Parameter {
    cell: Arc<Mutex<Cell>>,
}

/// What handles to one parameter share.
struct Cell {
    /// The values now, as a leaf, also while the parameter is frozen.
    tensor: Tensor,
    /// Whether it is to stay as it is: then it is handed out off the graph.
    frozen: bool,
    /// Who reads what the values were before the next change.
    left_behind: LeftBehind,
}

impl Cell {
    /// Continues in another buffer. Returns the former tensor, which the caller drops after the lock: an owner of outside memory may
    /// use this parameter when it is dropped.
    #[must_use = "the former tensor is dropped after the lock"]
    fn move_to(&mut self, copy: Tensor) -> Tensor {
        self.left_behind.note(&self.tensor);
        std::mem::replace(&mut self.tensor, copy)
    }

    /// The values, to be changed, if this is the only holder of their buffer.
    #[inline]
    fn writable(&mut self) -> Option<ViewMut<'_>> {
        let values = self.tensor.view_mut()?;
        // Before the change rather than after, so that an error on the way does not keep anyone from hearing of it.
        self.left_behind.tell();
        Some(values)
    }
}

impl Parameter {
    /// A parameter that starts with the values of `tensor`, whose buffer counts as a parameter's from now on.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and truth values, which have no gradient.
    pub fn new(tensor: Tensor) -> Result<Self> {
        let leaf = tensor.detach().requiring_grad_as_parameter()?.with_category(Category::Parameter);
        let cell = Cell { tensor: leaf, frozen: false, left_behind: LeftBehind::default() };
        Ok(Self { cell: Arc::new(Mutex::new(cell)) })
    }

    /// The values now, as a leaf of the graph, or off the graph while the parameter is [frozen](Self::freeze). Cheap: the buffer is
    /// shared.
    #[must_use]
    pub fn tensor(&self) -> Tensor {
        tape::parameter(|| {
            let own = self.lock();
            if own.frozen { own.tensor.detach() } else { own.tensor.clone() }
        })
    }

    /// From now on the parameter is not trained, wherever it is used: backward passes compute no gradient of it, ops keep nothing that
    /// only its gradient would need, and optimisers leave it as it is. (PyTorch: `requires_grad_(False)`.) It can still be
    /// [set](Self::set). Checkpoints do not tell what is frozen. For all parameters of a module there is
    /// `Module::freeze`.
    ///
    /// ```
    /// use highwater::tensor::{Device, Parameter, Tensor};
    /// let device = Device::cpu()?;
    /// let [scale, shift] = [2.0, 1.0].map(|value| Parameter::new(Tensor::full(&device, [1], value)?));
    /// let (scale, shift) = (scale?, shift?);
    /// scale.freeze();
    /// let y = Tensor::ones(&device, [1])?.mul(&scale.tensor())?.add(&shift.tensor())?;
    /// assert_eq!(y.sum_all()?.backward()?.len(), 1);
    /// scale.unfreeze();
    /// assert!(scale.tensor().requires_grad());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    pub fn freeze(&self) {
        self.lock().frozen = true;
    }

    /// From now on the parameter is trained again.
    pub fn unfreeze(&self) {
        self.lock().frozen = false;
    }

    /// Whether it was [frozen](Self::freeze).
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.lock().frozen
    }

    /// The values now, off the graph. The second run of a [`checkpoint`](crate::checkpoint()) sees the values of that time.
    #[must_use]
    pub fn value(&self) -> Tensor {
        self.lock().tensor.detach()
    }

    /// Copies new values in.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] and [`Error::DeviceMismatch`] if `values` is not like the
    /// parameter, [`Error::Allocation`] if a copy is needed and there is no memory; nothing has changed then.
    pub fn set(&self, values: &Tensor) -> Result<()> {
        const OP: &str = "set_parameter";
        self.check_like(OP, values)?;
        self.update(|parameter| {
            check::run(
                values.device().as_ref(),
                OP,
                &mut Kernel::Copy { input: values.view(), out: parameter },
            )
        })
    }

    /// Whether both are handles to one parameter, as where two layers share their weights.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }

    /// The values now, off the graph. The second run of a [`checkpoint`](crate::checkpoint()) sees the values of the first run.
    #[must_use]
    pub fn replayed_value(&self) -> Tensor {
        tape::parameter(|| self.value())
    }

    /// Copies values from the host in, in logical order, as raw bytes of the element type.
    ///
    /// # Errors
    /// [`Error::ElementCount`] for another number of values, [`Error::Allocation`] if a copy is needed and there is no
    /// memory; nothing has changed then.
    pub fn set_bytes(&self, op: &'static str, values: &[u8]) -> Result<()> {
        let device = self.value().device().clone();
        self.update(|out| device.upload(op, values, out))
    }

    /// A number that distinguishes this parameter from all others that exist at the same time.
    #[must_use]
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.cell).addr()
    }

    /// Under what its gradients are found, also while it is frozen.
    pub(crate) fn leaf(&self) -> Option<LeafId> {
        self.lock().tensor.leaf()
    }

    /// Charges the buffer to the [module scope](highwater_tracking::module) of this thread.
    pub fn charge_memory(&self) {
        // Without the lock, as allocators may be third-party code.
        let tensor = self.value();
        let owner = tensor.device().tracker().owner_here(INIT);
        let allocation = tensor.storage().allocation();
        let (allocator, block) = (allocation.allocator(), allocation.block());
        if let Ok(tag) = allocator.tag(&block) {
            // A block that has a tag can be retagged; an allocator without tags has nothing to say.
            let _ = allocator.retag(&block, Tag { owner, ..tag });
        }
    }

    /// Converts the values to another element type, in place of the old ones: this is another leaf of the graph then. Before
    /// an optimiser is made, as its state is made for a type, and not between a backward pass and the step: its gradients are of
    /// the former leaf, and the step is an error, [`Error::StaleGradient`].
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless `dtype` is a floating-point type, [`Error::Allocation`] if there is no memory;
    /// nothing has changed then.
    pub fn convert(&self, dtype: DType) -> Result<()> {
        // The memory stays that of the parameter's making.
        const OP: &str = INIT;
        if !dtype.is_float() {
            return Err(Error::UnsupportedDType { op: "convert", dtype });
        }
        loop {
            let before = self.value();
            if before.dtype() == dtype {
                return Ok(());
            }
            let device = before.device().clone();
            let ctx = OpContext::create(OP, &device, device.default_allocator()?, Category::Parameter);
            let mut converted = ctx.output(before.shape(), dtype)?;
            ctx.compute(Kernel::Copy { input: before.view(), out: converted.view_mut() })?;
            let converted = converted.finish();
            let _former;
            let mut own = self.lock();
            if own.tensor.shares_buffer_with(&before) {
                let converted = converted.requiring_grad_after(&own.tensor)?;
                _former = own.move_to(converted);
                own.left_behind.tell();
                return Ok(());
            }
        }
    }

    /// Checks that `values` could be this parameter's.
    fn check_like(&self, op: &'static str, values: &Tensor) -> Result<()> {
        check(op, &self.lock().tensor, values, |own| own == values.dtype())
    }

    /// Where a pass has a gradient for this parameter, makes this cell the only holder of its buffer, so that an
    /// [`update`](Self::update) needs no memory. That may take a copy, which is charged to the module. Tells under which
    /// leaf the gradient is, and the parameter's type. A frozen parameter has none to step by.
    ///
    /// # Errors
    /// [`Error::StaleGradient`], with the parameter's path, if there is one of what it was before it was converted; as
    /// [`set`](Self::set) for a gradient that is neither of the parameter's type nor of the one that it is computed with.
    pub(super) fn make_ready(
        &self,
        op: &'static str,
        path: &str,
        gradients: &Gradients,
        cursor: &mut Cursor,
    ) -> Result<Option<(LeafId, DType)>> {
        let mut own = self.lock();
        if own.frozen {
            return Ok(None);
        }
        let tensor = &mut own.tensor;
        let found = gradients.find(tensor, cursor).map_err(|given| stale(op, path, tensor, given))?;
        let Some((leaf, gradient)) = found else { return Ok(None) };
        let (dtype, given) = (tensor.dtype(), gradient.dtype());
        check(op, tensor, gradient, |own| own == given || own.computed_as() == given)?;
        if tensor.view_mut().is_none() {
            drop(own);
            let _scope = module(path.rsplit_once('.').map_or("", |(layer, _)| layer));
            self.make_unique()?;
        }
        Ok(Some((leaf, dtype)))
    }

    /// Copies the values if another tensor shares their buffer, so that the next change needs no memory.
    ///
    /// # Errors
    /// [`Error::Allocation`] if a copy is needed and there is no memory.
    pub fn make_unique(&self) -> Result<()> {
        self.update_unique(|_| Ok(()))
    }

    /// Lets `write` change the values, in place where no other tensor shares them. `write` runs under the lock, so it must not
    /// allocate: allocators call back.
    ///
    /// # Errors
    /// As [`make_unique`](Self::make_unique) before anything has changed; else what `write` says.
    pub(crate) fn update(&self, write: impl FnOnce(ViewMut<'_>) -> Result<()>) -> Result<()> {
        let mut own = self.lock();
        if let Some(values) = own.writable() {
            return write(values);
        }
        drop(own);
        self.update_unique(|own| write(own.writable().expect("this cell is the only holder of its buffer")))
    }

    /// Calls `change` with a gradient and the values, to be changed in place. Both are f32 if the device does not compute with
    /// 16-bit floats. Implementations of an optimizer call this after [`Gradients::prepare_update`].
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory, and nothing has changed then; otherwise the error of `change`.
    pub fn apply_gradient(
        &self,
        ctx: &OpContext<'_>,
        gradient: View<'_>,
        change: impl FnOnce(View<'_>, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        // The temporaries are allocated before the parameter is locked: allocators may call back, for instance to save all
        // parameters.
        if ctx.backend().supports_half() {
            return self.update(|values| change(gradient, values));
        }
        let (dtype, shape) = {
            let value = self.value();
            (value.dtype(), *value.shape())
        };
        let copy = gradient.dtype().is_half().then(|| Temporary::read(ctx, gradient)).transpose()?;
        let gradient = copy.as_ref().map_or(gradient, Temporary::view);
        let mut values = dtype.is_half().then(|| allocate(ctx, &shape)).transpose()?;
        self.update(|param| match &mut values {
            None => change(gradient, param),
            Some(values) => {
                run_copy(ctx, Kernel::Copy { input: param.as_view(), out: values.view_mut() })?;
                change(gradient, values.view_mut())?;
                run_copy(ctx, Kernel::Copy { input: values.view(), out: param })
            }
        })
    }

    /// Makes the cell the only holder of its buffer, and calls `change` while the lock keeps other threads from sharing the buffer
    /// again. Allocates and drops without the lock: allocators, their callbacks and owners of outside memory may use this parameter.
    fn update_unique(&self, change: impl FnOnce(&mut Cell) -> Result<()>) -> Result<()> {
        loop {
            let mut own = self.lock();
            if own.tensor.view_mut().is_some() {
                return change(&mut own);
            }
            let shared = own.tensor.clone();
            drop(own);
            let copy = copy_of(&shared)?;
            // Declared before the guard, so dropped after it.
            let _former;
            let mut own = self.lock();
            // As long as it is shared with this one, no thread has changed its values.
            if own.tensor.shares_buffer_with(&shared) {
                _former = own.move_to(copy);
                return change(&mut own);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cell> {
        sync::lock(&self.cell)
    }
}

/// The error that a gradient is of what a parameter was before it was converted.
#[cold]
fn stale(op: &'static str, path: &str, own: &Tensor, given: DType) -> Error {
    Error::StaleGradient { op, parameter: path.to_owned(), shape: *own.shape(), is: own.dtype(), given }
}

/// Checks that `values` could be those of a parameter.
fn check(op: &'static str, own: &Tensor, values: &Tensor, takes: impl FnOnce(DType) -> bool) -> Result<()> {
    if own.device() != values.device() {
        let (lhs, rhs) = (own.device().to_string(), values.device().to_string());
        return Err(Error::DeviceMismatch { op, lhs, rhs });
    }
    if !takes(own.dtype()) {
        let (lhs_shape, rhs_shape) = (*own.shape(), *values.shape());
        let (lhs, rhs) = (own.dtype(), values.dtype());
        return Err(Error::DTypeMismatch { op, lhs, rhs, lhs_shape, rhs_shape });
    }
    if own.shape() != values.shape() {
        return Err(Error::ShapeMismatch { op, lhs: *own.shape(), rhs: *values.shape() });
    }
    Ok(())
}

/// The values of a tensor in a buffer of their own, as the same leaf.
fn copy_of(tensor: &Tensor) -> Result<Tensor> {
    let device = tensor.device();
    let ctx = OpContext::create("copy_parameter", device, device.default_allocator()?, Category::Parameter);
    let mut copy = ctx.output(tensor.shape(), tensor.dtype())?;
    ctx.compute(Kernel::Copy { input: tensor.view(), out: copy.view_mut() })?;
    Ok(copy.finish().with_grad_edge(tensor.grad_edge().cloned()))
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape, device, frozen) = {
            let Cell { tensor, frozen, .. } = &*self.lock();
            (tensor.dtype(), *tensor.shape(), tensor.device().clone(), *frozen)
        };
        // Without the lock, as the formatter may write to third-party code.
        write!(f, "Parameter({dtype} {shape} on {device}{})", if frozen { ", frozen" } else { "" })
    }
}
