//! The steps of a training loop, as far as the phases of ops show them, and the age of live memory in steps.
//!
//! A step ends with the last optimizer op in a row after a backward op. The pool numbers its allocations, so the number of the first
//! allocation of each step yields the step of every block. A block stores no time.

use bfc_core::sync::SpinMutex;
use bfc_core::sync::atomic::{AtomicU32, Ordering};
use bfc_core::{Block, PoolId};

use crate::record::StepPart;
use crate::scope::Phase;

/// The most steps whose first allocation is known. Beyond it, every second one of the older steps is forgotten.
const MAX_STEPS: usize = 1024;

/// The number of completed steps.
#[derive(Debug, Default)]
pub(crate) struct StepCount {
    /// Steps after which another op has begun.
    ended: u64,
    part: StepPart,
    /// The first thread that ran a backward op. Others may run ops of other steps at the same time.
    thread: Option<u64>,
}

impl StepCount {
    /// Notes that an op begins on a thread. Returns the number of steps before it if it begins another step.
    #[inline]
    pub(super) fn begin_op(&mut self, phase: Phase, thread: u64) -> Option<u64> {
        let next = self.part.followed_by(phase);
        // Most ops belong to the same part as the op before.
        if next == self.part {
            return None;
        }
        if thread != *self.thread.get_or_insert(thread) {
            return None;
        }
        let has_ended = std::mem::replace(&mut self.part, next) == StepPart::Optimizer;
        self.ended += u64::from(has_ended);
        has_ended.then_some(self.ended)
    }

    pub(super) fn completed(&self) -> u64 {
        self.ended + u64::from(self.part == StepPart::Optimizer)
    }
}

/// The first allocations of steps.
#[derive(Debug, Default)]
pub(crate) struct StepLog {
    /// The pool of the last allocation that [`note_first`](Self::note_first) saw; 0 at the begin of a step. Only another
    /// pool may lack the first allocation of the step.
    last_pool: AtomicU32,
    state: SpinMutex<StepStarts>,
}

#[derive(Debug, Default)]
struct StepStarts {
    step: u64,
    firsts: Vec<First>,
    /// The pools, each with the last step whose first allocation is known.
    pools: Vec<(PoolId, u64)>,
}

/// The first allocation of a step in a pool.
#[derive(Clone, Copy, Debug)]
struct First {
    pool: PoolId,
    serial: u64,
    step: u64,
}

impl StepLog {
    /// Notes that a step begins.
    #[cold]
    pub(super) fn begin(&self, step: u64) {
        let state = &mut *self.state.lock();
        state.step = step;
        self.last_pool.store(0, Ordering::Relaxed);
    }

    /// Notes an allocation.
    #[inline]
    pub(super) fn note(&self, block: &Block) {
        if self.last_pool.load(Ordering::Relaxed) != block.pool.get() {
            self.note_first(block);
        }
    }

    #[cold]
    fn note_first(&self, block: &Block) {
        let Some(serial) = block.serial() else { return };
        let StepStarts { step, firsts, pools } = &mut *self.state.lock();
        self.last_pool.store(block.pool.get(), Ordering::Relaxed);
        match pools.iter_mut().find(|(pool, _)| *pool == block.pool) {
            Some((_, known)) if known == step => return,
            Some((_, known)) => *known = *step,
            None => pools.push((block.pool, *step)),
        }
        if firsts.len() >= MAX_STEPS {
            let mut index = 0;
            firsts.retain(|_| {
                index += 1;
                index % 2 == 0 || index > MAX_STEPS * 3 / 4
            });
        }
        firsts.push(First { pool: block.pool, serial, step: *step });
    }

    /// Returns the first allocations that are known now.
    pub(super) fn firsts(&self) -> FirstAllocations {
        FirstAllocations(self.state.lock().firsts.clone())
    }
}

/// The known first allocations of steps, in the order of the steps.
#[derive(Debug)]
pub(super) struct FirstAllocations(Vec<First>);

impl FirstAllocations {
    /// Returns the number of steps before an allocation of a pool.
    pub(super) fn steps_before(&self, pool: PoolId, serial: u64) -> u64 {
        let mut of_pool = self.0.iter().rev().filter(|first| first.pool == pool);
        of_pool.find(|first| first.serial <= serial).map_or(0, |first| first.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_the_last_optimizer_op_in_a_row() {
        use Phase::{Backward, Forward, Optimizer};
        let mut steps = StepCount::default();
        // The optimizer allocates its state first. An op of the forward phase runs between backward ops.
        let phases = [
            Optimizer, Forward, Backward, Forward, Backward, Optimizer, Optimizer, Forward, Backward,
            Optimizer,
        ];
        let begun = phases.map(|phase| (steps.begin_op(phase, 1), steps.completed()));
        assert_eq!(begun.map(|(_, completed)| completed), [0, 0, 0, 0, 0, 1, 1, 1, 1, 2]);
        assert_eq!(begun.iter().filter_map(|(begun, _)| *begun).collect::<Vec<_>>(), [1]);
        assert_eq!(begun[7].0, Some(1));
        // Ops of other threads begin no step.
        assert_eq!(steps.begin_op(Forward, 2), None);
        assert_eq!(steps.begin_op(Forward, 1), Some(2));
    }

    #[test]
    fn the_log_is_bounded_and_recent_steps_are_exact() {
        let (log, pool) = (StepLog::default(), PoolId::next());
        let steps = 5000;
        for step in 1..=steps {
            log.begin(step);
            // Each step allocates three blocks.
            (0..3).for_each(|block| log.note(&Block { id: 3 * step + block, pool, ..Block::EMPTY }));
        }
        let firsts = log.firsts();
        assert!(firsts.0.len() <= MAX_STEPS);
        let before = |serial| firsts.steps_before(pool, serial);
        assert_eq!([2, 3 * steps - 1, 3 * steps, 3 * steps + 2].map(before), [0, steps - 1, steps, steps]);
        let middle = before(3 * 2500);
        assert!((2300..=2500).contains(&middle), "{middle}");
    }
}
