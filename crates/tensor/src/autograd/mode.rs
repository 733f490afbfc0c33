//! Whether ops are recorded on this thread.

use std::cell::Cell;

thread_local! {
    static PAUSED: Cell<usize> = const { Cell::new(0) };
}

/// Resumes recording when the closure ends, also by a panic.
struct Pause;

impl Drop for Pause {
    fn drop(&mut self) {
        PAUSED.set(PAUSED.get() - 1);
    }
}

/// Runs `program` without recording: its results require no gradient and nothing is kept for backward.
///
/// ```
/// use highwater_tensor::{Device, Tensor, no_grad};
/// let x = Tensor::ones(&Device::cpu()?, [2])?.requiring_grad()?;
/// assert!(x.mul_scalar(2.0)?.requires_grad());
/// assert!(!no_grad(|| x.mul_scalar(2.0))?.requires_grad());
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
pub fn no_grad<R>(program: impl FnOnce() -> R) -> R {
    PAUSED.set(PAUSED.get() + 1);
    let _pause = Pause;
    program()
}

/// Whether ops on this thread are recorded for a backward pass.
#[must_use]
pub fn is_recording() -> bool {
    PAUSED.get() == 0
}
