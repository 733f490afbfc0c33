//! The books of a tracker: what its finished ops add up to, and what waits to be used again.
//!
//! Every op execution has a tracking allocator of its own, which lives as long as the op's last allocation. Taking both
//! from here, and putting them back, keeps the heap out of the path of every op. All of it stands behind one lock, which
//! an op takes when it begins, when it turns to an allocator, when it ends, and when its last allocation is freed: while one
//! thread runs ops, that costs no atomic exchange.

use std::sync::Arc;

use bfc_core::sync::{BiasedGuard, BiasedMutex, ThreadNumber};
use bfc_core::{Allocator, LastResort, OwnerId};

use crate::allocator::TrackingAllocator;
use crate::record::Recorder;
use crate::saved::Saves;
use crate::totals::Totals;
use crate::tracker::Execution;

/// How many finished executions are kept: about as many as run at a time.
const IDLE_EXECUTIONS: usize = 64;

/// How many idle allocators are kept. All ops of a forward pass whose results wait for the backward pass come back in
/// one step, so this is about the number of ops in a large model.
const IDLE_ALLOCATORS: usize = 4096;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) recorder: Recorder,
    pub(crate) saves: Saves,
    /// Whom all allocators ask before a request fails.
    pub(crate) last_resort: Arc<LastResort>,
    open: BiasedMutex<Open>,
}

/// What the lock protects. Nothing in here has another handle, but for executions that a captured context refers to.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) totals: Totals,
    executions: Vec<Arc<Execution>>,
    allocators: Vec<Arc<TrackingAllocator>>,
}

impl Books {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            recorder: Recorder::default(),
            saves: Saves::default(),
            last_resort: Arc::default(),
            open: BiasedMutex::new(Open::default()),
        })
    }

    /// To be held for a moment: nothing may be called that comes back here.
    pub(crate) fn open(&self) -> BiasedGuard<'_, Open> {
        self.open.lock(ThreadNumber::current())
    }

    /// A tracking allocator over `inner` with all figures at zero: a recycled one if there is one.
    pub(crate) fn take_allocator(
        self: &Arc<Self>,
        inner: &Arc<dyn Allocator>,
        owner: OwnerId,
    ) -> Arc<TrackingAllocator> {
        let (books, inner) = (Arc::clone(self), Arc::clone(inner));
        let idle = self.open().allocators.pop();
        // What waits here has no other handle: only the last one is put here.
        if let Some(mut idle) = idle
            && let Some(allocator) = Arc::get_mut(&mut idle)
        {
            allocator.restart(inner, owner, books);
            return idle;
        }
        Arc::new(TrackingAllocator::for_op(inner, owner, books))
    }

    /// Keeps an allocator that nobody else has a handle of; one too many is dropped.
    pub(crate) fn put_allocator(&self, allocator: Arc<TrackingAllocator>) {
        let mut open = self.open();
        if open.allocators.len() < IDLE_ALLOCATORS {
            open.allocators.push(allocator);
        }
    }

    /// How many allocators wait.
    #[cfg(test)]
    pub(crate) fn idle_allocators(&self) -> usize {
        self.open().allocators.len()
    }
}

impl Open {
    /// A recycled execution, if there is one.
    pub(crate) fn take_execution(&mut self, row: usize, owner: OwnerId) -> Option<Arc<Execution>> {
        while let Some(mut idle) = self.executions.pop() {
            // A captured context may still refer to the finished op; it must not come to mean another one.
            if let Some(execution) = Arc::get_mut(&mut idle) {
                execution.restart(row, owner);
                return Some(idle);
            }
        }
        None
    }

    /// Keeps a finished execution; one too many is dropped.
    pub(crate) fn put_execution(&mut self, execution: Arc<Execution>) {
        if self.executions.len() < IDLE_EXECUTIONS {
            self.executions.push(execution);
        }
    }
}
