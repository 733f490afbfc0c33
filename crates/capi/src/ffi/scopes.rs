//! Scopes, phases and ops of the calling thread.

use std::ffi::c_char;

use highwater_tracking::Phase;

use super::bfc_pool;
use crate::error::Error;
use crate::guard::guard;
use crate::status::bfc_status;
use crate::{scopes, table, text};

/// The handle of an entered scope, phase or op of one thread. Never 0, and never used again.
pub type bfc_scope = u64;

/// A phase of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub enum bfc_phase {
    /// The forward pass; the phase of threads that push none.
    BFC_FORWARD = 0,
    /// The backward pass.
    BFC_BACKWARD = 1,
    /// The update of parameters.
    BFC_OPTIMIZER = 2,
}

pub use bfc_phase::*;

/// Enters the scope `name` below the thread's current one, and stores its handle in `*scope`. A name with dots enters
/// several. Blocks that the thread allocates until bfc_scope_pop() belong to it, and reports show its bytes and peak.
///
/// A path has at most 255 scopes and 12 KiB. A scope beyond these limits counts as the one above it.
///
/// Fails with BFC_ERROR_INVALID_ARGUMENT beyond 4096 scopes of one thread. Fails with BFC_ERROR_UNSUPPORTED in handlers that run
/// at the end of a thread with scopes, such as those of atexit().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_scope_push(name: *const c_char, scope: *mut bfc_scope) -> bfc_status {
    guard(|| {
        text::check_out(scope, "scope")?;
        // SAFETY: the caller passes a text that ends with NUL.
        let name = unsafe { text::read(name, text::MAX_NAME, "name") }?;
        let handle = scopes::push_scope(name)?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { scope.write(handle) };
        Ok(())
    })
}

/// Enters a phase in the thread's current scope, and stores its handle in `*scope`. `phase` is a bfc_phase.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_phase_push(phase: u32, scope: *mut bfc_scope) -> bfc_status {
    guard(|| {
        text::check_out(scope, "scope")?;
        let handle = scopes::push_phase(phase_of(phase)?)?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { scope.write(handle) };
        Ok(())
    })
}

/// Begins an op in the thread's current scope, and stores its handle in `*scope`. Until bfc_scope_pop(), the blocks that
/// the thread allocates count for one call of the op: its row shows the most bytes that a call held, and the time. An op
/// within an op is a part of it. The pool cannot be closed before the op ends.
///
/// An op of a pool with memory counts the blocks of all pools with memory. An op of a dry pool counts those of that pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_op_push(
    pool: bfc_pool,
    name: *const c_char,
    scope: *mut bfc_scope,
) -> bfc_status {
    guard(|| {
        text::check_out(scope, "scope")?;
        // SAFETY: the caller passes a text that ends with NUL.
        let name = unsafe { text::read(name, text::MAX_NAME, "name") }?;
        let handle = table::with_pool(pool, |pool| scopes::push_op(pool, name))?;
        // SAFETY: not null and aligned; the caller passes a live variable.
        unsafe { scope.write(handle) };
        Ok(())
    })
}

/// Leaves the innermost scope, phase or op of this thread.
///
/// Fails with BFC_ERROR_SCOPE_ORDER if others are within it, and with BFC_ERROR_INVALID_HANDLE if this thread has not
/// entered it or has left it; nothing changes.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_scope_pop(scope: bfc_scope) -> bfc_status {
    guard(|| scopes::pop(scope))
}

fn phase_of(value: u32) -> Result<Phase, Error> {
    match value {
        0 => Ok(Phase::Forward),
        1 => Ok(Phase::Backward),
        2 => Ok(Phase::Optimizer),
        _ => Err(Error::BadValue {
            argument: "phase",
            value: value.into(),
            expected: "a bfc_phase, 0 to 2".to_owned(),
        }),
    }
}
