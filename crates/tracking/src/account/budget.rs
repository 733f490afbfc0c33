//! Budgets: limits on the live bytes of a module.
//!
//! The pool's ledger alone stores the live bytes of a module. An allocation checks its budgets before and after. Bytes
//! that other threads are allocating at that time count as reserved, so that the threads together stay within the
//! budget. While no budget is set anywhere, an allocation pays for one load.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bfc_core::{
    AllocError, Allocator, Block, Bytes, Category, CheckpointedScope, ExceededBudget, OomReport, OwnerId,
    Request, Verdict, WhatIf,
};

use crate::scope::{ScopeGuard, intern_path};

/// The number of budgets; the only value that is read while there are none.
static SET: AtomicUsize = AtomicUsize::new(0);

/// All active budgets.
static BUDGETS: Mutex<Vec<Arc<Limit>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A limit on the live bytes of a module and all modules below it, in each pool, until it is dropped.
///
/// A request that would exceed it fails with [`Verdict::OverBudget`] and a complete report, after the
/// [callbacks](bfc_core::LastResort) have run. Granted bytes count, including earlier ones and parameters that were
/// moved into the module. The budget applies to all threads and trackers of the process, but only to allocations of a
/// tracker's ops. If several budgets apply to a module, all of them must hold.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, KIB, Request, Verdict};
/// use highwater_tracking::{Budget, Tracker, module};
/// let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(8)));
/// let pool: Arc<dyn Allocator> = Arc::new(pool);
/// let tracker = Tracker::new();
///
/// let budget = Budget::new("decoder", Bytes::kib(100));
/// let _scope = module("decoder");
/// let op = tracker.begin("matmul").track(&pool);
/// let first = op.allocate(&Request::new(64 * KIB))?;
/// let error = op.allocate(&Request::new(64 * KIB)).unwrap_err();
/// assert_eq!(error.out_of_memory().unwrap().verdict, Verdict::OverBudget);
/// drop(budget);
/// assert!(op.allocate(&Request::new(64 * KIB)).is_ok());
/// # Ok::<(), bfc_core::AllocError>(())
/// ```
#[must_use = "the budget ends when this is dropped"]
pub struct Budget {
    limit: Arc<Limit>,
}

/// An active budget.
struct Limit {
    scope: OwnerId,
    bytes: u64,
    /// Bytes of permitted requests that may not be in the ledger yet.
    under_way: Mutex<u64>,
    changed: Condvar,
}

impl Budget {
    /// Limits the module with this path and all modules below it to `bytes` live bytes. The empty path means all
    /// memory.
    pub fn new(module: &str, bytes: Bytes) -> Self {
        Self::of(intern_path(OwnerId::ROOT, module), bytes)
    }

    /// Limits an owner and all owners below it to `bytes` live bytes.
    pub fn of(scope: OwnerId, bytes: Bytes) -> Self {
        let (under_way, changed) = (Mutex::new(0), Condvar::new());
        let limit = Arc::new(Limit { scope, bytes: bytes.get(), under_way, changed });
        lock(&BUDGETS).push(Arc::clone(&limit));
        SET.fetch_add(1, Ordering::Release);
        Self { limit }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        Bytes(self.limit.bytes)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        SET.fetch_sub(1, Ordering::Release);
        lock(&BUDGETS).retain(|limit| !Arc::ptr_eq(limit, &self.limit));
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { scope, bytes, .. } = &*self.limit;
        f.debug_struct("Budget").field("scope", scope).field("bytes", bytes).finish()
    }
}

impl ScopeGuard {
    /// Limits the live bytes of this scope's module and all modules below it until the scope is left. See [`Budget`],
    /// which can also outlast a scope.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// use highwater_tracking::module;
    /// let _scope = module("encoder").limit(Bytes::mib(12));
    /// ```
    pub fn limit(self, bytes: Bytes) -> LimitedGuard {
        LimitedGuard { budget: Budget::of(self.module, bytes), _place: self }
    }
}

