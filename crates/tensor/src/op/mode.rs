//! The recording mode of this thread.

use bfc_core::{ThreadScopedGuard, ThreadVariable, thread_scoped};

use crate::error::Result;
use crate::tensor::{Tensor, tape};

/// How this thread handles ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Ops add nodes to the gradient graph.
    Recording,
    /// Ops add no nodes.
    Paused,
    /// Ops add no nodes yet. The second run in the backward pass will add them: see
    /// [`checkpoint`](crate::checkpoint()).
    FirstRun,
}

thread_scoped! {
    static MODE: Mode = Mode::Recording;
}

/// Restores the previous recording mode of this thread when it is dropped, also after a panic. See
/// [`no_grad_guard`].
///
/// Dropping a guard ends all guards that were made within it. So guards may be dropped in any order.
#[must_use = "dropping the guard restores the mode"]
#[derive(Debug)]
pub struct RecordingGuard {
    _mode: ThreadScopedGuard<MODE>,
}

/// Pauses recording on this thread until the guard is dropped. Use it where [`no_grad`] does not fit: with other error
/// types, and for the rest of a function.
///
/// ```
/// use highwater::{Device, Tensor, no_grad_guard};
/// let x = Tensor::ones(&Device::cpu()?, [2])?.requiring_grad()?;
/// let guard = no_grad_guard();
/// assert!(!x.mul_scalar(2.0)?.requires_grad());
/// drop(guard);
/// assert!(x.mul_scalar(2.0)?.requires_grad());
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn no_grad_guard() -> RecordingGuard {
    RecordingGuard { _mode: MODE.enter(Mode::Paused) }
}

/// Runs `program` without recording. The results require no gradient, and ops save nothing for a backward
/// pass.
///
/// The closure returns a [`Result`] of this crate, so `?` needs no annotation. For other return types, see
/// [`no_grad_guard`].
///
/// ```
/// use highwater::{Device, Tensor, no_grad};
/// let x = Tensor::ones(&Device::cpu()?, [2])?.requiring_grad()?;
/// assert!(x.mul_scalar(2.0)?.requires_grad());
/// let mean = no_grad(|| x.mul_scalar(2.0)?.mean_all()?.item::<f32>())?;
/// assert_eq!(mean, 2.0);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// As `program`.
pub fn no_grad<R>(program: impl FnOnce() -> Result<R>) -> Result<R> {
    MODE.within(Mode::Paused, program)
}

/// Runs `program` with recording. The second run of a checkpointed program uses it within a backward pass,
/// which does not record.
pub(crate) fn with_recording<R>(program: impl FnOnce() -> R) -> R {
    MODE.within(Mode::Recording, program)
}

/// Runs `program` for the first time, without recording. The [tape](tape::record) notes whether any op would have been
/// recorded.
pub(crate) fn in_first_run<R>(program: impl FnOnce() -> R) -> R {
    MODE.within(Mode::FirstRun, program)
}

/// Returns whether this thread records ops for a backward pass. True within a
/// [`checkpoint`](crate::checkpoint()), although only its second run records. Layers that act only in
/// training, such as dropout, use [`is_training`](crate::is_training).
#[must_use]
pub fn is_recording() -> bool {
    MODE.get() != Mode::Paused
}

/// Returns whether ops on this thread save tensors. False while recording is paused, and in a first run.
pub(crate) fn is_saving() -> bool {
    MODE.get() == Mode::Recording
}

/// Returns whether an op adds a node to the graph now. `in_graph` states whether one of its inputs is in the
/// graph.
pub(crate) fn should_record(in_graph: bool) -> bool {
    match MODE.get() {
        Mode::Recording => in_graph,
        Mode::Paused => false,
        Mode::FirstRun => {
            if in_graph {
                tape::note_in_graph();
            }
            false
        }
    }
}

impl Tensor {
    /// Returns this tensor as the result of an op that changes nothing. As for other ops, no gradient flows
    /// through the result if recording is paused.
    pub(crate) fn unchanged(&self) -> Self {
        if is_recording() { self.clone() } else { self.detach() }
    }
}
