//! The stack of scopes, phases and ops that each thread has pushed.

use std::cell::RefCell;
use std::sync::Arc;

use highwater_tracking::{OpRun, Phase, ScopeGuard, module, op_name, phase};

use crate::error::Error;
use crate::fork;
use crate::pool::PoolEntry;
use crate::table::{Kind, new_handle};

/// The most scopes of a thread at a time.
const MAX_DEPTH: usize = 4096;

/// An entry of the stack.
#[derive(Debug)]
enum OpenScope {
    Scope { _guard: ScopeGuard },
    Op { _op: OpenOp },
}

/// The entries of a thread with their handles. Popped from the top when the thread ends.
#[derive(Debug, Default)]
struct Stack(Vec<(u64, OpenScope)>);

impl Drop for Stack {
    fn drop(&mut self) {
        if fork::is_child() {
            // The entries belong to the parent, and the end of an op takes locks.
            return std::mem::forget(std::mem::take(&mut self.0));
        }
        while self.0.pop().is_some() {}
    }
}

thread_local! {
    /// Owns the guards of the thread, because a C caller only holds handles.
    static STACK: RefCell<Stack> = const { RefCell::new(Stack(Vec::new())) };
}

/// Enters a scope below the current one. A name with dots enters several.
pub(crate) fn push_scope(name: &str) -> Result<u64, Error> {
    check_depth()?;
    Ok(push(OpenScope::Scope { _guard: module(name) }))
}

/// Enters a phase in the current scope.
pub(crate) fn push_phase(entered: Phase) -> Result<u64, Error> {
    check_depth()?;
    Ok(push(OpenScope::Scope { _guard: phase(entered) }))
}

/// Begins an op of the pool's run. Until it is popped, the thread's allocations are a part of it.
pub(crate) fn push_op(pool: &Arc<PoolEntry>, name: &str) -> Result<u64, Error> {
    check_depth()?;
    Ok(push(OpenScope::Op { _op: OpenOp::begin(pool, name)? }))
}

/// Leaves the innermost entry of the thread. Any other is an error that changes nothing.
pub(crate) fn pop(handle: u64) -> Result<(), Error> {
    let unknown = || Error::Handle { handle, kind: "scope of this thread" };
    let entry = STACK.try_with(|stack| {
        let Stack(entries) = &mut *stack.borrow_mut();
        let at = entries.iter().rposition(|&(open, _)| open == handle).ok_or_else(unknown)?;
        let above = entries.len() - 1 - at;
        if above > 0 { Err(Error::ScopeOrder { handle, above }) } else { Ok(entries.pop()) }
    });
    // A thread that is ending has left all scopes.
    let entry = entry.unwrap_or_else(|_| Err(unknown()))?;
    // Dropped after the borrow ends, because the end of an op calls other code.
    drop(entry);
    Ok(())
}

/// Fails if the thread has the most scopes, or if it is ending.
fn check_depth() -> Result<(), Error> {
    let depth = STACK.try_with(|stack| stack.borrow().0.len()).map_err(|_| Error::ThreadEnds)?;
    if depth < MAX_DEPTH { Ok(()) } else { Err(Error::TooDeep { limit: MAX_DEPTH }) }
}

fn push(entry: OpenScope) -> u64 {
    let handle = new_handle(Kind::Scope);
    STACK.with_borrow_mut(|Stack(entries)| entries.push((handle, entry)));
    handle
}

/// A running op. Keeps its pool open.
#[derive(Debug)]
struct OpenOp {
    /// Dropped before the pool, from which it borrows.
    _run: OpRun<'static>,
    _pool: KeptOpen,
}

#[derive(Debug)]
struct KeptOpen(Arc<PoolEntry>);

impl OpenOp {
    fn begin(pool: &Arc<PoolEntry>, name: &str) -> Result<Self, Error> {
        pool.enter()?.keep();
        let kept = KeptOpen(Arc::clone(pool));
        // SAFETY: `kept` keeps the pool at this address, and drops it after the run.
        let entry: &'static PoolEntry = unsafe { &*Arc::as_ptr(pool) };
        let run = entry.run().tracker().begin_over(op_name(name), entry.allocator(), None);
        Ok(Self { _run: run, _pool: kept })
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.0.end_use();
    }
}
