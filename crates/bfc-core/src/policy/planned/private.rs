//! Plans that come and go with a step, for which a part of the memory is kept that nobody else has.
//!
//! The policy then has the numbers of a fixed number of planned blocks, whatever the plan, so that no block of the fallback changes
//! its number when one comes or goes. While no run is open every need goes to the fallback, and the range, once it is there, is kept:
//! it is neither handed back nor lent. A run without a plan is learnt.

use std::collections::HashMap;
use std::sync::Arc;

use super::script::Script;
use super::{Planned, Slot};
use crate::allocator::step_memory::StepRequests;
use crate::plan::{Lifetime, Plan};
use crate::policy::{Need, Place, Policy, PrivatePart};

/// The most blocks of a plan that comes later: their numbers are kept free.
const MOST_BLOCKS: u32 = 1 << 14;

/// Whose plan it is, and what is going on.
#[derive(Clone, Debug, Default)]
pub(super) struct Private {
    /// The step that the part is for.
    step: Option<u64>,
    /// Whether a run of it is open.
    open: bool,
    /// The step was forgotten: the range is handed back once nothing lies in it.
    leaving: bool,
    learning: Option<Learning>,
}

/// What a run has asked for so far.
#[derive(Clone, Debug, Default)]
struct Learning {
    lifetimes: Vec<Lifetime>,
    planned: Vec<bool>,
    /// Which of them lives in a slot.
    live: HashMap<u32, usize>,
    time: u32,
}

impl<P: Policy> Planned<P> {
    /// Serves all by `fallback`, which should hold nothing yet, until a step has a plan.
    #[must_use]
    pub fn without_plan(fallback: P) -> Self {
        let mut planned = Self::with_script(Script::empty(), fallback);
        planned.numbers = MOST_BLOCKS;
        planned.private = Some(Private::default());
        planned
    }

    /// Whether needs are not the plan's, whatever they are.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.private.as_ref().is_some_and(|private| !private.open || self.script.entries.is_empty())
    }

    /// Whether nobody but a step may have what is free in the range.
    pub(super) const fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Places a need that no plan has, in a run that is learnt or outside of all.
    pub(super) fn place_closed(&mut self, need: &Need) -> Option<Place> {
        let place = self.place_aside(need)?;
        let can_plan = self.can_plan(need);
        if let Some(learning) = self.private.as_mut().and_then(|private| private.learning.as_mut()) {
            learning.note(need.bytes, place.slot, can_plan);
        }
        Some(place)
    }

    /// A block was freed.
    #[inline]
    pub(super) fn note_free(&mut self, slot: u32) {
        if let Some(private) = &mut self.private {
            if let Some(learning) = &mut private.learning {
                learning.note_free(slot);
            }
            if private.leaving && self.live == 0 {
                self.leave();
            }
        }
    }

    /// Forgets the plan, in whose range nothing lies.
    fn leave(&mut self) {
        self.release_range();
        self.follow_script(Script::empty());
        self.private = Some(Private::default());
    }

    fn follow_script(&mut self, script: Script) {
        self.slots = vec![Slot::Free; script.entries.len()];
        self.script = Arc::new(script);
        (self.position, self.due, self.strayed, self.followed) = (0, 0, 0, 0);
        (self.unmet, self.no_room) = (None, false);
    }
}

impl Learning {
    fn note(&mut self, bytes: u64, slot: u32, can_plan: bool) {
        self.live.insert(slot, self.lifetimes.len());
        self.lifetimes.push(Lifetime { bytes, start: self.time, end: u32::MAX });
        self.planned.push(can_plan);
        self.time = self.time.saturating_add(1);
    }

    fn note_free(&mut self, slot: u32) {
        if let Some(index) = self.live.remove(&slot) {
            self.lifetimes[index].end = self.time;
            self.time = self.time.saturating_add(1);
        }
    }

    /// What lives now outlives the run.
    fn finish(mut self) -> StepRequests {
        for &index in self.live.values() {
            (self.lifetimes[index].end, self.planned[index]) = (self.time, false);
        }
        StepRequests::new(self.lifetimes, self.planned)
    }
}

impl<P: Policy> PrivatePart for Planned<P> {
    fn begin_run(&mut self, step: u64) -> bool {
        let Some(private) = &mut self.private else { return false };
        if private.open || private.leaving || private.step.is_some_and(|other| other != step) {
            return false;
        }
        (private.step, private.open) = (Some(step), true);
        if self.script.entries.is_empty() {
            private.learning = Some(Learning::default());
        } else {
            self.begin_step();
        }
        true
    }

    fn end_run(&mut self, step: u64) -> Option<StepRequests> {
        let private = self.private.as_mut().filter(|private| private.step == Some(step) && private.open)?;
        private.open = false;
        private.learning.take().map(Learning::finish)
    }

    fn keep(&mut self, step: u64, plan: &Plan) -> Option<bool> {
        let private = self.private.as_ref()?;
        let of_step = private.step == Some(step) && !private.open && self.script.entries.is_empty();
        if !of_step || plan.blocks().len() > self.numbers as usize || plan.capacity() == 0 {
            return None;
        }
        self.follow_script(Script::new(plan));
        Some(self.take_range())
    }

    fn is_kept(&self) -> bool {
        self.range.is_some()
    }

    fn forget(&mut self, step: u64) {
        let Some(private) = self.private.as_mut().filter(|private| private.step == Some(step)) else {
            return;
        };
        (private.open, private.leaving, private.learning) = (false, true, None);
        if self.live == 0 {
            self.leave();
        }
    }
}
