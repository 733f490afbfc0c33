//! The running ops of each thread, and the transfer of an op to worker threads.
//!
//! Each thread has a stack of running ops. An op that starts while another op of the same tracker runs is a part of
//! that op. A worker thread joins an op explicitly: the op's thread captures a [`Context`], and the worker enters it.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::thread_local;

#[cfg(shuttle)]
use shuttle::thread_local;

use super::execution::Execution;
use crate::scope::{NotSend, Scope, ScopeGuard, ScopePath};

/// One entry of a thread's stack of running ops.
#[derive(Debug)]
struct Frame {
    /// Unique among all frames of the thread.
    ticket: u64,
    execution: Option<Arc<Execution>>,
    /// Whether the frames below belong to other work. A waiting worker may execute a task of another op, which is no
    /// part of the op that the worker was waiting in.
    is_entry: bool,
}

#[derive(Debug)]
struct Stack {
    frames: Vec<Frame>,
    tickets: u64,
}

thread_local! {
    static RUNNING: RefCell<Stack> = const { RefCell::new(Stack { frames: Vec::new(), tickets: 0 }) };
    /// Whether the stack has frames. Most ops begin on an empty stack, and reading this is cheaper.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Returns the unfinished op of tracker `tracker` that the current thread works for, if any.
#[inline]
pub(crate) fn running_op_of(tracker: u64) -> Option<Arc<Execution>> {
    IS_RUNNING.with(Cell::get).then(|| find_running(tracker)).flatten()
}

fn find_running(tracker: u64) -> Option<Arc<Execution>> {
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

/// Removes its frame, and all frames above it, from the thread's stack when dropped.
#[derive(Debug)]
pub(crate) struct FrameGuard {
    ticket: u64,
    _not_send: NotSend,
}

impl FrameGuard {
    /// Makes `execution` the running op of the current thread. Returns `None` on a thread that is ending.
    pub(crate) fn enter(execution: Arc<Execution>) -> Option<Self> {
        Self::push(Some(execution), false)
    }

    fn push(execution: Option<Arc<Execution>>, is_entry: bool) -> Option<Self> {
        let ticket = RUNNING.try_with(|stack| {
            let stack = &mut *stack.borrow_mut();
            stack.tickets += 1;
            stack.frames.push(Frame { ticket: stack.tickets, execution, is_entry });
            IS_RUNNING.with(|running| running.set(true));
            stack.tickets
        });
        ticket.ok().map(|ticket| Self { ticket, _not_send: PhantomData })
    }
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        // Frames are dropped after the borrow ends: a destructor may reach code that reads the stack.
        let top = RUNNING.try_with(|stack| {
            let frames = &mut stack.borrow_mut().frames;
            let top = frames.last().is_some_and(|frame| frame.ticket == self.ticket).then(|| frames.pop());
            IS_RUNNING.with(|running| running.set(!frames.is_empty()));
            top
        });
        if matches!(top, Ok(None)) {
            self.cut();
        }
    }
}

impl FrameGuard {
    /// Removes its frame from below others, unless another frame's removal has done so.
    #[cold]
    fn cut(&self) {
        let _removed = RUNNING.try_with(|stack| {
            let frames = &mut stack.borrow_mut().frames;
            let own = frames.iter().rposition(|frame| frame.ticket == self.ticket)?;
            let removed = frames.split_off(own);
            IS_RUNNING.with(|running| running.set(!frames.is_empty()));
            Some(removed)
        });
    }
}

/// The scope and the running op of a thread. [`capture`] makes it, and worker threads enter it.
#[derive(Clone, Debug, Default)]
pub struct Context {
    scope: Scope,
    execution: Option<Arc<Execution>>,
}

/// Captures the current thread's scope and running op for other threads.
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
    Context { scope: Scope::now(), execution: top.ok().flatten() }
}

impl Context {
    /// Returns the captured scope.
    #[must_use]
    pub const fn place(&self) -> ScopePath {
        self.scope.place
    }

    /// Makes the current thread work for the captured op in the captured scope until the guard is dropped. Does not
    /// join an op that has finished.
    pub fn enter(&self) -> ContextGuard {
        let frame = FrameGuard::push(self.execution.clone(), true);
        ContextGuard { _frame: frame, _scope: self.scope.enter() }
    }
}

/// Ends a thread's work for a [`Context`] when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the context is left when the guard is dropped"]
pub struct ContextGuard {
    _frame: Option<FrameGuard>,
    _scope: ScopeGuard,
}
