//! What one tracking allocator counts.

use bfc_core::{Category, OwnerId};

use super::Sizes;
use crate::account::totals::Class;

/// See the module's text. All of it changes together, under one lock.
#[derive(Debug)]
pub(super) struct Counts {
    /// One for the op, and one for each live allocation.
    pub(super) references: u64,
    pub(super) live: u64,
    pub(super) high_water: u64,
    /// Bytes taken by class; together they are the total.
    pub(super) classes: [u64; Class::COUNT],
    /// Bytes taken beyond those asked for.
    pub(super) rounding: u64,
    /// Live bytes that are kept for a backward pass.
    pub(super) saved: u64,
    /// Charged for requests that name nobody.
    pub(super) owner: OwnerId,
    /// What was live in the inner allocator when the op turned to it.
    pub(super) live_before: u64,
    /// Whether the last reference is gone, and that was noted.
    pub(super) rests: bool,
}

impl Counts {
    /// Nothing but the op's own reference.
    pub(super) const fn new(owner: OwnerId, live_before: u64) -> Self {
        Self {
            references: 1,
            live: 0,
            high_water: 0,
            classes: [0; Class::COUNT],
            rounding: 0,
            saved: 0,
            owner,
            live_before,
            rests: false,
        }
    }

    /// Whether nothing refers to the allocator any more; only once.
    pub(super) const fn comes_to_rest(&mut self) -> bool {
        let comes = self.references == 0 && !self.rests;
        self.rests |= comes;
        comes
    }

    /// Counts an allocation; `is_live` is false where nobody knows how long it lives.
    #[inline]
    pub(super) fn add(&mut self, bytes: u64, requested: u64, category: Category, is_live: bool) {
        if is_live {
            self.live = self.live.wrapping_add(bytes);
            self.high_water = self.high_water.max(self.live);
        }
        self.rounding = self.rounding.wrapping_add(bytes.saturating_sub(requested));
        let class = &mut self.classes[Class::of(category) as usize];
        *class = class.wrapping_add(bytes);
        self.references += 1;
    }

    /// Counts an allocation as freed; `false`, and nothing changed, if fewer bytes are live.
    #[inline]
    pub(super) fn subtract(&mut self, bytes: u64) -> bool {
        let Some(live) = self.live.checked_sub(bytes) else { return false };
        self.live = live;
        self.references = self.references.saturating_sub(1);
        true
    }

    /// Undoes [`subtract`](Self::subtract) for a free that failed.
    pub(super) fn restore(&mut self, bytes: u64) {
        self.live = self.live.wrapping_add(bytes);
        self.references += 1;
    }

    /// Counts bytes for another class, as for scratch that turns out to be the op's result.
    pub(super) fn reclass(&mut self, bytes: u64, from: Class, to: Class) {
        if let Some(taken) = self.classes[from as usize].checked_sub(bytes) {
            self.classes[from as usize] = taken;
            self.classes[to as usize] = self.classes[to as usize].wrapping_add(bytes);
        }
    }

    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            total_bytes: self.classes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            high_water_bytes: self.high_water,
            live_bytes: self.live,
        }
    }
}
