//! The calling thread's place, and how guards put back the one before.
//!
//! Places are a stack of which the top alone is kept: each entry knows what was below it, and puts that back when it is left. Entries are
//! left in order, as a rule. One that is left out of order takes along all that was entered inside of it, as if the stack
//! were cut. Where it was cut is remembered, so that those do nothing when they are left later, whatever was entered since.

use std::cell::{Cell, RefCell};
#[cfg(not(shuttle))]
use std::thread_local;

use bfc_core::OwnerId;
#[cfg(shuttle)]
use shuttle::thread_local;

use super::{Phase, ScopePath};

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) place: ScopePath,
    /// How many places it is inside of. Wide, so that there is no gap.
    depth: u64,
    /// That of the entry; 0 outside of all.
    number: u64,
}

/// That the stack was cut back to a depth, and how many entries had been made then.
#[derive(Clone, Copy, Debug)]
struct Cut {
    depth: u64,
    entries: u64,
}

/// A place that was entered, until it is [left](Self::leave).
#[derive(Debug)]
pub(super) struct Entry {
    before: Now,
    number: u64,
}

impl Now {
    /// Where every thread starts.
    const OUTSIDE: Self =
        Self { place: ScopePath { module: OwnerId::ROOT, phase: Phase::Forward }, depth: 0, number: 0 };
}

thread_local! {
    static NOW: Cell<Now> = const { Cell::new(Now::OUTSIDE) };
    /// How many entries were made.
    static ENTRIES: Cell<u64> = const { Cell::new(0) };
    /// Cuts that tell of entries that were cut off, by rising depth: no more than places were ever nested.
    static CUTS: RefCell<Vec<Cut>> = const { RefCell::new(Vec::new()) };
}

#[inline(always)]
pub(super) fn now() -> Now {
    NOW.try_with(Cell::get).unwrap_or(Now::OUTSIDE)
}

/// Has no effect on a thread that is ending, if it has no place any more: it needs none.
#[inline(always)]
fn set(now: Now) {
    let _ = NOW.try_with(|cell| cell.set(now));
}

impl Entry {
    #[inline]
    pub(super) fn new(place: ScopePath) -> Self {
        let before = now();
        let number = ENTRIES.try_with(|entries| entries.replace(entries.get() + 1)).unwrap_or(0) + 1;
        set(Now { place, depth: before.depth + 1, number });
        Self { before, number }
    }

    #[inline]
    pub(super) fn leave(&self) {
        if now().number == self.number {
            set(self.before);
        } else {
            self.cut();
        }
    }

    /// Leaves a place that is not the one entered last, unless it was cut off.
    #[cold]
    fn cut(&self) {
        let depth = self.before.depth;
        let _ = CUTS.try_with(|cuts| {
            let mut cuts = cuts.borrow_mut();
            if cuts.iter().any(|cut| cut.depth <= depth && cut.entries >= self.number) {
                return;
            }
            // Of deeper cuts this one says all that they said.
            cuts.retain(|cut| cut.depth < depth);
            cuts.push(Cut { depth, entries: ENTRIES.try_with(Cell::get).unwrap_or(self.number) });
            set(self.before);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack that is kept whole, and cut off from an entry on if that is still in it.
    #[test]
    fn scopes_may_be_left_in_any_order() {
        let mut random = 1_u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let places: Vec<ScopePath> = (0..40)
            .map(|number| ScopePath {
                module: OwnerId::intern(OwnerId::ROOT, &format!("scope-now-{number}")),
                phase: Phase::Backward,
            })
            .collect();
        for _ in 0..2000 {
            let (mut stack, mut held): (Vec<usize>, Vec<(Entry, usize)>) = (Vec::new(), Vec::new());
            let left = |stack: &mut Vec<usize>, (entry, number): (Entry, usize)| {
                entry.leave();
                let at = stack.iter().position(|&entered| entered == number);
                stack.truncate(at.unwrap_or(stack.len()));
            };
            let check = |stack: &[usize]| {
                let top = stack.last().map(|&number| places[number]);
                assert_eq!((now().place, now().depth as usize), (top.unwrap_or_default(), stack.len()));
            };
            for (number, &place) in places.iter().enumerate() {
                if held.is_empty() || below(5) < 3 {
                    held.push((Entry::new(place), number));
                    stack.push(number);
                } else {
                    // Mostly in order, as in life.
                    let at = if below(2) == 0 { held.len() - 1 } else { below(held.len()) };
                    left(&mut stack, held.remove(at));
                }
                check(&stack);
            }
            while let Some(last) = held.pop() {
                left(&mut stack, last);
                check(&stack);
            }
            assert!(CUTS.with_borrow(Vec::len) <= 40);
        }
    }
}
