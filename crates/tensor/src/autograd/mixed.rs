//! Mixed precision: parameters and their gradients stay f32, ops compute with 16-bit copies.
//!
//! [`Parameter::operand`] makes the copy at its first use after an update, and keeps it in the parameter until the values
//! change. Its node in the graph passes gradients in f32 to the leaf. [`op::mixed`](crate::op::mixed) promotes the other
//! operands, so an op sees tensors of one 16-bit type, as in a converted model.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use bfc_core::{Category, ThreadScopedGuard, ThreadVariable, thread_scoped};

use super::node::record;
use super::parameter::{Parameter, WeakParameter};
use crate::backend::kernels;
use crate::error::{Error, Result};
use crate::op::mixed::MIXED;
use crate::op::mode::should_record;
use crate::op::{Op, OpContext, Saved, Summation};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;

/// The op that converts the values of a parameter.
const OP: &str = "cast_parameter";

/// The parameters with a copy that was made under a guard, each once, in the order of their first copies.
#[derive(Debug, Default)]
struct Copied {
    parameters: Vec<WeakParameter>,
    /// Their addresses, which the weak handles keep from being used again.
    known: HashSet<usize>,
}

thread_scoped! {
    /// The parameters with copies, which the end of the guard frees.
    static COPIED: Option<Rc<RefCell<Copied>>> = None;
}

/// Ends mixed precision on this thread when it is dropped, also after a panic, and frees the copies of parameters. See
/// [`mixed`].
#[must_use = "dropping the guard ends mixed precision"]
#[derive(Debug)]
pub struct MixedGuard {
    _dtype: ThreadScopedGuard<MIXED>,
    _registry: ThreadScopedGuard<COPIED>,
    copied: Rc<RefCell<Copied>>,
}

impl Drop for MixedGuard {
    fn drop(&mut self) {
        for parameter in self.copied.take().parameters {
            parameter.drop_copy();
        }
    }
}

/// Trains with 16-bit tensors and f32 parameters on this thread until the guard is dropped.
///
/// - [`Parameter`]s stay f32, as do their gradients and the optimizer's state. Layers compute with a
///   [16-bit copy](Parameter::operand), which is made once per step.
/// - f32 that meets the 16-bit type becomes the 16-bit type, and matrix products, convolutions and attention take f32 operands
///   as 16 bits. So all activations, saved tensors and gradients of activations are 16-bit.
/// - Ops sum, normalize and exponentiate in f32 and round their result once. Losses return f32.
/// - Backward passes and optimizers do the same under a guard as without one.
///
/// bf16 has the range of f32. With f16, gradients underflow unless the loss is scaled.
///
/// Guards nest. Dropping one ends all guards that were made within it, so they may be dropped in any order. Other threads
/// are unaffected.
///
/// ```
/// use highwater::prelude::*;
/// use highwater::nn::Linear;
/// let device = Device::cpu()?;
/// let layer = Linear::new(&device, 8, 2, &Rng::new(0))?;
/// let _mixed = mixed(DType::BF16)?;
/// let y = layer.forward(&Tensor::ones(&device, [4, 8])?)?;
/// assert_eq!(y.dtype(), DType::BF16);
/// let gradients = y.square()?.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&layer.weight().tensor()).map(Tensor::dtype), Some(DType::F32));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// [`Error::BadArgument`] unless `dtype` is bf16 or f16.
#[doc(alias("amp", "autocast", "mixed_precision"))]
pub fn mixed(dtype: DType) -> Result<MixedGuard> {
    if !dtype.is_half() {
        let (argument, expected) = ("dtype", "bf16 or f16, the types of mixed precision");
        return Err(Error::BadArgument { op: "mixed", argument, expected, got: dtype.to_string() });
    }
    let copied = Rc::<RefCell<Copied>>::default();
    Ok(MixedGuard {
        _dtype: MIXED.enter(Some(dtype)),
        _registry: COPIED.enter(Some(Rc::clone(&copied))),
        copied,
    })
}

/// Notes that a parameter has a copy, which the end of the innermost guard frees.
pub(super) fn note_copied(parameter: &Parameter) {
    COPIED.read(|copied| {
        if let Some(copied) = copied {
            let mut copied = copied.borrow_mut();
            if copied.known.insert(parameter.address()) {
                copied.parameters.push(parameter.downgrade());
            }
        }
    });
}

/// Converts the values of a parameter. The module of the caller owns the copy.
pub(super) fn copy_of_values(values: &Tensor, dtype: DType) -> Result<Tensor> {
    let device = values.device();
    let ctx = OpContext::create(OP, device, device.default_allocator()?, Category::Parameter);
    let mut copy = ctx.output(values.shape(), dtype)?;
    ctx.compute(kernels::Copy { input: values.view(), out: copy.view_mut() })?;
    Ok(copy.finish())
}

/// Returns the copy with an edge to the leaf of the values, unless no gradients are recorded.
pub(super) fn as_operand(leaf: &Tensor, copy: &Tensor) -> Tensor {
    if should_record(leaf.requires_grad()) {
        record(Box::new(CastParameter), &[leaf], Vec::new(), copy.clone())
    } else {
        copy.clone()
    }
}

/// The conversion of a parameter. The [copy](copy_of_values) was computed before.
#[derive(Debug)]
struct CastParameter;

impl Op for CastParameter {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(inputs[0].clone())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.to_dtype(saved.input_dtype(0))?)])
    }

    fn passes_gradient(&self) -> bool {
        true
    }

    fn summation(&self, _: &[Shape]) -> Summation {
        Summation::ELEMENTWISE
    }
}
