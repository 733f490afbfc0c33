//! Whether a network runs to be trained or to be used, where that is not the same as whether ops are recorded.

use std::cell::Cell;

use crate::op::mode::is_recording;

/// What networks run for on this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Nobody has said: training while ops are recorded, use while they are not.
    Unstated,
    Training,
    Use,
}

thread_local! {
    static PURPOSE: Cell<Purpose> = const { Cell::new(Purpose::Unstated) };
}

/// Returns to the purpose before when it is dropped, also by a panic.
struct Return(Purpose);

impl Drop for Return {
    fn drop(&mut self) {
        PURPOSE.set(self.0);
    }
}

impl Purpose {
    pub(super) fn now() -> Self {
        PURPOSE.get()
    }

    /// Runs `program` for this purpose.
    pub(super) fn within<R>(self, program: impl FnOnce() -> R) -> R {
        let _return = Return(PURPOSE.replace(self));
        program()
    }
}

/// Runs `program` with networks in use and not in training: dropout drops nothing, batch norms take their running means and
/// leave them as they are. Ops are recorded as before, so there are gradients: for a part that is kept as it is while
/// others are trained, for maps of what an answer depends on, for inputs that shall deceive a network.
///
/// Under [`no_grad`](crate::no_grad) networks are in use anyway. Like it, this counts for the thread that calls it; of
/// several such scopes the innermost counts, and in the backward pass of a [`checkpoint`](super::checkpoint) those in which it
/// was called.
///
/// ```
/// use highwater::{Device, Rng, Tensor, evaluating};
/// use highwater::nn::{Dropout, Module};
/// let dropout = Dropout::new(0.5, Rng::new(0))?;
/// let x = Tensor::ones(&Device::cpu()?, [100])?.requiring_grad()?;
/// let y = evaluating(|| dropout.forward(&x))?;
/// let gradients = y.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [1.0; 100]);
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn evaluating<R>(program: impl FnOnce() -> R) -> R {
    Purpose::Use.within(program)
}

/// Runs `program` with networks in training, also where ops are not recorded: for answers of a network with dropout that are to
/// differ, or running means that shall be measured again. It counts as [`evaluating`] does.
///
/// ```
/// use highwater::{Device, Rng, Tensor, no_grad, training};
/// use highwater::nn::{Dropout, Module};
/// let dropout = Dropout::new(0.5, Rng::new(0))?;
/// let x = Tensor::ones(&Device::cpu()?, [100])?;
/// let y = no_grad(|| training(|| dropout.forward(&x)))?;
/// assert!(y.to_vec::<f32>()?.contains(&0.0));
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn training<R>(program: impl FnOnce() -> R) -> R {
    Purpose::Training.within(program)
}

/// Whether networks on this thread are in training, which layers as dropout ask: inside of [`training`] they are, inside of
/// [`evaluating`] they are not, and elsewhere they are if [ops are recorded](is_recording).
#[must_use]
pub fn is_training() -> bool {
    match PURPOSE.get() {
        Purpose::Unstated => is_recording(),
        Purpose::Training => true,
        Purpose::Use => false,
    }
}
