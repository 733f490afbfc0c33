//! Whether ops are recorded on this thread.

use std::cell::Cell;

use crate::tensor::Tensor;

/// What becomes of ops on this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// They are hung into the graph.
    Recording,
    /// They are not: nobody will ask for gradients.
    Paused,
    /// They are not, but will be when the program runs again in the backward pass: see [`checkpoint`](crate::checkpoint()).
    Rehearsing,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Recording) };
    /// Whether an op that was rehearsed would have been recorded.
    static WANTED: Cell<bool> = const { Cell::new(false) };
}

/// Returns to the mode before when it is dropped, also by a panic.
#[must_use = "recording goes on when this is dropped"]
pub(crate) struct Return(Mode);

impl Drop for Return {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}

/// Pauses recording until the guard is dropped.
pub(crate) fn pause() -> Return {
    Return(MODE.replace(Mode::Paused))
}

fn within<R>(mode: Mode, program: impl FnOnce() -> R) -> R {
    let _return = Return(MODE.replace(mode));
    program()
}

/// Runs `program` without recording: its results require no gradient and nothing is kept for backward.
///
/// ```
/// use highwater::{Device, Tensor, no_grad};
/// let x = Tensor::ones(&Device::cpu()?, [2])?.requiring_grad()?;
/// assert!(x.mul_scalar(2.0)?.requires_grad());
/// assert!(!no_grad(|| x.mul_scalar(2.0))?.requires_grad());
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn no_grad<R>(program: impl FnOnce() -> R) -> R {
    within(Mode::Paused, program)
}

/// Runs `program` with recording, as the second run of a checkpointed program in a backward pass, which records nothing.
pub(crate) fn recording<R>(program: impl FnOnce() -> R) -> R {
    within(Mode::Recording, program)
}

/// Runs `program` without recording, although gradients will be asked for. Also says whether any op would have been
/// recorded.
pub(crate) fn rehearsing<R>(program: impl FnOnce() -> R) -> (R, bool) {
    let before = WANTED.replace(false);
    let result = within(Mode::Rehearsing, program);
    (result, WANTED.replace(before))
}

/// Whether ops on this thread are recorded for a backward pass. Inside a [`checkpoint`](crate::checkpoint()) they are, if
/// only in its second run. Layers that act in training alone, as dropout, ask [`is_training`](crate::is_training).
#[must_use]
pub fn is_recording() -> bool {
    MODE.get() != Mode::Paused
}

/// Whether what backward needs is kept on this thread: not while recording is paused, and not in a rehearsal.
pub(crate) fn is_saving() -> bool {
    MODE.get() == Mode::Recording
}

/// Whether an op is hung into the graph now, if one of its inputs is in it.
pub(crate) fn records(in_graph: bool) -> bool {
    match MODE.get() {
        Mode::Recording => in_graph,
        Mode::Paused => false,
        Mode::Rehearsing => {
            if in_graph {
                WANTED.set(true);
            }
            false
        }
    }
}

impl Tensor {
    /// This tensor as the result of an op that has nothing to do. As with other ops' results, no gradient flows through
    /// it if it is made while recording is paused.
    pub(crate) fn unchanged(&self) -> Self {
        if is_recording() { self.clone() } else { self.detach() }
    }
}
