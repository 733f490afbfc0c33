//! The policy that follows a plan.
//!
//! The planned range is one block of the fallback's space. The n-th allocation of a step, if it asks for what the plan
//! expects, goes where the plan says; everything else goes to the fallback.
//!
//! # Why no two blocks overlap
//! Time counts in allocations of the plan, and the step's position is the number of those that have passed. Between two
//! calls every planned block that is live is either *expected* (by the plan it is live at the allocation before the
//! position) or an *intruder*. Expected blocks are all live at one point of the plan's time, so the plan keeps them
//! apart. An intruder is kept apart by a look-up. When the position moves on, the blocks that should have gone are
//! looked at: those still live become intruders; when a step begins anew, all do. So it costs one look at each
//! planned block a step, and a step that follows the plan has no intruders, whatever the order of its frees.

use std::sync::Arc;

use crate::base::placement::Placement;
use crate::base::placement::PlanCounts;
use crate::plan::Plan;
use crate::policy::{PlacementRequest, Policy};
use intruders::Intruders;
use script::{Entry, Script};

mod intruders;
mod options;
mod policy;
mod range;
mod script;

pub use options::PlannedOptions;

/// How far from the position an allocation is looked for that is not the one expected: so many may be left out, or come
/// late, without the step losing its place.
const WINDOW: u32 = 32;

/// After so many unexpected allocations in a row they are not looked for any more until a step begins.
const LOST: u32 = 64;

/// What a slot of the plan holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    /// Nothing.
    #[default]
    Free,
    /// Its block, as the plan has it.
    Expected,
    /// Its block, after the time at which the plan has it gone.
    Overdue,
    /// A block that is not the plan's.
    Guest,
}

/// Follows a plan, and serves by another policy what departs from it.
///
/// A step begins anew after its last allocation, and when [`begin_step`](Self::begin_step) says so. A step that left out
/// some allocations, or had others in between, finds its place again within a few; one that is another altogether is
/// served by the fallback, and the plan is taken up again when an allocation like the plan's first one comes. None of that can make
/// blocks overlap: a place that is still occupied is refused to the plan, and the block goes to the fallback.
///
/// The planned range is taken from the fallback when memory is added, and handed back to it while nothing lies in it and
/// the memory is needed. If there is no other room at all, blocks that are not the plan's may lie in the range's holes.
///
/// ```
/// use bfc_core::{Bfc, Lifetime, PlacementRequest, Plan, PlanOptions, Planned, Policy, Span};
/// let step = [
///     Lifetime { bytes: 1024, start: 0, end: 2 },
///     Lifetime { bytes: 2048, start: 1, end: 9 },
///     Lifetime { bytes: 2048, start: 3, end: 9 },
/// ];
/// let plan = Plan::solve(&step, &PlanOptions::default())?;
/// let mut policy = Planned::new(&plan, Bfc::default());
/// policy.add_region(Span { address: 0, bytes: 4096 }, false)?;
/// for _ in 0..3 {
///     let short = policy.place(&PlacementRequest::new(1024)).expect("planned");
///     let first = policy.place(&PlacementRequest::new(2048)).expect("planned");
///     policy.free(short.slot, 0)?;
///     // Best fit alone would find no 2048 bytes in one piece here.
///     let second = policy.place(&PlacementRequest::new(2048)).expect("planned");
///     policy.free(first.slot, 0)?;
///     policy.free(second.slot, 0)?;
/// }
/// assert_eq!((policy.counts().steps, policy.counts().planned), (3, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Planned<P> {
    script: Arc<Script>,
    /// By entry of the script.
    slots: Vec<Slot>,
    /// How many allocations of the plan have passed in this step.
    position: u32,
    /// How many of [`Script::due`] were looked at in this step.
    due: u32,
    /// Unexpected allocations in a row.
    strayed: u32,
    /// Allocations of this step that were as expected.
    followed: u32,
    /// Live blocks in the planned range.
    live: u32,
    intruders: Intruders,
    /// The planned range, as a block of the fallback.
    range: Option<Placement>,
    /// A need that found no room: memory that is added is for it.
    unmet: Option<PlacementRequest>,
    /// The memory that was added last was too little for the range.
    no_room: bool,
    /// There is no other room: the range's holes may be used for one block.
    admit_guest: bool,
    counts: PlanCounts,
    fallback: P,
}

impl<P: Policy> Planned<P> {
    /// Follows `plan`, and serves the rest by `fallback`, which should hold nothing yet.
    #[must_use]
    pub fn new(plan: &Plan, fallback: P) -> Self {
        let script = Script::new(plan);
        let mut planned = Self {
            slots: vec![Slot::Free; script.entries.len()],
            script: Arc::new(script),
            position: 0,
            due: 0,
            strayed: 0,
            followed: 0,
            live: 0,
            intruders: Intruders::default(),
            range: None,
            unmet: None,
            no_room: false,
            admit_guest: false,
            counts: PlanCounts::default(),
            fallback,
        };
        planned.take_range();
        planned
    }

    /// The policy that serves what departs from the plan.
    #[must_use]
    pub const fn fallback(&self) -> &P {
        &self.fallback
    }

    /// How much went by the plan so far.
    #[must_use]
    pub const fn counts(&self) -> PlanCounts {
        self.counts
    }

