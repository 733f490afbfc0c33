//! The attempts of a request: pending frees first, then other threads, then the out-of-memory report.

use super::{FRUITLESS_WAITS, Observation, StreamAllocator};
use crate::accounting::retry::Refusal;
use crate::allocator::Request;
use crate::allocator::attributes::AllocationAttributes;
use crate::allocator::error::AllocError;
use crate::allocator::oom::{OomReport, Verdict};
use crate::base::memory::Block;

impl StreamAllocator {
    /// Attempts to allocate until it succeeds or no pending free would help.
    fn attempt(&self, request: &Request<'_>) -> Result<Block, Refusal> {
        let at_once = AllocationAttributes { retry_on_failure: false, brief: true, ..request.attributes };
        let at_once = request.with_attributes(at_once);
        let (mut fruitless, mut before) = (0, None::<Observation>);
        loop {
            let error = match self.pool.allocate(&at_once) {
                Ok(block) => return Ok(block),
                Err(error) => error,
            };
            let Some((in_use, verdict)) = error.out_of_memory().map(|report| (report.in_use, report.verdict))
            else {
                return Err(Refusal { error, wait: false });
            };
            // `wait_for` first asks about all pending frees.
            let mut all = None;
            let suffices = |freed: &[&Block]| {
                let freed: Vec<Block> = freed.iter().map(|block| **block).collect();
                let all = *all.get_or_insert(freed.len());
                self.pool.would_fit(request, &freed).unwrap_or(freed.len() == all)
            };
            match self.pending.wait_for(suffices) {
                Ok(true) if fruitless < FRUITLESS_WAITS => {
                    let passed = self.pending.passed_by_now();
                    fruitless += u32::from(passed.is_empty());
                    passed.into_iter().for_each(|block| self.free_pending(block));
                }
                // The pool's answer, the pending frees and the other threads are read at different moments. Only an
                // attempt between two reads shows that other threads hold nothing.
                Ok(suffices) => {
                    if let Some(before) = before {
                        let nothing_held = !suffices && self.nothing_else_in_use(in_use, &before);
                        // Pinned memory returns without a free.
                        let alone = before.alone && verdict != Verdict::Pinned && self.still_alone(&before);
                        return Err(Refusal { error, wait: !(nothing_held || alone) });
                    }
                }
                Err(error) => return Err(Refusal { error: self.source_error(error), wait: false }),
            }
            before = Some(Observation {
                pushed: self.pending.pushed(),
                allocations: self.allocations(),
                alone: !self.others_may_free(),
            });
        }
    }

    /// Whether all bytes in use during an attempt were pending before and after it, without an allocation between. Then
    /// no other thread holds anything to free.
    fn nothing_else_in_use(&self, in_use: u64, before: &Observation) -> bool {
        let sum = |blocks: Vec<&Block>| Some(blocks.into_iter().map(|block| block.bytes).sum());
        let pending = self.pending.with_first(before.pushed, sum).unwrap_or(0);
        in_use <= pending && self.allocations() == before.allocations
    }

    /// Whether no other thread could have freed since: a new thread has allocated by now, or is registered.
    fn still_alone(&self, before: &Observation) -> bool {
        !self.others_may_free() && self.allocations() == before.allocations
    }

    /// Returns the number of allocations so far.
    fn allocations(&self) -> u64 {
        self.pool.stats().num_allocs
    }

    pub(super) fn allocate_or_wait(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let error = match self.attempt(request) {
            Ok(block) => return Ok(block),
            Err(Refusal { error, wait: false }) => return Err(error),
            Err(refusal) => refusal.error,
        };
        if !request.attributes.retry_on_failure || self.retry_timeout.is_zero() {
            return Err(error);
        }
        self.retry.allocate_as(self.pool.wait_key(request), self.retry_timeout, |_last| self.attempt(request))
    }

    /// Completes the brief report of a request that gives up.
    #[cold]
    pub(super) fn explain(&self, request: &Request<'_>, error: AllocError) -> AllocError {
        let AllocError::OutOfMemory(brief) = error else { return error };
        if request.attributes.brief {
            return AllocError::OutOfMemory(brief);
        }
        let report = self.with_pending(request, self.pool.refusal(request, brief.verdict));
        AllocError::OutOfMemory(Box::new(OomReport { waited: brief.waited, ..report }))
    }

    /// Adds the pending frees to the pool's report. Sets the verdict to pinned if they cause the failure.
    pub(super) fn with_pending(&self, request: &Request<'_>, mut report: OomReport) -> OomReport {
        let would_fit = |freed: &[Block]| match freed {
            [] => None,
            freed => self.pool.would_fit(request, freed),
        };
        let (pending, waiting) = self.pending_with(would_fit);
        report.what_if.pending_done = report.what_if.pending_done.or(waiting);
        report.pending.blocks += pending.blocks;
        report.pending.bytes += pending.bytes;
        report.pending.stranded_bytes += pending.stranded_bytes;
        let unreserved = report.limit.map_or(0, |limit| limit.saturating_sub(report.reserved));
        let lost = pending.stranded_bytes > 0
            && report.free.saturating_add(unreserved) < report.rounded
            && report.rounded
                <= report.free.saturating_add(unreserved).saturating_add(pending.stranded_bytes);
        if matches!(report.verdict, Verdict::Exhausted | Verdict::Fragmented)
            && (waiting == Some(true) || lost)
        {
            report.verdict = Verdict::Pinned;
        }
        report
    }

    /// Whether another thread may free. Pending blocks are freed already.
    pub(super) fn others_may_free(&self) -> bool {
        self.retry.others_may_free(|| {
            let pending = |blocks: Vec<&Block>| Some(blocks.into_iter().copied().collect());
            let pending: Vec<Block> = self.pending.with_first(u64::MAX, pending).unwrap_or_default();
            self.pool.has_orphaned_blocks(&pending)
        })
    }
}
