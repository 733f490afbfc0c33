//! Parts of the pool that are steps' own: room for them.

use super::slow_path::Wanted;
use super::supply::Shortfall;
use super::{PolicyAllocator, State};
use crate::allocator::error::AllocError;
use crate::allocator::step_memory::{StepMemory, StepRequests};
use crate::base::ledger::Tag;
use crate::plan::Plan;
use crate::policy::Need;
use crate::pool::config::ConfiguredPolicy;

impl<P: ConfiguredPolicy> StepMemory for PolicyAllocator<P> {
    fn begin_run(&self, step: u64) -> bool {
        self.with_policy(|policy| policy.private_part().is_some_and(|part| part.begin_run(step)))
            .unwrap_or(false)
    }

    fn end_run(&self, step: u64) -> Option<StepRequests> {
        self.with_policy(|policy| policy.private_part()?.end_run(step))?
    }

    fn keep(&self, step: u64, plan: &Plan) -> Result<bool, AllocError> {
        self.write(|state| self.keep_in(state, step, plan)).unwrap_or(Ok(false))
    }

    fn forget(&self, step: u64) {
        self.with_policy(|policy| {
            if let Some(part) = policy.private_part() {
                part.forget(step);
            }
        });
        // Whoever waits may have it.
        self.retry.notify();
    }
}

impl<P: ConfiguredPolicy> PolicyAllocator<P> {
    fn keep_in(&self, state: &mut State<P>, step: u64, plan: &Plan) -> Result<bool, AllocError> {
        match state.policy.private_part().and_then(|part| part.keep(step, plan)) {
            None => return Ok(false),
            Some(true) => return Ok(true),
            Some(false) => {}
        }
        // In the next region, as a block of the part's size would be.
        let need = Need::new(plan.capacity()).with_alignment(plan.granule());
        let Some(rounded) = state.policy.rounded(need.bytes, need.alignment) else {
            self.with_part_forgotten(state, step);
            return Ok(false);
        };
        let wanted = Wanted { need, rounded, tag: Tag::default() };
        let mut grown = self.extend(state, &wanted);
        if grown.is_err() && self.config.garbage_collection && self.release_for(state, &wanted) {
            grown = self.extend(state, &wanted);
        }
        if state.policy.private_part().is_some_and(|part| part.is_kept()) {
            return Ok(true);
        }
        self.with_part_forgotten(state, step);
        let cause = grown.err().unwrap_or(Shortfall::Limit);
        Err(self.refuse(state, &wanted, cause, false, true).error)
    }

    fn with_part_forgotten(&self, state: &mut State<P>, step: u64) {
        if let Some(part) = state.policy.private_part() {
            part.forget(step);
        }
    }
}
