//! Autocast: matrix products and convolutions of f32 tensors on this thread compute in bf16.
//!
//! The thread counts its guards. [`OpContext::precision`](super::OpContext::precision) reads the count when an op creates
//! a kernel. A node of the gradient graph stores the precision of its forward pass, and the backward pass restores it
//! with [`within`]. So the gradients of an op use its precision, and so does the second run of a checkpoint.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::backend::Precision;
use crate::error::{Error, Result};
use crate::shape::DType;

thread_local! {
    /// The number of live guards of this thread.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
}

/// Ends autocast on this thread when it is dropped, also after a panic. See [`autocast`].
#[must_use = "dropping the guard ends autocast"]
#[derive(Debug)]
pub struct AutocastGuard {
    /// The count belongs to one thread, so the guard must not move to another.
    of_thread: PhantomData<*const ()>,
}

impl Drop for AutocastGuard {
    fn drop(&mut self) {
        GUARDS.set(GUARDS.get().saturating_sub(1));
    }
}

/// Runs matrix products and convolutions of f32 tensors on this thread in bf16 until the guard is dropped, as PyTorch's
/// `torch.autocast`.
///
/// - [`matmul`](crate::Tensor::matmul), `linear` and the convolutions round their f32 operands to bf16 and sum in f32.
///   Layers that consist of them follow, for instance recurrent layers.
/// - Results stay f32, unlike in PyTorch. So parameters, activations and gradients are f32, and no casts are necessary.
/// - Attention, norms, softmax, losses, reductions and optimizers compute in f32. Tensors of other types are unaffected.
/// - The backward pass of an op uses the precision of its forward pass, with or without a guard.
///
/// Guards nest, and may be dropped in any order. Other threads are unaffected.
///
/// ```
/// use highwater::{DType, Device, Tensor, autocast};
/// let device = Device::cpu()?;
/// let x = Tensor::from_slice(&device, &[1.001f32], [1, 1])?;
/// let guard = autocast(DType::BF16)?;
/// let y = x.matmul(&x)?;
/// drop(guard);
/// // 1.001 rounds to 1 in bf16.
/// assert_eq!((y.item::<f32>()?, y.dtype()), (1.0, DType::F32));
/// assert_eq!(x.matmul(&x)?.item::<f32>()?, 1.001 * 1.001);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// [`Error::BadArgument`] for types other than bf16.
#[doc(alias("amp", "mixed_precision"))]
pub fn autocast(dtype: DType) -> Result<AutocastGuard> {
    if dtype != DType::BF16 {
        let (argument, expected) = ("dtype", "bf16, the only type that autocast supports");
        return Err(Error::BadArgument { op: "autocast", argument, expected, got: dtype.to_string() });
    }
    GUARDS.set(GUARDS.get() + 1);
    Ok(AutocastGuard { of_thread: PhantomData })
}

/// Returns the precision of products on this thread.
pub(crate) fn precision() -> Precision {
    if GUARDS.get() == 0 { Precision::Full } else { Precision::BF16 }
}

/// Restores the guards of this thread when it is dropped.
pub(crate) struct PrecisionScope {
    before: u32,
}

impl Drop for PrecisionScope {
    fn drop(&mut self) {
        GUARDS.set(self.before);
    }
}

/// Sets the precision of products on this thread until the scope is dropped.
#[must_use]
pub(crate) fn within(precision: Precision) -> PrecisionScope {
    PrecisionScope { before: GUARDS.replace(u32::from(precision == Precision::BF16)) }
}
