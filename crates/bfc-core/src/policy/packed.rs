//! The policy that follows a packing.
//!
//! The packed range is one block of the fallback's space. The n-th allocation of a step goes to its packed offset if
//! it matches the packing. All other allocations go to the fallback.
//!
//! # Why no two blocks overlap
//! Time counts in allocations of the packing. The step's position is the number of allocations that have passed. Between
//! calls every live packed block is either *expected* or an *intruder*. The packing has all expected blocks live at the
//! allocation before the position, and therefore keeps them apart. A lookup keeps intruders apart.
//!
//! When the position advances, the policy checks the blocks that should be free: those still live become intruders.
//! When a step begins, all live blocks do. This costs one check per packed block and step. A step that follows the
//! packing has no intruders, whatever the order of its frees.

use std::sync::Arc;

use crate::base::placement::PackingCounts;
use crate::base::placement::Placement;
use crate::packing::Packing;
use crate::policy::{ConfiguredPolicy, PlacementRequest, Policy};
use intruders::Intruders;
use script::{Script, ScriptedBlock};

mod intruders;
mod options;
mod policy;
mod range;
mod script;

pub use options::PackedOptions;

/// How far from the position the policy searches for an unexpected allocation: a step may omit or delay this many
/// without losing its place.
const WINDOW: u32 = 32;

/// After this many unexpected allocations in a row, the policy stops searching until a step begins.
const LOST: u32 = 64;

/// The state of a slot of the packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    /// No block.
    #[default]
    Free,
    /// The packed block, within its packed lifetime.
    Expected,
    /// The packed block, after its packed lifetime.
    Overdue,
    /// A block outside of the packing.
    Guest,
}

/// Follows a packing, and serves other requests by a fallback policy.
///
/// A step begins after its last allocation, and when [`begin_step`](Self::begin_step) is called. A step with omitted or
/// additional allocations finds its place again within a few. The fallback serves a step that differs altogether; the
/// policy resumes the packing when an allocation matches the packing's first one. Blocks never overlap: a request for an
/// occupied packed offset goes to the fallback.
///
/// The policy takes the packed range from the fallback when memory is added. It returns the empty range when the
/// memory is needed. If there is no other room, other blocks may occupy holes of the range.
///
/// ```
/// use bfc_core::{Bfc, Lifetime, PlacementRequest, Packing, PackingOptions, Packed, Policy, Span};
/// let step = [
///     Lifetime { bytes: 1024, start: 0, end: 2 },
///     Lifetime { bytes: 2048, start: 1, end: 9 },
///     Lifetime { bytes: 2048, start: 3, end: 9 },
/// ];
/// let packing = Packing::solve(&step, &PackingOptions::default())?;
/// let mut policy = Packed::new(&packing, Bfc::default());
/// policy.add_region(Span { address: 0, bytes: 4096 }, false)?;
/// for _ in 0..3 {
///     let short = policy.place(&PlacementRequest::new(1024)).expect("packed");
///     let first = policy.place(&PlacementRequest::new(2048)).expect("packed");
///     policy.free(short.slot)?;
///     // Best fit alone would find no 2048 bytes in one piece here.
///     let second = policy.place(&PlacementRequest::new(2048)).expect("packed");
///     policy.free(first.slot)?;
///     policy.free(second.slot)?;
/// }
/// assert_eq!((policy.counts().steps, policy.counts().packed), (3, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Packed<P> {
    script: Arc<Script>,
    /// The state of each entry of the script.
    slots: Vec<Slot>,
    /// The allocations of the packing that have passed in this step.
    position: u32,
    /// The entries of [`Script::due`] that were checked in this step.
    due: u32,
    /// Unexpected allocations in a row.
    strayed: u32,
    /// Allocations of this step that matched the packing.
    followed: u32,
    /// Live blocks in the packed range.
    live: u32,
    intruders: Intruders,
    /// The packed range, as a block of the fallback.
    range: Option<Placement>,
    /// A request that found no room; added memory serves it first.
    unmet: Option<PlacementRequest>,
    /// Whether the memory added last was too small for the range.
    no_room: bool,
    /// Whether one block may use the range's holes, because there is no other room.
    admit_guest: bool,
    counts: PackingCounts,
    fallback: P,
}

impl<P: Policy> Packed<P> {
    /// Follows `packing`, and serves other requests by `fallback`, which should be empty.
    #[must_use]
    pub fn new(packing: &Packing, fallback: P) -> Self {
        let script = Script::new(packing);
        let mut packed = Self {
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
            counts: PackingCounts::default(),
            fallback,
        };
        packed.take_range();
        packed
    }

    /// Returns the fallback policy.
    #[must_use]
    pub const fn fallback(&self) -> &P {
        &self.fallback
    }

    /// Returns how many allocations followed the packing so far.
    #[must_use]
    pub const fn counts(&self) -> PackingCounts {
        self.counts
    }

