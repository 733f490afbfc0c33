//! The current scope of the calling thread, and how guards restore the previous one.
//!
//! Scopes form a stack, of which only the top is stored. Each entry holds the scope below it and restores it when it is
//! left. Entries are usually left in order. An entry that is left out of order removes all entries within it, as if it
//! cut the stack. The cut is stored, so that removed entries do nothing when they are left later.

use std::cell::{Cell, RefCell};
#[cfg(not(shuttle))]
use std::thread_local;

use bfc_core::OwnerId;
#[cfg(shuttle)]
use shuttle::thread_local;

use super::{Phase, Scope, ScopePath};

/// The scope state of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScopeState {
    pub(super) scope: Scope,
    /// The nesting depth. Wide, so that there is no padding.
    depth: u64,
    /// The number of the top entry; 0 outside of all scopes.
    number: u64,
}

/// A cut of the stack: its depth, and the number of entries made until then.
#[derive(Clone, Copy, Debug)]
struct Cut {
    depth: u64,
    entries: u64,
}

/// A scope that was entered, until it is [left](Self::leave).
#[derive(Debug)]
pub(super) struct Entry {
    before: ScopeState,
    number: u64,
}

impl ScopeState {
    /// The initial state of every thread.
    const OUTSIDE: Self = Self {
        scope: Scope {
            place: ScopePath { module: OwnerId::ROOT, phase: Phase::Forward },
            base: OwnerId::ROOT,
            in_model: 0,
        },
        depth: 0,
        number: 0,
    };
}

thread_local! {
    static STATE: Cell<ScopeState> = const { Cell::new(ScopeState::OUTSIDE) };
    /// The number of entries made.
    static ENTRIES: Cell<u64> = const { Cell::new(0) };
    /// The cuts with entries that may still be left, by rising depth. There are never more than the deepest nesting.
    static CUTS: RefCell<Vec<Cut>> = const { RefCell::new(Vec::new()) };
}

#[inline(always)]
pub(super) fn now() -> ScopeState {
    STATE.try_with(Cell::get).unwrap_or(ScopeState::OUTSIDE)
}

/// Has no effect on a thread that is ending and has no scope any more.
#[inline(always)]
fn set(now: ScopeState) {
    let _ = STATE.try_with(|cell| cell.set(now));
}

impl Entry {
    #[inline]
    pub(super) fn new(scope: Scope) -> Self {
        let before = now();
        let number = ENTRIES.try_with(|entries| entries.replace(entries.get() + 1)).unwrap_or(0) + 1;
        set(ScopeState { scope, depth: before.depth + 1, number });
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

    /// Leaves a scope that is not the top of the stack, unless a cut removed it.
    #[cold]
    fn cut(&self) {
        let depth = self.before.depth;
        let _ = CUTS.try_with(|cuts| {
            let mut cuts = cuts.borrow_mut();
            if cuts.iter().any(|cut| cut.depth <= depth && cut.entries >= self.number) {
                return;
            }
            // This cut covers all deeper cuts.
            cuts.retain(|cut| cut.depth < depth);
            cuts.push(Cut { depth, entries: ENTRIES.try_with(Cell::get).unwrap_or(self.number) });
            set(self.before);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reference implementation: a complete stack that is truncated at an entry, if it contains the entry.
    #[test]
    fn scopes_may_be_left_in_any_order() {
        let mut random = 1_u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let places: Vec<Scope> = (0..40)
            .map(|number| {
                let module = OwnerId::intern(OwnerId::ROOT, &format!("scope-now-{number}"));
                Scope { place: ScopePath { module, phase: Phase::Backward }, ..Scope::default() }
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
                assert_eq!((now().scope, now().depth as usize), (top.unwrap_or_default(), stack.len()));
            };
            for (number, &place) in places.iter().enumerate() {
                if held.is_empty() || below(5) < 3 {
                    held.push((Entry::new(place), number));
                    stack.push(number);
                } else {
                    // Mostly in order, as in programs.
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
