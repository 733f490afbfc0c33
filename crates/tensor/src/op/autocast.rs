//! Autocast: matrix products and convolutions of f32 tensors on this thread compute in bf16.
//!
//! [`OpContext::precision`](super::OpContext::precision) reads the thread's precision when an op creates a kernel. A node
//! of the gradient graph stores the precision of its forward pass, and the backward pass restores it with [`within`]. So
//! the gradients of an op use its precision, and so does the second run of a checkpoint.

use bfc_core::{ThreadScopedGuard, ThreadVariable, thread_scoped};

use crate::backend::Precision;
use crate::error::{Error, Result};
use crate::shape::DType;

thread_scoped! {
    /// The precision of products on this thread.
    pub(crate) static PRECISION: Precision = Precision::Full;
}

/// Restores the previous precision of this thread when it is dropped, also after a panic. See [`autocast`].
#[must_use = "dropping the guard ends autocast"]
#[derive(Debug)]
pub struct AutocastGuard {
    _precision: ThreadScopedGuard<PRECISION>,
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
/// Guards nest. Dropping one ends all guards that were made within it, so they may be dropped in any order. Other threads
/// are unaffected.
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
    Ok(AutocastGuard { _precision: PRECISION.enter(Precision::BF16) })
}

/// Returns the precision of products on this thread.
pub(crate) fn precision() -> Precision {
    PRECISION.get()
}

/// Sets the precision of products on this thread until the guard is dropped. Does nothing if it is the present one, which is
/// the usual case in a backward pass.
#[must_use]
#[inline]
pub(crate) fn within(precision: Precision) -> Option<ThreadScopedGuard<PRECISION>> {
    (PRECISION.get() != precision).then(|| PRECISION.enter(precision))
}
