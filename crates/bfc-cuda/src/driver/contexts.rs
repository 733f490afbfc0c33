//! The CUDA contexts of the address spaces of opened devices.
//!
//! A pool knows its [`AddressSpace`], and a caller of cudarc knows its context. This table tells whether they agree.
//! [`preserve_context`] keeps the current context of programs that do not expect a change.

use std::sync::{PoisonError, RwLock};

use bfc_core::AddressSpace;
use cudarc::driver::result;

use super::library;

/// The handle of the context of each opened device.
static CONTEXTS: RwLock<Vec<(AddressSpace, u64)>> = RwLock::new(Vec::new());

/// An entry of the table. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct ContextOf(AddressSpace);

/// Adds a device with its context.
pub(super) fn add_context(space: AddressSpace, context: u64) -> ContextOf {
    CONTEXTS.write().unwrap_or_else(PoisonError::into_inner).push((space, context));
    ContextOf(space)
}

impl Drop for ContextOf {
    fn drop(&mut self) {
        CONTEXTS.write().unwrap_or_else(PoisonError::into_inner).retain(|(space, _)| *space != self.0);
    }
}

/// The handle of the context of this address space, if a [`CudaDriver`](super::CudaDriver) has it.
#[cfg(feature = "cudarc")]
pub(crate) fn context_of(space: AddressSpace) -> Option<u64> {
    let contexts = CONTEXTS.read().unwrap_or_else(PoisonError::into_inner);
    contexts.iter().find(|(known, _)| *known == space).map(|&(_, context)| context)
}

/// Runs `calls`, and makes the context current again that was current on this thread before.
///
/// Calls of a [`CudaDriver`](super::CudaDriver) leave the context of their device current. Use this around calls of pools
/// in programs that set the device of a thread themselves, as those of the CUDA runtime do.
pub fn preserve_context<T>(calls: impl FnOnce() -> T) -> T {
    let current = || library::start().ok().and_then(|()| result::ctx::get_current().ok());
    let Some(before) = current() else { return calls() };
    let result = calls();
    if current() != Some(before) {
        // SAFETY: the context was current on this thread a moment ago, or it is none.
        let _ = unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut())) };
    }
    result
}