/// Leaves a scope and ends its budget when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the guard leaves the module when it is dropped, so bind it to a name"]
pub struct LimitedGuard {
    budget: Budget,
    _place: ScopeGuard,
}

impl LimitedGuard {
    /// Returns the budget.
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }
}

/// Returns whether any budget is set.
#[inline]
pub(crate) fn is_any_set() -> bool {
    SET.load(Ordering::Acquire) > 0
}

/// Returns whether a budget applies to the owner.
pub(crate) fn covers(owner: OwnerId) -> bool {
    is_any_set() && lock(&BUDGETS).iter().any(|limit| owner.is_below(limit.scope))
}

/// Allocates from `pool` within all budgets that apply to the request's owner.
#[cold]
pub(crate) fn allocate_within(pool: &dyn Allocator, request: &Request<'_>) -> Result<Block, AllocError> {
    let limits: Vec<Arc<Limit>> = {
        let all = lock(&BUDGETS);
        all.iter().filter(|limit| request.tag.owner.is_below(limit.scope)).cloned().collect()
    };
    let mut passes = Vec::with_capacity(limits.len());
    for limit in &limits {
        passes.push(Pass::take(limit, pool, request)?);
    }
    let block = pool.allocate(request)?;
    // The pool may have granted more than requested.
    let over = limits.iter().find(|limit| pool.owner_bytes(limit.scope).live > limit.bytes);
    let Some(over) = over.filter(|_| !block.is_empty()) else { return Ok(block) };
    // SAFETY: the pool has just allocated the block, and no other code has seen it.
    if unsafe { pool.deallocate(block) }.is_err() {
        return Ok(block);
    }
    Err(over.refusal(pool, request))
}

/// A reservation of bytes in a budget, until dropped.
struct Pass<'a> {
    limit: &'a Limit,
    bytes: u64,
}

impl<'a> Pass<'a> {
    fn take(limit: &'a Limit, pool: &dyn Allocator, request: &Request<'_>) -> Result<Self, AllocError> {
        let bytes = request.bytes;
        let mut under_way = lock(&limit.under_way);
        loop {
            let live = pool.owner_bytes(limit.scope).live;
            if live.saturating_add(*under_way).saturating_add(bytes) <= limit.bytes {
                *under_way += bytes;
                return Ok(Self { limit, bytes });
            }
            if *under_way == 0 {
                drop(under_way);
                return Err(limit.refusal(pool, request));
            }
            // Reserved bytes may already be in the ledger, and then count twice.
            under_way = limit.changed.wait(under_way).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *lock(&self.limit.under_way) -= self.bytes;
        self.limit.changed.notify_all();
    }
}

impl Limit {
    fn refusal(&self, pool: &dyn Allocator, request: &Request<'_>) -> AllocError {
        let mut report = pool.refusal(request, Verdict::OverBudget);
        let known = !report.holdings.is_empty();
        report.holdings = report.holdings.below(self.scope);
        // The report's own figures, so that its holders add up.
        let live = if known { report.holdings.total() } else { pool.owner_bytes(self.scope).live };
        report.budget = Some(ExceededBudget { scope: self.scope, limit: self.bytes, live });
        report.holders = report.holdings.by_owner();
        report.holders.truncate(5);
        let mut what_if = WhatIf::default();
        what_if.checkpointed = self.without_activations(&report);
        report.what_if = what_if;
        AllocError::OutOfMemory(Box::new(report))
    }

    /// A budget limits sums, regardless of where blocks are placed.
    fn without_activations(&self, report: &OomReport) -> Option<CheckpointedScope> {
        let kept = report.holdings.all().iter().filter(|held| held.tag.category == Category::Activation);
        let kept = bfc_core::Holdings::sum(kept.map(|held| (held.tag, held.bytes)));
        let (scope, bytes) = *kept.by_scope().first()?;
        let live = report.holdings.total() - bytes;
        Some(CheckpointedScope { scope, bytes, fits: live.saturating_add(report.rounded) <= self.bytes })
    }
}

#[cfg(test)]
mod tests;
