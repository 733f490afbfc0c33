//! Which op this thread works for, and how other threads come to work for it too.
//!
//! Beside its places, each thread has a stack of running ops. An op that starts while another one of the same tracker
//! runs is a part of that one. Worker threads join an op by an explicit hand-over: the op's thread captures a
//! [`Context`], and each worker enters it.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::thread_local;

#[cfg(shuttle)]
use shuttle::thread_local;

use super::tracker::Execution;
use crate::scope::{NotSend, Place, PlaceGuard, here};

/// One entry of a thread's stack of running ops.
#[derive(Debug)]
struct Frame {
    /// Tells the frame from all others that the thread ever has.
    ticket: u64,
    execution: Option<Arc<Execution>>,
    /// Whether what lies below belongs to other work. A worker that waits may pick up a piece of another op, and that
    /// piece is no part of the op that the worker was busy with.
    is_entry: bool,
}

#[derive(Debug)]
struct Stack {
    frames: Vec<Frame>,
    /// Those of ops that have not ended, but something that began before them has.
    cut_off: Vec<Frame>,
    tickets: u64,
}

thread_local! {
    static RUNNING: RefCell<Stack> =
        const { RefCell::new(Stack { frames: Vec::new(), cut_off: Vec::new(), tickets: 0 }) };
}

/// The unfinished op of tracker `tracker` that the current thread works for, if any.
pub(crate) fn running_op_of(tracker: u64) -> Option<Arc<Execution>> {
    let found = RUNNING.try_with(|stack| {
        for frame in stack.borrow().frames.iter().rev() {
            match &frame.execution {
                Some(execution) if execution.is_running_for(tracker) => return Some(Arc::clone(execution)),
                _ if frame.is_entry => return None,
                _ => {}
            }
        }
        None
    });
    found.ok().flatten()
}

/// Makes `execution` the running op of the current thread, whose stack holds it, until the guard is dropped. A thread that
/// ends has no stack any more, and leaves it where it is.
pub(crate) fn enter_op(execution: &mut Option<Arc<Execution>>) -> Option<FrameGuard> {
    FrameGuard::push(execution, false)
}

/// Cuts the stack of running ops back when dropped.
#[derive(Debug)]
pub(crate) struct FrameGuard {
    ticket: u64,
    _not_send: NotSend,
}

impl FrameGuard {
    fn push(execution: &mut Option<Arc<Execution>>, is_entry: bool) -> Option<Self> {
        let ticket = RUNNING.try_with(|stack| {
            let stack = &mut *stack.borrow_mut();
            stack.tickets += 1;
            // Written where it stays: a frame put together elsewhere is moved in larger pieces than it was just written in, for
            // which the processor waits.
            stack.frames.push(Frame { ticket: 0, execution: None, is_entry: false });
            if let Some(top) = stack.frames.last_mut() {
                (top.ticket, top.is_entry) = (stack.tickets, is_entry);
                top.execution = execution.take();
            }
            stack.tickets
        });
        ticket.ok().map(|ticket| Self { ticket, _not_send: PhantomData })
    }

    /// What had entered.
    pub(crate) fn execution(&self) -> Option<Arc<Execution>> {
        let found = RUNNING.try_with(|stack| {
            let stack = stack.borrow();
            let mut frames = stack.frames.iter().rev().chain(&stack.cut_off);
            frames.find(|frame| frame.ticket == self.ticket)?.execution.clone()
        });
        found.ok().flatten()
    }

    /// Cuts the stack back, and hands out what had entered.
    pub(crate) fn leave(self) -> Option<Arc<Execution>> {
        let left = self.cut();
        // Nothing is left to cut.
        std::mem::forget(self);
        left
    }

    #[inline]
    fn cut(&self) -> Option<Arc<Execution>> {
        // As a rule one frame is to be cut.
        let only = RUNNING.try_with(|stack| {
            let frames = &mut stack.borrow_mut().frames;
            frames.pop_if(|top| top.ticket == self.ticket)
        });
        match only {
            Ok(Some(frame)) => frame.execution,
            _ => self.cut_many(),
        }
    }

    #[cold]
    fn cut_many(&self) -> Option<Arc<Execution>> {
        // Frames are dropped after the borrow has ended: a destructor may reach code that looks at the stack.
        let mut cut = RUNNING
            .try_with(|stack| {
                let Stack { frames, cut_off, .. } = &mut *stack.borrow_mut();
                if let Some(from) = frames.iter().rposition(|frame| frame.ticket == self.ticket) {
                    let (ops, others) = frames.drain(from + 1..).partition(|above| !above.is_entry);
                    cut_off.extend::<Vec<Frame>>(ops);
                    return frames.pop().into_iter().chain::<Vec<Frame>>(others).collect();
                }
                let among_cut = cut_off.iter().position(|frame| frame.ticket == self.ticket);
                among_cut.map(|place| cut_off.swap_remove(place)).into_iter().collect::<Vec<Frame>>()
            })
            .unwrap_or_default();
        cut.first_mut().and_then(|own| own.execution.take())
    }
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        drop(self.cut());
    }
}

/// What a thread works for: its place and its running op. Made by [`capture`], entered by worker threads.
#[derive(Clone, Debug, Default)]
pub struct Context {
    place: Place,
    execution: Option<Arc<Execution>>,
}

/// The current thread's place and running op, to hand over to other threads.
///
/// ```
/// use highwater_tracking::{Tracker, capture, here, module};
/// let tracker = Tracker::new();
/// let _scope = module("net");
/// let _run = tracker.begin("matmul");
/// let context = capture();
/// std::thread::scope(|threads| {
///     threads.spawn(|| {
///         let _context = context.enter();
///         assert_eq!(here().module.path(), "net");
///         assert!(tracker.begin("part").is_nested());
///     });
/// });
/// ```
#[must_use]
pub fn capture() -> Context {
    let top =
        RUNNING.try_with(|stack| stack.borrow().frames.last().and_then(|frame| frame.execution.clone()));
    Context { place: here(), execution: top.ok().flatten() }
}

impl Context {
    /// The place that was captured.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Makes the current thread work for what was captured until the guard is dropped. An op that has finished
    /// meanwhile is no longer joined.
    pub fn enter(&self) -> ContextGuard {
        let frame = FrameGuard::push(&mut self.execution.clone(), true);
        ContextGuard { _frame: frame, _place: self.place.enter() }
    }
}

/// Ends a thread's work for a [`Context`] when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the context is left when the guard is dropped"]
pub struct ContextGuard {
    _frame: Option<FrameGuard>,
    _place: PlaceGuard,
}
