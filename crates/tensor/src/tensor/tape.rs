//! Tapes record the random keys and parameters that a program uses, so that a second run uses the same ones.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use crate::backend::RandomKey;
use crate::tensor::Tensor;

/// The random keys and parameters that a program used, in order. A recorded parameter keeps its current
/// values: an update of the parameter writes to another buffer.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    draws: VecDeque<Draw>,
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
}

struct Tapes {
    /// The tape that the running program replays.
    played: Option<Tape>,
    /// Whether the program deviated from the replayed tape.
    deviated: bool,
    /// The tape that records the running program.
    recorded: Option<Tape>,
}

thread_local! {
    /// Whether the thread has any tape. A thread without checkpoints only reads this flag.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    // No destructor, so that it remains accessible while the thread ends. It is empty then.
    static TAPES: ManuallyDrop<RefCell<Tapes>> = const { ManuallyDrop::new(RefCell::new(Tapes::NONE)) };
}

/// Calls `f` with the thread's tapes.
fn with_tapes<R>(f: impl FnOnce(&mut Tapes) -> R) -> R {
    TAPES.with(|tapes| f(&mut tapes.borrow_mut()))
}

/// Restores the tapes when the closure ends or panics.
struct RestoreTapes<F: FnMut(&mut Tapes)> {
    was_running: bool,
    restore: F,
}

impl<F: FnMut(&mut Tapes)> Drop for RestoreTapes<F> {
    fn drop(&mut self) {
        RUNNING.set(self.was_running);
        with_tapes(&mut self.restore);
    }
}

/// Runs a program and records the keys and parameters that it uses, including replayed ones.
pub(crate) fn record<R>(program: impl FnOnce() -> R) -> (R, Tape) {
    let mut outer = with_tapes(|tapes| tapes.recorded.replace(Tape::default()));
    let mut tape = None;
    let guard = RestoreTapes {
        was_running: RUNNING.replace(true),
        restore: |tapes| tape = std::mem::replace(&mut tapes.recorded, outer.take()),
    };
    let result = program();
    drop(guard);
    (result, tape.unwrap_or_default())
}

/// Replays a tape while the program runs. Also returns whether the program used exactly the contents of the
/// tape.
pub(crate) fn play<R>(tape: Tape, program: impl FnOnce() -> R) -> (R, bool) {
    let mut outer = with_tapes(|tapes| std::mem::replace(tapes, Tapes { played: Some(tape), ..Tapes::NONE }));
    let mut played = Tapes::NONE;
    let guard = RestoreTapes {
        was_running: RUNNING.replace(true),
        // The rest of the tape is dropped later, outside of the borrow.
        restore: |tapes| played = std::mem::replace(tapes, std::mem::replace(&mut outer, Tapes::NONE)),
    };
    let result = program();
    drop(guard);
    let is_finished = played.played.is_some_and(|tape| tape.draws.is_empty());
    (result, is_finished && !played.deviated)
}

/// Returns whether this thread executes the second run of a [`checkpoint`](crate::checkpoint()), for instance
/// in a backward pass. Modules with state that changes in the forward pass, such as running means, must not
/// change it then.
#[must_use]
pub fn is_replaying() -> bool {
    RUNNING.get() && with_tapes(|tapes| tapes.played.is_some())
}

/// Returns the next key of the replayed tape, or else a new key from `live`.
pub(crate) fn key(live: impl FnOnce() -> RandomKey) -> RandomKey {
    if !RUNNING.get() {
        return live();
    }
    let key = match next() {
        Some(Draw::Key(key)) => key,
        other => {
            deviate(other);
            live()
        }
    };
    with_tapes(|tapes| tapes.record(|| Draw::Key(key)));
    key
}

/// Returns an unused key to the tapes. Returns whether it came from a replayed tape, so that no generator
/// must take it back.
pub(crate) fn return_key(key: RandomKey) -> bool {
    RUNNING.get()
        && with_tapes(|tapes| {
            if let Some(tape) = &mut tapes.recorded
                && matches!(tape.draws.back(), Some(Draw::Key(last)) if *last == key)
            {
                tape.draws.pop_back();
            }
            tapes.played.as_mut().is_some_and(|tape| {
                tape.draws.push_front(Draw::Key(key));
                true
            })
        })
}

/// Returns the next parameter of the replayed tape, or else the current tensor from `live`.
pub(crate) fn parameter(live: impl FnOnce() -> Tensor) -> Tensor {
    if !RUNNING.get() {
        return live();
    }
    let tensor = match next() {
        Some(Draw::Parameter(tensor)) => tensor,
        other => {
            deviate(other);
            live()
        }
    };
    with_tapes(|tapes| tapes.record(|| Draw::Parameter(tensor.clone())));
    tensor
}

/// Returns the next entry of the replayed tape. Marks a deviation if the tape is finished.
fn next() -> Option<Draw> {
    with_tapes(|tapes| {
        let next = tapes.played.as_mut()?.draws.pop_front();
        tapes.deviated |= next.is_none();
        next
    })
}

/// Marks a deviation if the tape held another entry. Drops the entry outside of the borrow, because dropping
/// external memory may call code that uses parameters.
fn deviate(draw: Option<Draw>) {
    if draw.is_some() {
        with_tapes(|tapes| tapes.deviated = true);
    }
}

impl Tapes {
    const NONE: Self = Self { played: None, deviated: false, recorded: None };

    fn record(&mut self, draw: impl FnOnce() -> Draw) {
        if let Some(tape) = &mut self.recorded {
            tape.draws.push_back(draw());
        }
    }
}
