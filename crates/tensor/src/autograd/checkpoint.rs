//! Activation checkpointing (Griewank and Walther 2000; Chen et al. 2016): memory for time. A part of a program keeps
//! nothing for the backward pass but its input, and runs again when the pass reaches it.

use std::cell::RefCell;
use std::fmt;

use highwater_tracking::ScopePath;

use super::node::record_replay;
use super::purpose::Purpose;
use crate::error::{Error, Result};
use crate::op::mode::{is_saving, recording, rehearsing};
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;
use crate::tensor::tape::{self, Tape};

/// A part of a program, to be run again.
type Program = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

pub(super) const OP: &str = "checkpoint";

/// What `program` computes from `x`, without keeping what its ops save for backward: backward runs it a second time.
///
/// Of a part that is made of many ops, only the input is kept, so a chain of n equal parts holds n inputs and the
/// activations of one part instead of those of all. Forward is computed twice.
///
/// The second run gives what the first gave, to the bit: random numbers are those that were drawn first, so dropout drops
/// the same elements, and parameters have the values that they had then, as in any graph. Gradients flow to `x`, to
/// parameters, and to any other tensor that `program` uses. What else it depends on must not have changed, and it must
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
///         .with("dropout", Dropout::new(0.1, rng.fork(1))?)
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
/// What `program` says. The backward pass also gives the errors of the second run, and [`Error::ReplayDiffers`] if it was
/// not like the first.
pub fn checkpoint(
    x: &Tensor,
    program: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    // Where nothing is recorded nothing is saved: without gradients, and in the first run of a checkpoint around this one.
    if !is_saving() {
        return program(x);
    }
    let ((output, tape), wanted) = rehearsing(|| tape::record(|| program(x)));
    let output = output?;
    let wanted = wanted || output.requires_grad();
    let output = output.detach();
    if !wanted || !output.dtype().is_float() {
        return Ok(output);
    }
    let input = x.detach();
    input.storage().keep_for_backward();
    Ok(record_replay(Replay { input, program: Box::new(program), tape, purpose: Purpose::now() }, x, output))
}

/// What the second run needs.
pub(super) struct Replay {
    input: Tensor,
    program: Program,
    tape: Tape,
    purpose: Purpose,
}

impl Replay {
    /// Runs the program again, with recording; where the gradient `grad` of its result goes then. The nodes made here have
    /// higher numbers than all before, so they are passed next, and lead back to where the input came from.
    /// At `place` the program ran first, and `edge` is where its input came from.
    pub(super) fn run(
        self,
        place: ScopePath,
        edge: Option<GradEdge>,
        grad: &Tensor,
    ) -> Result<Option<GradEdge>> {
        let Self { input, program, tape, purpose } = self;
        let x = input.with_grad_edge(edge);
        // In the module, the phase and for the purpose of the first run: what is computed is results, and what they save activations.
        let _place = place.enter();
        let (output, same) = tape::play(tape, || purpose.within(|| recording(|| program(&x))));
        drop_later(program);
        let output = output?;
        let differs = |what: String| Err(Error::ReplayDiffers { what });
        if !same {
            return differs("it drew other random numbers or parameters".to_owned());
        }
        if (output.shape(), output.dtype(), output.device()) != (grad.shape(), grad.dtype(), grad.device()) {
            let [now, then] =
                [&output, grad].map(|t| format!("{} {} on {}", t.dtype(), t.shape(), t.device()));
            return differs(format!("it gave {now} instead of {then}"));
        }
        Ok(output.grad_edge().cloned())
    }

    /// What the second run reads, as far as it is known.
    pub(super) fn reads(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.input).chain(self.tape.parameters())
    }

    /// Drops what the program has captured, which may be the end of another graph, without recursion.
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
    /// Programs that are dropped once the one being dropped is gone; `None` while none is.
    static DROPPED: RefCell<Option<Vec<Program>>> = const { RefCell::new(None) };
}

/// Drops a program. One that is dropped because another one was, as its captures held the graph that it hangs in, waits
/// for its turn: the stack stays as it is however long such a chain may be.
fn drop_later(program: Program) {
    let mut program = Some(program);
    // A thread that ends drops at once.
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

/// Says that no program is being dropped any more, also after a panic of what one has captured.
struct EndDropping;

impl Drop for EndDropping {
    fn drop(&mut self) {
        // Whoever waits still is dropped after the borrow has ended.
        drop(DROPPED.try_with(|dropped| dropped.borrow_mut().take()));
    }
}
