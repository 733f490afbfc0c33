//! Parameters: trained tensors that modules and optimizers share.

use std::fmt;
use std::sync::{Arc, Weak};

use bfc_core::sync::{self, Mutex, MutexGuard};
use bfc_core::{Category, Tag};
use highwater_tracking::{ModulePath, module};

use super::mixed::{as_operand, copy_of_values, note_copied};
use super::{Gradients, LeafCursor};
use crate::autograd::version::PendingUpdate;
use crate::backend::{check, kernels};
use crate::error::{Error, Result, ShapeRule};
use crate::op::OpContext;
use crate::op::mixed::mixed_dtype;
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;
use crate::tensor::tape;

/// The op that owns the memory of a new parameter.
const INIT: &str = "init";

/// A trained tensor. Clones refer to the same parameter.
///
/// A parameter is a leaf of the gradient graph throughout its lifetime. An update writes in place if no other
/// tensor shares the buffer, and otherwise to a new copy. So a graph keeps the values that it was recorded
/// with, also in a [`checkpoint`](crate::checkpoint()).
///
/// An update between a forward pass and its backward pass therefore costs a copy. The backward pass then
/// fails with [`Error::StaleBackward`]; [`Tensor::backward_stale`] computes gradients at the old values
/// instead.
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
    shared: Arc<Shared>,
}

/// The state that all handles to a parameter share.
struct Shared {
    cell: Mutex<Cell>,
    /// The path of the module that holds the parameter.
    module: ModulePath,
}

struct Cell {
    /// The current values, as a leaf, even while the parameter is frozen. Constants are no leaves.
    tensor: Tensor,
    /// Whether the parameter is excluded from training. Then `tensor` returns it without a gradient edge.
    frozen: bool,
    /// The next update, for buffers that other tensors keep with the old values.
    next_update: PendingUpdate,
    /// The values in 16 bits, for [`Parameter::operand`].
    copy: Option<Tensor>,
}

impl Cell {
    /// Moves the parameter to another buffer. Returns the old tensor, which the caller drops after the lock:
    /// dropping external memory may call code that uses this parameter.
    #[must_use = "drop the old tensor after the lock"]
    fn replace_buffer(&mut self, copy: Tensor) -> Tensor {
        self.next_update.add_stale_buffer(&self.tensor);
        std::mem::replace(&mut self.tensor, copy)
    }

    /// Removes the 16-bit copy before the values change. A graph that reads it becomes stale with the next update. The caller
    /// drops the copy after the lock, as in [`replace_buffer`](Self::replace_buffer).
    #[must_use = "drop the copy after the lock"]
    fn take_copy(&mut self) -> Option<Tensor> {
        let mut copy = self.copy.take()?;
        if copy.view_mut().is_none() {
            let of_leaf = copy.clone().with_grad_edge(self.tensor.grad_edge().cloned());
            self.next_update.add_stale_buffer(&of_leaf);
        }
        Some(copy)
    }

    /// Returns the values for writing, if this is the only handle to their buffer.
    #[inline]
    fn writable(&mut self) -> Option<ViewMut<'_>> {
        let values = self.tensor.view_mut()?;
        // Commits the update before the write, so that an error during the write cannot hide it.
        self.next_update.commit();
        Some(values)
    }
}

impl Parameter {
    /// Creates a parameter from the values of `tensor`. The category of the buffer becomes parameter.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers and booleans, which have no gradient.
    pub fn new(tensor: Tensor) -> Result<Self> {
        let leaf = tensor.detach().requiring_grad_as_parameter()?.with_category(Category::Parameter);
        let cell = Cell { tensor: leaf, frozen: false, next_update: PendingUpdate::default(), copy: None };
        Ok(Self { shared: Arc::new(Shared { cell: Mutex::new(cell), module: ModulePath::new() }) })
    }

