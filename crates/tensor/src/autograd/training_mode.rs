//! Training mode: whether networks on this thread are trained or evaluated. It is independent of whether ops
//! are recorded.

use bfc_core::{ThreadScopedGuard, ThreadVariable, thread_scoped};

use crate::error::Result;
use crate::op::mode::is_recording;

/// The mode of networks on this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrainingMode {
    /// Training while ops are recorded, evaluation otherwise.
    Automatic,
    Training,
    Evaluation,
}

thread_scoped! {
    static MODE: TrainingMode = TrainingMode::Automatic;
}

/// Restores the previous training mode of this thread when it is dropped, also after a panic. See
/// [`evaluating_guard`] and [`training_guard`].
///
/// Dropping a guard ends all guards that were made within it. So guards may be dropped in any order.
#[must_use = "dropping the guard restores the mode"]
#[derive(Debug)]
pub struct TrainingGuard {
    _mode: ThreadScopedGuard<MODE>,
}

impl TrainingMode {
    pub(super) fn now() -> Self {
        MODE.get()
    }

    /// Sets this mode until the guard is dropped.
    fn guard(self) -> TrainingGuard {
        TrainingGuard { _mode: MODE.enter(self) }
    }

    /// Runs `program` in this mode.
    pub(super) fn within<R>(self, program: impl FnOnce() -> R) -> R {
        MODE.within(self, program)
    }
}

/// Runs `program` with networks in evaluation mode. Dropout is inactive, and batch norms use their running
/// means without an update. Recording is unaffected, so gradients are available. Uses: a fixed part of a
/// network that is trained, saliency maps, adversarial inputs.
///
/// Networks are also in evaluation mode under [`no_grad`](crate::no_grad), unless [`training`] overrides it.
/// The mode applies to the calling thread; the innermost scope counts. The second run of a
/// [`checkpoint`](super::checkpoint) uses the mode of the first run.
///
/// ```
/// use highwater::{Device, Rng, Tensor, evaluating};
/// use highwater::nn::{Dropout, Module};
/// let dropout = Dropout::new(0.5, &Rng::new(0))?;
/// let x = Tensor::ones(&Device::cpu()?, [100])?.requiring_grad()?;
/// let y = evaluating(|| dropout.forward(&x))?;
/// let gradients = y.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [1.0; 100]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// As `program`.
pub fn evaluating<R>(program: impl FnOnce() -> Result<R>) -> Result<R> {
    TrainingMode::Evaluation.within(program)
}

/// Sets evaluation mode on this thread until the guard is dropped: see [`evaluating`].
pub fn evaluating_guard() -> TrainingGuard {
    TrainingMode::Evaluation.guard()
}

/// Runs `program` with networks in training mode, even if ops are not recorded. Uses: Monte Carlo dropout,
/// and new measurements of running means. Scopes nest as for [`evaluating`].
///
/// ```
/// use highwater::{Device, Rng, Tensor, no_grad, training};
/// use highwater::nn::{Dropout, Module};
/// let dropout = Dropout::new(0.5, &Rng::new(0))?;
/// let x = Tensor::ones(&Device::cpu()?, [100])?;
/// let y = no_grad(|| training(|| dropout.forward(&x)))?;
/// assert!(y.to_vec::<f32>()?.contains(&0.0));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// As `program`.
pub fn training<R>(program: impl FnOnce() -> Result<R>) -> Result<R> {
    TrainingMode::Training.within(program)
}

/// Sets training mode on this thread until the guard is dropped: see [`training`].
pub fn training_guard() -> TrainingGuard {
    TrainingMode::Training.guard()
}

/// Returns whether networks on this thread are in training mode. True inside [`training`], false inside
/// [`evaluating`], and otherwise equal to [`is_recording`]. Layers such as dropout depend on it.
#[must_use]
pub fn is_training() -> bool {
    match MODE.get() {
        TrainingMode::Automatic => is_recording(),
        TrainingMode::Training => true,
        TrainingMode::Evaluation => false,
    }
}
