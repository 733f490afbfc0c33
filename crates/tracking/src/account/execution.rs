//! One execution of an op, with the tracking allocators that it opens.

use std::sync::Arc;

use bfc_core::sync::SpinMutex;
use bfc_core::{Allocator, OwnerId};

use super::allocator::TrackingAllocator;
use super::state::TrackerState;
use crate::tally::Figures;

/// One execution of an op, shared by its thread, its nested ops and its workers.
#[derive(Debug)]
pub(crate) struct Execution {
    /// The tracker's number.
    tracker: u64,
    /// The op's row in the totals.
    pub(super) row: usize,
    pub(super) owner: OwnerId,
    /// The number of the thread that began the op.
    pub(super) thread: u64,
    accounts: SpinMutex<Accounts>,
}

/// The tracking allocators of an op, one for each allocator that it uses. Most ops use one.
#[derive(Debug, Default)]
struct Accounts {
    /// Whether the op has finished, so that no further allocator joins it.
    is_closed: bool,
    first: Option<Arc<TrackingAllocator>>,
    others: Vec<Arc<TrackingAllocator>>,
}

impl Accounts {
    fn iter(&self) -> impl Iterator<Item = &Arc<TrackingAllocator>> {
        self.first.iter().chain(&self.others)
    }

    /// Returns the figures of the op.
    fn figures(&self) -> Figures {
        let live_before = self.first.as_ref().map_or(0, |first| first.live_before());
        let mut figures = Figures { live_before, ..Figures::default() };
        if let Some(first) = &self.first {
            first.add_to(&mut figures);
        }
        self.others.iter().for_each(|account| account.add_to(&mut figures));
        figures
    }
}

impl Execution {
    pub(super) fn new(
        tracker: u64,
        row: usize,
        owner: OwnerId,
        thread: u64,
        first: Option<Arc<TrackingAllocator>>,
    ) -> Self {
        let accounts = SpinMutex::new(Accounts { first, ..Accounts::default() });
        Self { tracker, row, owner, thread, accounts }
    }

    /// Whether this is an op of `tracker` that has not finished.
    pub(crate) fn is_running_for(&self, tracker: u64) -> bool {
        self.tracker == tracker && !self.accounts.lock().is_closed
    }

    /// See [`OpRun::track`](super::OpRun::track).
    pub(super) fn track(&self, base: &Arc<dyn Allocator>, tracker: &Arc<TrackerState>) -> Arc<dyn Allocator> {
        let mut accounts = self.accounts.lock();
        if accounts.is_closed {
            return Arc::clone(base);
        }
        if let Some(account) = accounts.iter().find(|account| account.is_for(base)) {
            return Arc::clone(account) as Arc<dyn Allocator>;
        }
        let account = TrackingAllocator::for_op(base, self.owner, self.thread, tracker);
        match accounts.first {
            None => accounts.first = Some(Arc::clone(&account)),
            Some(_) => accounts.others.push(Arc::clone(&account)),
        }
        account
    }

    /// Finishes the op and returns its figures. Keeps the first account for [`reopen`](Self::reopen) unless another
    /// thread refers to the execution; then the execution must not keep the pool alive.
    pub(super) fn close(self: &mut Arc<Self>) -> Figures {
        if let Some(own) = Arc::get_mut(self) {
            let accounts = own.accounts.get_mut();
            let figures = accounts.figures();
            accounts.is_closed = true;
            accounts.others.clear();
            return figures;
        }
        let closed = Accounts { is_closed: true, ..Accounts::default() };
        // The accounts are dropped after the lock is released.
        let accounts = std::mem::replace(&mut *self.accounts.lock(), closed);
        accounts.figures()
    }

    /// Begins another execution with the account of a finished one. Returns the account, or `None` if a block, a handle or
    /// another thread still refers to it.
    pub(super) fn reopen(
        self: &mut Arc<Self>,
        tracker: u64,
        row: usize,
        owner: OwnerId,
        thread: u64,
    ) -> Option<Arc<TrackingAllocator>> {
        let own = Arc::get_mut(self).filter(|own| own.tracker == tracker)?;
        let accounts = own.accounts.get_mut();
        let account = accounts.first.as_mut()?;
        Arc::get_mut(account)?.reopen(owner, thread);
        accounts.is_closed = false;
        (own.row, own.owner, own.thread) = (row, owner, thread);
        Some(Arc::clone(account))
    }
}