    /// Creates a parameter that is never trained, from values of any element type: blocks of quantized weights, for
    /// instance. It is always frozen. The category of the buffer becomes parameter.
    ///
    /// ```
    /// use highwater::tensor::{DType, Device, Parameter, Tensor};
    /// let blocks = Parameter::constant(Tensor::zeros_of(&Device::cpu()?, [4, 34], DType::U8)?);
    /// blocks.unfreeze();
    /// assert!(blocks.is_constant() && blocks.is_frozen());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn constant(tensor: Tensor) -> Self {
        let tensor = tensor.detach().with_category(Category::Parameter);
        let cell = Cell { tensor, frozen: true, next_update: PendingUpdate::default(), copy: None };
        Self { shared: Arc::new(Shared { cell: Mutex::new(cell), module: ModulePath::new() }) }
    }

    /// Returns whether the parameter is a [constant](Self::constant).
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.leaf().is_none()
    }

    /// Returns the current values as a leaf of the graph, or without a gradient edge while the parameter is
    /// [frozen](Self::freeze). Cheap, as the tensor shares the buffer.
    #[must_use]
    pub fn tensor(&self) -> Tensor {
        tape::parameter(|| {
            let own = self.lock();
            if own.frozen { own.tensor.detach() } else { own.tensor.clone() }
        })
    }

    /// Returns the values as layers compute with them: [`tensor`](Self::tensor), but in [mixed precision](crate::mixed()) a
    /// 16-bit copy of f32 values. Gradients reach the same leaf, in f32.
    ///
    /// The copy is made at the first use and kept until the values change or the guard is dropped. Graphs that save it keep it
    /// too.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// let weight = Parameter::new(Tensor::full(&Device::cpu()?, [1], 1.001)?)?;
    /// let guard = mixed(DType::BF16)?;
    /// let rounded = weight.operand()?;
    /// assert_eq!((rounded.dtype(), rounded.to_dtype(DType::F32)?.item::<f32>()?), (DType::BF16, 1.0));
    /// drop(guard);
    /// assert_eq!(weight.operand()?.item::<f32>()?, 1.001);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory for the copy.
    pub fn operand(&self) -> Result<Tensor> {
        let leaf = self.tensor();
        match mixed_dtype() {
            Some(dtype) if leaf.dtype() == DType::F32 => Ok(as_operand(&leaf, &self.copy_of(&leaf, dtype)?)),
            _ => Ok(leaf),
        }
    }

    /// Returns the values in a 16-bit type: the copy of this parameter, unless a second run uses earlier values.
    fn copy_of(&self, values: &Tensor, dtype: DType) -> Result<Tensor> {
        let own = self.lock();
        if let Some(copy) = own.copy.as_ref().filter(|copy| copy.dtype() == dtype)
            && own.tensor.shares_buffer_with(values)
        {
            return Ok(copy.clone());
        }
        drop(own);
        let copy = copy_of_values(values, dtype)?;
        // Declared before the guard, so dropped after it.
        let _old;
        let mut own = self.lock();
        if own.tensor.shares_buffer_with(values) {
            _old = own.copy.replace(copy.clone());
            drop(own);
            note_copied(self);
        }
        Ok(copy)
    }

    pub(super) fn downgrade(&self) -> WeakParameter {
        WeakParameter(Arc::downgrade(&self.shared))
    }

    /// Excludes the parameter from training (PyTorch: `requires_grad_(False)`). Backward passes compute no
    /// gradient for it, ops save nothing for its gradient, and optimizers do not change it.
    /// [`set`](Self::set) still works. Checkpoints do not store whether a parameter is frozen.
    /// `Module::freeze` freezes all parameters of a module.
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

    /// Includes the parameter in training again, unless it is a [constant](Self::constant).
    pub fn unfreeze(&self) {
        let mut own = self.lock();
        own.frozen = own.tensor.leaf().is_none();
    }

    /// Returns whether the parameter is [frozen](Self::freeze).
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.lock().frozen
    }

    /// Returns the current values without a gradient edge. The second run of a
    /// [`checkpoint`](crate::checkpoint()) also returns the values at that time.
    #[must_use]
    pub fn value(&self) -> Tensor {
        self.lock().tensor.detach()
    }

    /// Replaces the values.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] and [`Error::DeviceMismatch`] if `values` does not
    /// match the parameter; [`Error::Allocation`] if a copy is required and its allocation fails. The
    /// parameter is unchanged then.
    pub fn set(&self, values: &Tensor) -> Result<()> {
        const OP: &str = "set_parameter";
        self.check_matches(OP, values)?;
        self.update(|parameter| {
            let copy = kernels::Copy { input: values.view(), out: parameter };
            Ok(check::run(values.device().as_ref(), OP, &mut copy.into())?)
        })
    }

    /// Moves the parameter to the buffer of `values`, and returns the old values. Unlike [`set`](Self::set), it
    /// copies nothing, except for `values` that are not contiguous.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn replace(&self, values: Tensor) -> Result<Tensor> {
        let values = values.contiguous()?;
        let _copy;
        let mut own = self.lock();
        check("replace_parameter", &own.tensor, &values, |own| own == values.dtype())?;
        _copy = own.take_copy();
        let edge = own.tensor.grad_edge().cloned();
        let old = own.replace_buffer(values.detach().with_grad_edge(edge));
        own.next_update.commit();
        Ok(old.detach())
    }

    /// Returns whether both are handles to one parameter, for instance in layers with shared weights.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the values without a gradient edge. The second run of a [`checkpoint`](crate::checkpoint())
    /// returns the values of the first run.
    #[must_use]
    pub fn replayed_value(&self) -> Tensor {
        tape::parameter(|| self.value())
    }

    /// Replaces the values by values on the host: raw bytes of the element type, in logical order.
    ///
    /// # Errors
    /// [`Error::ElementCount`] for another number of values; [`Error::Allocation`] if a copy is required and
    /// its allocation fails. The parameter is unchanged then.
    pub fn set_bytes(&self, op: &'static str, values: &[u8]) -> Result<()> {
        let device = self.value().device().clone();
        self.update(|out| device.upload(op, values, out))
    }

    /// Returns a number that is unique among all existing parameters.
    #[must_use]
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Returns the number of the parameter, which grows with each new one and survives conversions.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.leaf().map_or(0, LeafId::identity)
    }

    /// Returns the leaf's identifier, also while the parameter is frozen.
    pub(crate) fn leaf(&self) -> Option<LeafId> {
        self.lock().tensor.leaf()
    }

    /// Returns the path of the module that holds the parameter. A walk through the model sets it.
    #[must_use]
    pub fn module(&self) -> &ModulePath {
        &self.shared.module
    }

    /// Attributes the buffer to the current [module](highwater_tracking::module) of this thread.
    pub fn charge_memory(&self) {
        // Without the lock, as third-party allocators may call back.
        let tensor = self.value();
        let tracker = tensor.device().tracker();
        tracker.layer_listed(self.address());
        let owner = tracker.owner_here(INIT);
        let allocation = tensor.storage().allocation();
        let (allocator, block) = (allocation.allocator(), allocation.block());
        if let Ok(tag) = allocator.tag(&block) {
            // Allocators without tags return an error, which is harmless here.
            let _ = allocator.retag(&block, Tag { owner, ..tag });
        }
    }

    /// Converts the values to another element type. [Constants](Self::constant) keep theirs. The parameter becomes another
    /// leaf of the graph. Convert before creating an optimizer, whose state depends on the type. A conversion between a backward pass
    /// and the optimizer step makes the step fail with [`Error::StaleGradient`].
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless `dtype` is a floating-point type; [`Error::Allocation`] if the
    /// allocation fails. The parameter is unchanged then.
    pub fn convert(&self, dtype: DType) -> Result<()> {
        // The owner of the memory stays the op that created the parameter.
        const OP: &str = INIT;
        if !dtype.is_float() {
            return Err(Error::UnsupportedDType { op: "convert", dtype });
        }
        loop {
            let before = self.value();
            if before.dtype() == dtype || self.is_constant() {
                return Ok(());
            }
            let device = before.device().clone();
            let ctx = OpContext::create(OP, &device, device.default_allocator()?, Category::Parameter);
            let mut converted = ctx.output(before.shape(), dtype)?;
            ctx.compute(kernels::Copy { input: before.view(), out: converted.view_mut() })?;
            let converted = converted.finish();
            let _old;
            let mut own = self.lock();
            if own.tensor.shares_buffer_with(&before) {
                let converted = converted.requiring_grad_as_conversion_of(&own.tensor)?;
                let copy = own.take_copy();
                _old = (own.replace_buffer(converted), copy);
                own.next_update.commit();
                return Ok(());
            }
        }
    }

    /// Checks that `values` matches this parameter.
    fn check_matches(&self, op: &'static str, values: &Tensor) -> Result<()> {
        check(op, &self.lock().tensor, values, |own| own == values.dtype())
    }

    /// Checks that a gradient has the device and shape of this parameter, and its element type or that of its
    /// computation.
    pub(super) fn check_gradient(&self, op: &'static str, gradient: &Tensor) -> Result<()> {
        let given = gradient.dtype();
        check(op, &self.lock().tensor, gradient, |own| own == given || own.computed_as() == given)
    }

    /// If there is a gradient for this parameter, makes this handle the only owner of its buffer, so that an
    /// [`update`](Self::update) allocates nothing. That may copy the values; the copy counts toward the
    /// module. Returns the leaf of the gradient and the parameter's type. Returns `None` for frozen
    /// parameters.
    ///
    /// # Errors
    /// [`Error::StaleGradient`], with the parameter's path, if the gradient precedes a conversion. As
    /// [`set`](Self::set) if the gradient has neither the parameter's type nor the type of its computation.
    pub(super) fn prepare_update(
        &self,
        op: &'static str,
        path: &str,
        gradients: &Gradients,
        cursor: &mut LeafCursor,
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

    /// Copies the values if another tensor shares their buffer, so that the next update allocates nothing.
    ///
    /// # Errors
    /// [`Error::Allocation`] if a copy is required and its allocation fails.
    pub fn make_unique(&self) -> Result<()> {
        self.update_unique(|_| Ok(()))
    }

    /// Calls `write` to change the values, in place if no other tensor shares them. `write` runs under the
    /// lock and must not allocate, because allocators call back.
    ///
    /// # Errors
    /// As [`make_unique`](Self::make_unique), before anything changes; otherwise the error of `write`.
    pub fn update(&self, write: impl FnOnce(ViewMut<'_>) -> Result<()>) -> Result<()> {
        // Declared before the guard, so dropped after it.
        let _copy;
        let mut own = self.lock();
        if own.tensor.view_mut().is_some() {
            _copy = own.take_copy();
            return write(own.writable().expect("the parameter is the only owner of its buffer"));
        }
        drop(own);
        let mut copy = None;
        self.update_unique(|own| {
            copy = own.take_copy();
            write(own.writable().expect("the parameter is the only owner of its buffer"))
        })
    }

    /// Calls `write` to change the values of several parameters, as [`update`](Self::update) does for one. `write` gets
    /// them in the order of `parameters`, and runs while all of them are locked.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if a parameter is given twice; otherwise as [`update`](Self::update).
    pub fn update_together(
        parameters: &[&Self],
        write: impl FnOnce(Vec<ViewMut<'_>>) -> Result<()>,
    ) -> Result<()> {
        // All threads lock in this order, so that no two of them wait for each other.
        let mut order: Vec<_> = parameters.iter().enumerate().collect();
        order.sort_unstable_by_key(|(_, parameter)| parameter.address());
        if order.windows(2).any(|pair| pair[0].1.is_same(pair[1].1)) {
            let (argument, expected, got) = ("parameters", "each parameter once", "one twice".to_owned());
            return Err(Error::BadArgument { op: "update_together", argument, expected, got });
        }
        // Dropped after the locks.
        let mut _copies: Vec<Tensor> = Vec::new();
        loop {
            let mut cells: Vec<_> = order.iter().map(|(_, parameter)| parameter.lock()).collect();
            let shared = cells.iter_mut().position(|own| own.tensor.view_mut().is_none());
            if let Some(shared) = shared {
                drop(cells);
                order[shared].1.make_unique()?;
                continue;
            }
            _copies.extend(cells.iter_mut().filter_map(|own| own.take_copy()));
            let values = order.iter().zip(&mut cells).filter_map(|((n, _), own)| Some((*n, own.writable()?)));
            let mut values: Vec<_> = values.collect();
            values.sort_unstable_by_key(|(n, _)| *n);
            return write(values.into_iter().map(|(_, values)| values).collect());
        }
    }

    /// Calls `change` with a gradient and the values, which it changes in place without allocating.
    /// Implementations of an optimizer call this after [`Gradients::prepare_update`].
    ///
    /// # Errors
    /// [`Error::Allocation`] if a copy of a shared buffer fails, and nothing has changed then; otherwise the
    /// error of `change`.
    pub fn apply_gradient(
        &self,
        gradient: View<'_>,
        change: impl FnOnce(View<'_>, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        self.update(|values| change(gradient, values))
    }

    /// Makes this handle the only owner of its buffer, and calls `change` while the lock keeps other threads
    /// from sharing the buffer. Allocates and drops without the lock, because callbacks and owners of
    /// external memory may use this parameter.
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
            let _old;
            let mut own = self.lock();
            // No thread changes the values while `shared` refers to them.
            if own.tensor.shares_buffer_with(&shared) {
                _old = own.replace_buffer(copy);
                return change(&mut own);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cell> {
        sync::lock(&self.shared.cell)
    }
}

/// A parameter that its other handles keep alive.
#[derive(Debug)]
pub(super) struct WeakParameter(Weak<Shared>);

impl WeakParameter {
    /// Drops the 16-bit copy. A graph that reads it keeps it.
    pub(super) fn drop_copy(&self) {
        let copy = self.0.upgrade().and_then(|shared| sync::lock(&shared.cell).copy.take());
        drop(copy);
    }
}

/// Returns the error for a gradient that precedes the conversion of its parameter.
#[cold]
fn stale(op: &'static str, path: &str, own: &Tensor, given: DType) -> Error {
    Error::StaleGradient { op, parameter: path.to_owned(), shape: *own.shape(), is: own.dtype(), given }
}

/// Checks that `values` matches a parameter.
fn check(
    op: &'static str,
    own: &Tensor,
    values: &Tensor,
    accepts_dtype: impl FnOnce(DType) -> bool,
) -> Result<()> {
    if own.device() != values.device() {
        let (lhs, rhs) = (own.device().to_string(), values.device().to_string());
        return Err(Error::DeviceMismatch { op, lhs, rhs });
    }
    if !accepts_dtype(own.dtype()) {
        let (lhs_shape, rhs_shape) = (*own.shape(), *values.shape());
        let (lhs, rhs) = (own.dtype(), values.dtype());
        return Err(Error::DTypeMismatch { op, lhs, rhs, lhs_shape, rhs_shape });
    }
    if own.shape() != values.shape() {
        return Err(Error::ShapeMismatch {
            op,
            lhs: *own.shape(),
            rhs: *values.shape(),
            rule: &ShapeRule::Same,
        });
    }
    Ok(())
}

/// Copies a tensor to a new buffer, as the same leaf.
fn copy_of(tensor: &Tensor) -> Result<Tensor> {
    let device = tensor.device();
    let ctx = OpContext::create("copy_parameter", device, device.default_allocator()?, Category::Parameter);
    let mut copy = ctx.output(tensor.shape(), tensor.dtype())?;
    ctx.compute(kernels::Copy { input: tensor.view(), out: copy.view_mut() })?;
    Ok(copy.finish().with_grad_edge(tensor.grad_edge().cloned()))
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape, device, frozen) = {
            let Cell { tensor, frozen, .. } = &*self.lock();
            (tensor.dtype(), *tensor.shape(), tensor.device().clone(), *frozen)
        };
        // Without the lock, as third-party code may receive the output.
        write!(f, "Parameter({dtype} {shape} on {device}{})", if frozen { ", frozen" } else { "" })
    }
}
