//! Tapes record the random keys and parameters that a program uses, so that a second run uses the same ones.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bfc_core::{ThreadVariable, thread_scoped};

use crate::backend::RandomKey;
use crate::tensor::Tensor;

/// The random keys and parameters that a program used, in order. A recorded parameter keeps its current
/// values: an update of the parameter writes to another buffer.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    draws: VecDeque<Draw>,
    is_in_graph: bool,
}

#[derive(Debug)]
enum Draw {
    Key(RandomKey),
    Parameter(Tensor),
}

impl Tape {
    /// Returns the recorded parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.draws.iter().filter_map(|draw| match draw {
            Draw::Parameter(tensor) => Some(tensor),
            Draw::Key(_) => None,
        })
    }

    /// Returns whether the program [has](note_in_graph) an input in the gradient graph.
    pub(crate) const fn is_in_graph(&self) -> bool {
        self.is_in_graph
    }
}

/// The tape that a program replays.
struct Played {
    tape: Tape,
    /// Whether the program deviated from the tape.
    deviated: bool,
}

/// The tapes of a program.
#[derive(Clone)]
struct Tapes {
    played: Option<Rc<RefCell<Played>>>,
    recorded: Option<Rc<RefCell<Tape>>>,
}

thread_scoped! {
    /// The tapes of the running program.
    static TAPES: Tapes = Tapes { played: None, recorded: None };
}

/// Returns the tapes of the running program, if it has any.
#[inline]
fn tapes() -> Option<Tapes> {
    let has_any = TAPES.read(|tapes| tapes.played.is_some() || tapes.recorded.is_some());
    has_any.then(|| TAPES.read(Clone::clone))
}

/// Runs a program and records the keys and parameters that it uses, including replayed ones.
pub(crate) fn record<R>(program: impl FnOnce() -> R) -> (R, Tape) {
    let recorded = Rc::new(RefCell::new(Tape::default()));
    let played = tapes().and_then(|tapes| tapes.played);
    let result = TAPES.within(Tapes { played, recorded: Some(Rc::clone(&recorded)) }, program);
    (result, recorded.take())
}

/// Replays a tape while the program runs. Also returns whether the program used exactly the contents of the
/// tape.
pub(crate) fn play<R>(tape: Tape, program: impl FnOnce() -> R) -> (R, bool) {
    let played = Rc::new(RefCell::new(Played { tape, deviated: false }));
    let result = TAPES.within(Tapes { played: Some(Rc::clone(&played)), recorded: None }, program);
    let is_same = {
        let played = played.borrow();
        played.tape.draws.is_empty() && !played.deviated
    };
    (result, is_same)
}

/// Notes that an op of the recorded program has an input in the gradient graph, so that the second run adds nodes.
pub(crate) fn note_in_graph() {
    if let Some(Tapes { recorded: Some(tape), .. }) = tapes() {
        tape.borrow_mut().is_in_graph = true;
    }
}

/// Returns whether this thread executes the second run of a [`checkpoint`](crate::checkpoint()), for instance
/// in a backward pass. Modules with state that changes in the forward pass, such as running means, must not
/// change it then.
#[must_use]
pub fn is_replaying() -> bool {
    TAPES.read(|tapes| tapes.played.is_some())
}

/// Returns the next key of the replayed tape, or else a new key from `live`.
pub(crate) fn key(live: impl FnOnce() -> RandomKey) -> RandomKey {
    let Some(tapes) = tapes() else { return live() };
    let key = match tapes.next() {
        Some(Draw::Key(key)) => key,
        other => {
            tapes.deviate(other);
            live()
        }
    };
    tapes.record(|| Draw::Key(key));
    key
}

/// Returns an unused key to the tapes. Returns whether it came from a replayed tape, so that no generator
/// must take it back.
pub(crate) fn return_key(key: RandomKey) -> bool {
    let Some(tapes) = tapes() else { return false };
    if let Some(tape) = &tapes.recorded {
        let draws = &mut tape.borrow_mut().draws;
        draws.pop_back_if(|last| matches!(last, Draw::Key(last) if *last == key));
    }
    tapes.played.is_some_and(|played| {
        played.borrow_mut().tape.draws.push_front(Draw::Key(key));
        true
    })
}

/// Returns the next parameter of the replayed tape, or else the current tensor from `live`.
pub(crate) fn parameter(live: impl FnOnce() -> Tensor) -> Tensor {
    let Some(tapes) = tapes() else { return live() };
    let tensor = match tapes.next() {
        Some(Draw::Parameter(tensor)) => tensor,
        other => {
            tapes.deviate(other);
            live()
        }
    };
    tapes.record(|| Draw::Parameter(tensor.clone()));
    tensor
}

impl Tapes {
    /// Returns the next entry of the replayed tape. Marks a deviation if the tape is finished.
    fn next(&self) -> Option<Draw> {
        let mut played = self.played.as_ref()?.borrow_mut();
        let next = played.tape.draws.pop_front();
        played.deviated |= next.is_none();
        next
    }

    /// Marks a deviation if the tape held another entry. Drops the entry outside of a borrow, because dropping external
    /// memory may call code that uses parameters.
    fn deviate(&self, draw: Option<Draw>) {
        if let (Some(_), Some(played)) = (&draw, &self.played) {
            played.borrow_mut().deviated = true;
        }
    }

    fn record(&self, draw: impl FnOnce() -> Draw) {
        if let Some(tape) = &self.recorded {
            tape.borrow_mut().draws.push_back(draw());
        }
    }
}
