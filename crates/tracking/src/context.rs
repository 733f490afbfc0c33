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

use crate::scope::{NotSend, Place, PlaceGuard, here};
use crate::tracker::Execution;

/// One entry of a thread's stack of running ops.
#[derive(Debug)]
struct Frame {
    execution: Option<Arc<Execution>>,
    /// Whether what lies below belongs to other work. A worker that waits may pick up a piece of another op, and that
    /// piece is no part of the op that the worker was busy with.
    is_entry: bool,
}

thread_local! {
    static RUNNING: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// The unfinished op of tracker `tracker` that the current thread works for, if any.
pub(crate) fn running_op_of(tracker: u64) -> Option<Arc<Execution>> {
    let found = RUNNING.try_with(|frames| {
        for frame in frames.borrow().iter().rev() {
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

/// Makes `execution` the running op of the current thread until the guard is dropped.
pub(crate) fn enter_op(execution: Arc<Execution>) -> FrameGuard {
    FrameGuard::push(Frame { execution: Some(execution), is_entry: false })
}

/// Cuts the stack of running ops back when dropped.
#[derive(Debug)]
pub(crate) struct FrameGuard {
    depth: usize,
    _not_send: NotSend,
}

impl FrameGuard {
    fn push(frame: Frame) -> Self {
        let depth = RUNNING.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            frames.push(frame);
            frames.len() - 1
        });
        Self { depth: depth.unwrap_or(usize::MAX), _not_send: PhantomData }
    }

    /// Cuts the stack back, and hands out what had entered.
    pub(crate) fn leave(self) -> Option<Arc<Execution>> {
        let left = self.cut();
        // Nothing is left to cut.
        std::mem::forget(self);
        left
    }

    fn cut(&self) -> Option<Arc<Execution>> {
        // As a rule one frame is to be cut.
        let only = RUNNING.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            if frames.len() == self.depth.wrapping_add(1) { frames.pop() } else { None }
        });
        if let Ok(Some(frame)) = only {
            return frame.execution;
        }
        // Each frame is dropped after the borrow has ended: its destructor may reach code that looks at the stack.
        let pop = || {
            let popped = RUNNING.try_with(|frames| {
                let mut frames = frames.borrow_mut();
                if frames.len() > self.depth { frames.pop() } else { None }
            });
            popped.ok().flatten()
        };
        let mut lowest = None;
        while let Some(frame) = pop() {
            lowest = frame.execution;
        }
        lowest
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
    let top = RUNNING.try_with(|frames| frames.borrow().last().and_then(|frame| frame.execution.clone()));
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
        let frame = Frame { execution: self.execution.clone(), is_entry: true };
        ContextGuard { _frame: FrameGuard::push(frame), _place: self.place.enter() }
    }
}

/// Ends a thread's work for a [`Context`] when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the context is left when the guard is dropped"]
pub struct ContextGuard {
    _frame: FrameGuard,
    _place: PlaceGuard,
}