    /// The step begins anew: the next allocation is compared with the plan's first. Whatever is still live of the step
    /// before keeps its place. The call is optional between steps that follow the plan to their last allocation.
    pub fn begin_step(&mut self) {
        self.expire(self.script.due.len() as u32);
        (self.position, self.due, self.strayed, self.followed) = (0, 0, 0, 0);
        if self.range.is_none() {
            self.take_range();
        }
    }

    /// Places the next allocation of the step if it is the one expected.
    #[inline]
    fn follow(&mut self, need: &PlacementRequest) -> Option<Placement> {
        let entry = self.script.entries.get(self.position as usize)?;
        let expected = entry.bytes == need.bytes && self.can_plan(need);
        let free = self.slots[self.position as usize] == Slot::Free && entry.offset != Script::NOWHERE;
        let range = self.range.filter(|_| expected && free && entry.is_aligned(need))?;
        let (entry, slot) = (*entry, self.position);
        if self.due != entry.due_end {
            self.expire(entry.due_end);
        }
        if !self.intruders.is_empty() {
            return None;
        }
        self.position += 1;
        self.followed += 1;
        self.strayed = 0;
        Some(self.put(range, &entry, slot))
    }

    /// Whether the plan knows where such a need may go.
    #[inline]
    fn can_plan(&self, need: &PlacementRequest) -> bool {
        need.alignment <= self.script.alignment && need.freed_before.is_none()
    }

    #[inline]
    fn put(&mut self, range: Placement, entry: &Entry, slot: u32) -> Placement {
        self.slots[slot as usize] = Slot::Expected;
        self.live += 1;
        self.counts.planned += 1;
        self.counts.steps += u64::from(slot == 0);
        Placement { address: range.address + entry.offset, bytes: entry.granted, slot }
    }

    /// Places an allocation that is not simply the next one of the plan.
    #[cold]
    fn depart(&mut self, need: &PlacementRequest) -> Option<Placement> {
        if self.position == self.script.len() {
            self.begin_step();
            if let Some(place) = self.follow(need) {
                return Some(place);
            }
        }
        let found = if self.can_plan(need) { self.find(need.bytes) } else { None };
        let Some(found) = found else {
            let place = self.place_aside(need)?;
            self.counts.unexpected += 1;
            self.strayed = self.strayed.saturating_add(1);
            return Some(place);
        };
        if found >= self.position {
            // The position moves with the list of those due, whether there is room or not.
            self.position = found;
            self.expire(self.script.entries[found as usize].due_end);
        }
        let entry = self.script.entries[found as usize];
        let planned = entry.offset != Script::NOWHERE;
        let room = planned
            && self.slots[found as usize] == Slot::Free
            && entry.is_aligned(need)
            && !self.intruders.overlap(entry.offset, entry.granted);
        let place = match self.range.filter(|_| room) {
            Some(range) => self.put(range, &entry, found),
            None => {
                // If there is no room at all, the position stays for when the pool asks again.
                let place = self.place_aside(need)?;
                *(if planned { &mut self.counts.refused } else { &mut self.counts.left }) += 1;
                self.counts.steps += u64::from(found == 0);
                place
            }
        };
        self.position = self.position.max(found + 1);
        self.followed = self.followed.saturating_add(1);
        self.strayed = 0;
        Some(place)
    }

    /// Which allocation of the plan one of this size is: the next, or one a little further on, or one passed over whose
    /// block would still be live; failing that, the first, if the step seems to have begun anew.
    fn find(&mut self, bytes: u64) -> Option<u32> {
        let entries = &self.script.entries;
        let is = |&index: &u32| entries[index as usize].bytes == bytes;
        if is(&self.position.min(self.script.len().checked_sub(1)?)) && self.position < self.script.len() {
            return Some(self.position);
        }
        if self.strayed < LOST {
            // No further than the step has been followed: what comes before the first step is not to be taken for it.
            let reach = self.position.saturating_add(WINDOW.min(self.followed) + 1);
            let ahead = self.position..reach.min(self.script.len());
            let behind = self.position.saturating_sub(WINDOW)..self.position;
            // Placing it late is sound only if the plan has it live at the last allocation passed, as all that are
            // expected, and will be looked at when it is due.
            let in_time = |&index: &u32| {
                let entry = &entries[index as usize];
                let free = self.slots[index as usize] == Slot::Free && entry.offset != Script::NOWHERE;
                free && entry.gone_by > self.position
            };
            let mut behind = behind.filter(is).filter(in_time);
            if let Some(found) = behind.next().or_else(|| ahead.into_iter().find(is)) {
                return Some(found);
            }
        }
        let all_gone = self.live as usize == self.intruders.len();
        let again = self.position > 0 && is(&0) && (all_gone || self.strayed >= LOST);
        if again {
            self.begin_step();
        }
        again.then_some(0)
    }

    /// Makes intruders of the blocks that should be gone, up to this place in the list of those that are due.
    #[inline]
    fn expire(&mut self, due_end: u32) {
        let Self { script, slots, intruders, .. } = self;
        let from = self.due.min(due_end) as usize;
        for &slot in &script.due[from..due_end as usize] {
            if slots[slot as usize] == Slot::Expected {
                slots[slot as usize] = Slot::Overdue;
                let entry = &script.entries[slot as usize];
                intruders.add(entry.offset, entry.granted, slot);
            }
        }
        self.due = self.due.max(due_end);
    }
}

#[cfg(test)]
mod tests;