    /// Begins a step: the next allocation is compared with the packing's first. Live blocks keep their placements.
    /// Optional between steps that follow the packing to their last allocation.
    pub fn begin_step(&mut self) {
        self.expire(self.script.due.len() as u32);
        (self.position, self.due, self.strayed, self.followed) = (0, 0, 0, 0);
        if self.range.is_none() {
            self.take_range();
        }
    }

    /// Places the next allocation of the step if it matches the packing.
    #[inline]
    fn follow(&mut self, request: &PlacementRequest) -> Option<Placement> {
        let entry = self.script.entries.get(self.position as usize)?;
        let expected = entry.bytes == request.bytes && self.can_pack(request);
        let free = self.slots[self.position as usize] == Slot::Free && entry.offset != Script::NOWHERE;
        let range = self.range.filter(|_| expected && free && entry.is_aligned(request))?;
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

    /// Whether the packing may have an offset for this request.
    #[inline]
    fn can_pack(&self, request: &PlacementRequest) -> bool {
        request.alignment <= self.script.alignment
    }

    #[inline]
    fn put(&mut self, range: Placement, entry: &ScriptedBlock, slot: u32) -> Placement {
        self.slots[slot as usize] = Slot::Expected;
        self.live += 1;
        self.counts.packed += 1;
        self.counts.steps += u64::from(slot == 0);
        Placement { address: range.address + entry.offset, bytes: entry.granted, slot }
    }

    /// Places an allocation that is not the next one of the packing.
    #[cold]
    fn depart(&mut self, request: &PlacementRequest) -> Option<Placement> {
        if self.position == self.script.len() {
            self.begin_step();
            if let Some(place) = self.follow(request) {
                return Some(place);
            }
        }
        let found = if self.can_pack(request) { self.find(request.bytes) } else { None };
        let Some(found) = found else {
            let place = self.place_aside(request)?;
            self.counts.unexpected += 1;
            self.strayed = self.strayed.saturating_add(1);
            return Some(place);
        };
        if found >= self.position {
            // The position moves with the list of due blocks, whether the placement succeeds or not.
            self.position = found;
            self.expire(self.script.entries[found as usize].due_end);
        }
        let entry = self.script.entries[found as usize];
        let packed = entry.offset != Script::NOWHERE;
        let room = packed
            && self.slots[found as usize] == Slot::Free
            && entry.is_aligned(request)
            && !self.intruders.overlap(entry.offset, entry.granted);
        let place = match self.range.filter(|_| room) {
            Some(range) => self.put(range, &entry, found),
            None => {
                // Without any room, the position stays for the pool's next attempt.
                let place = self.place_aside(request)?;
                *(if packed { &mut self.counts.refused } else { &mut self.counts.left }) += 1;
                self.counts.steps += u64::from(found == 0);
                place
            }
        };
        self.position = self.position.max(found + 1);
        self.followed = self.followed.saturating_add(1);
        self.strayed = 0;
        Some(place)
    }

    /// Finds the packed allocation of this size: the next one, one a little later, or a skipped one whose block would
    /// still be live. Otherwise the first one, if the step appears to have begun.
    fn find(&mut self, bytes: u64) -> Option<u32> {
        let entries = &self.script.entries;
        let is = |&index: &u32| entries[index as usize].bytes == bytes;
        if is(&self.position.min(self.script.len().checked_sub(1)?)) && self.position < self.script.len() {
            return Some(self.position);
        }
        if self.strayed < LOST {
            // Searches no further than the step has been followed, so that code before the first step does not match
            // it.
            let reach = self.position.saturating_add(WINDOW.min(self.followed) + 1);
            let ahead = self.position..reach.min(self.script.len());
            let behind = self.position.saturating_sub(WINDOW)..self.position;
            // A late placement is safe only if the packing has the block live at the last passed allocation, like all
            // expected blocks. It is then checked when it is due.
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

    /// Turns blocks that should be free into intruders, up to this index in the list of due blocks.
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

// SAFETY: a verified packing keeps expected blocks apart within the range. Before each placement in the range, the policy
// checks it against all other blocks there. The range is one block of the fallback, which
// keeps its own guarantees, and the policy frees it only while it is empty. A placement in the range has the requested
// alignment; all other requests go to the fallback. Packed blocks that lend their bytes go there too, because a pool's
// blocks may be used until their free.
unsafe impl<P: ConfiguredPolicy + Clone> ConfiguredPolicy for Packed<P> {
    type Options = PackedOptions<P::Options>;

    fn configured(options: &Self::Options) -> Self {
        Self::new(&options.packing, P::configured(&options.fallback))
    }

    fn configured_to_grow(options: &Self::Options) -> Self {
        Self::new(&options.packing, P::configured_to_grow(&options.fallback))
    }
}

#[cfg(test)]
mod tests;
