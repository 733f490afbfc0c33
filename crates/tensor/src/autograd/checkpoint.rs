//! Activation checkpointing (Griewank and Walther 2000; Chen et al. 2016), which trades time for memory. A
//! part of a program saves only its input for the backward pass and runs again when the pass reaches it.

use std::cell::RefCell;
use std::fmt;

use highwater_tracking::Scope;

use super::node::record_replay;
use super::training_mode::TrainingMode;
use crate::error::{Error, Result};
use crate::op::mode::{in_first_run, is_saving, with_recording};
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;
use crate::tensor::tape::{self, Tape};

/// A part of a program that runs twice.
type Program = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

pub(super) const OP: &str = "checkpoint";

/// Runs `program` on `x` without saving tensors for the backward pass, which runs `program` again.
///
/// Only the input of the part is saved. So a chain of n equal parts keeps n inputs and the activations of one
/// part, instead of the activations of all parts. The forward pass is computed twice.
///
/// The second run is bit-identical. It uses the same random numbers, so dropout drops the same elements. It
/// uses the values that parameters had in the first run. Gradients flow to `x`, to parameters, and to any
/// other tensor that `program` uses. Anything else that `program` depends on must not change. `program` must
/// not start threads that draw random numbers.
///
/// ```
/// use highwater::{Device, Rng, Tensor, checkpoint};
/// use highwater::nn::{Dropout, Linear, Module, Relu, Sequential};
/// use std::sync::Arc;
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let block = Arc::new(
///     Sequential::new()
///         .with("wide", Linear::new(&device, 8, 512, &rng)?)
///         .with("relu", Relu)
///         .with("dropout", Dropout::new(0.1, &rng.fork(1))?)
///         .with("narrow", Linear::new(&device, 512, 8, &rng)?),
/// );
/// let x = Tensor::ones(&device, [32, 8])?;
/// let inside = Arc::clone(&block);
/// let y = checkpoint(&x, move |x| inside.forward(x))?;
/// let gradients = y.square()?.sum_all()?.backward()?;
/// assert_eq!(gradients.len(), block.parameters().len());
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// `nn::Checkpointed` does this for a module.
///
/// # Errors
/// The errors of `program`. The backward pass also returns the errors of the second run, and
/// [`Error::ReplayDiffers`] if the second run differs from the first.
pub fn checkpoint(
    x: &Tensor,
    program: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    // Nothing is saved without gradients, and in the first run of an enclosing checkpoint.
    if !is_saving() {
        return program(x);
    }
    let (output, tape) = tape::record(|| in_first_run(|| program(x)));
    let output = output?;
    let is_recorded = tape.is_in_graph() || output.requires_grad();
    let output = output.detach();
    if !is_recorded || !output.dtype().is_float() {
        return Ok(output);
    }
    let input = x.detach();
    input.owned_storage().keep_for_backward();
    Ok(record_replay(
        Replay { input, program: Box::new(program), tape, mode: TrainingMode::now(), scope: Scope::now() },
        x,
        output,
    ))
}

/// The data for the second run.
pub(super) struct Replay {
    input: Tensor,
    program: Program,
    tape: Tape,
    mode: TrainingMode,
    /// The scope of the first run.
    scope: Scope,
}

impl Replay {
    /// Runs the program again, with recording, and returns the edge for the gradient `grad` of its result.
    /// `edge` is the input's gradient edge. The new nodes have the highest numbers, so the pass visits them
    /// next. They lead back to the input's edge.
    pub(super) fn run(self, edge: Option<GradEdge>, grad: &Tensor) -> Result<Option<GradEdge>> {
        let Self { input, program, tape, mode, scope } = self;
        let x = input.with_grad_edge(edge);
        // The scope and purpose of the first run, so that results and activations have the same owners.
        let _scope = scope.enter();
        let (output, same) = tape::play(tape, || mode.within(|| with_recording(|| program(&x))));
        drop_later(program);
        let output = output?;
        let differs = |what: String| Err(Error::ReplayDiffers { what });
        if !same {
            return differs("it used other random numbers or parameters".to_owned());
        }
        if (output.shape(), output.dtype(), output.device()) != (grad.shape(), grad.dtype(), grad.device()) {
            let [now, then] =
                [&output, grad].map(|t| format!("{} {} on {}", t.dtype(), t.shape(), t.device()));
            return differs(format!("it returned {now} instead of {then}"));
        }
        Ok(output.grad_edge().cloned())
    }

    /// Returns the tensors that the second run is known to read.
    pub(super) fn reads(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.input).chain(self.tape.parameters())
    }

    /// Drops the captures of the program, which may own another graph, without recursion.
    pub(super) fn drop_later(self) {
        drop_later(self.program);
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("input", self.input.shape()).finish_non_exhaustive()
    }
}

thread_local! {
    /// Programs to drop after the current one; `None` if no drop is in progress. A work list, which nested destructors
    /// extend: `Drop` takes no arguments.
    static DROPPED: RefCell<Option<Vec<Program>>> = const { RefCell::new(None) };
}

/// Drops a program without recursion. The captures of a program may own a graph with further programs. These
/// wait in a list, so that long chains do not overflow the stack.
fn drop_later(program: Program) {
    let mut program = Some(program);
    // Without access to the list, as while a thread ends, drops immediately.
    let _ = DROPPED.try_with(|dropped| match &mut *dropped.borrow_mut() {
        Some(waiting) => waiting.extend(program.take()),
        none => *none = Some(Vec::new()),
    });
    if program.is_none() {
        return;
    }
    let _end = EndDropping;
    while let Some(first) = program.take() {
        drop(first);
        let _ = DROPPED.try_with(|dropped| program = dropped.borrow_mut().as_mut().and_then(Vec::pop));
    }
}

/// Marks the end of a drop, also after a panic in a captured value's destructor.
struct EndDropping;

impl Drop for EndDropping {
    fn drop(&mut self) {
        // Drops remaining programs after the borrow has ended.
        drop(DROPPED.try_with(|dropped| dropped.borrow_mut().take()));
    }
}
