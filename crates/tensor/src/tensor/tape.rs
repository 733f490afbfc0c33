//! What a program draws from outside while it runs once, so that it draws the same when it runs again: random numbers
//! and parameters.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use crate::backend::RandomKey;
use crate::tensor::Tensor;

/// What a program drew, in order. Parameters are kept as any graph keeps them: with the values that they had, in their
/// own buffers, which whoever changes them leaves alone meanwhile.
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
    /// The parameters on it.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.draws.iter().filter_map(|draw| match draw {
            Draw::Parameter(tensor) => Some(tensor),
            Draw::Key(_) => None,
        })
    }
}

struct Tapes {
    /// What the running program is to draw.
    played: Option<Tape>,
    /// Whether it has drawn anything else.
    departed: bool,
    /// Where that is noted down.
    recorded: Option<Tape>,
}

thread_local! {
    /// Whether there is any tape: all that a thread without checkpoints pays for.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    // Without a destructor, so that a thread that ends still has it. It is empty then.
    static TAPES: ManuallyDrop<RefCell<Tapes>> = const { ManuallyDrop::new(RefCell::new(Tapes::NONE)) };
}

/// Calls `f` with the thread's tapes.
fn with_tapes<R>(f: impl FnOnce(&mut Tapes) -> R) -> R {
    TAPES.with(|tapes| f(&mut tapes.borrow_mut()))
}

/// Puts tapes back when the closure ends, also by a panic.
struct Return<F: FnMut(&mut Tapes)> {
    was_running: bool,
    put_back: F,
}

impl<F: FnMut(&mut Tapes)> Drop for Return<F> {
    fn drop(&mut self) {
        RUNNING.set(self.was_running);
        with_tapes(&mut self.put_back);
    }
}

/// Runs a program and notes down what it draws, also what it draws from a tape that is being played.
pub(crate) fn record<R>(program: impl FnOnce() -> R) -> (R, Tape) {
    let mut outer = with_tapes(|tapes| tapes.recorded.replace(Tape::default()));
    let mut tape = None;
    let guard = Return {
        was_running: RUNNING.replace(true),
        put_back: |tapes| tape = std::mem::replace(&mut tapes.recorded, outer.take()),
    };
    let result = program();
    drop(guard);
    (result, tape.unwrap_or_default())
}

/// Runs a program that draws what is on the tape. Also says whether it drew just that.
pub(crate) fn play<R>(tape: Tape, program: impl FnOnce() -> R) -> (R, bool) {
    let mut outer = with_tapes(|tapes| std::mem::replace(tapes, Tapes { played: Some(tape), ..Tapes::NONE }));
    let mut played = Tapes::NONE;
    let guard = Return {
        was_running: RUNNING.replace(true),
        // What is left of the tape is dropped where nobody is borrowing it.
        put_back: |tapes| played = std::mem::replace(tapes, std::mem::replace(&mut outer, Tapes::NONE)),
    };
    let result = program();
    drop(guard);
    let over = played.played.is_some_and(|tape| tape.draws.is_empty());
    (result, over && !played.departed)
}

/// Whether this thread runs the second run of a [`checkpoint`](crate::checkpoint()), for instance in a backward pass. Modules that
/// change state in forward, such as running means, leave it unchanged then.
#[must_use]
pub fn is_replaying() -> bool {
    RUNNING.get() && with_tapes(|tapes| tapes.played.is_some())
}

/// A key: that on the tape, else one that `live` draws.
pub(crate) fn key(live: impl FnOnce() -> RandomKey) -> RandomKey {
    if !RUNNING.get() {
        return live();
    }
    let key = match next() {
        Some(Draw::Key(key)) => key,
        other => {
            depart(other);
            live()
        }
    };
    with_tapes(|tapes| tapes.note(|| Draw::Key(key)));
    key
}

/// Takes a key back that was not used; whether it came from a tape, so that no source has to take it back.
pub(crate) fn give_back(key: RandomKey) -> bool {
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

/// A parameter's tensor: that on the tape, else what `live` says.
pub(crate) fn parameter(live: impl FnOnce() -> Tensor) -> Tensor {
    if !RUNNING.get() {
        return live();
    }
    let tensor = match next() {
        Some(Draw::Parameter(tensor)) => tensor,
        other => {
            depart(other);
            live()
        }
    };
    with_tapes(|tapes| tapes.note(|| Draw::Parameter(tensor.clone())));
    tensor
}

/// The next draw on the tape that is played. The program departed from a tape that is over although it draws more.
fn next() -> Option<Draw> {
    with_tapes(|tapes| {
        let next = tapes.played.as_mut()?.draws.pop_front();
        tapes.departed |= next.is_none();
        next
    })
}

/// Notes that the program drew something else than `draw`. Drops it without the borrow: the owner of a tensor's memory may use
/// parameters when it is dropped.
fn depart(draw: Option<Draw>) {
    if draw.is_some() {
        with_tapes(|tapes| tapes.departed = true);
    }
}

impl Tapes {
    const NONE: Self = Self { played: None, departed: false, recorded: None };

    fn note(&mut self, draw: impl FnOnce() -> Draw) {
        if let Some(tape) = &mut self.recorded {
            tape.draws.push_back(draw());
        }
    }
}
