//! The counters of one tracking allocator.

use bfc_core::Category;

use super::Sizes;
use crate::account::totals::{Class, Figures};

/// Counters in bytes. They change together, under one lock.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) live: u64,
    pub(super) high_water: u64,
    /// Bytes allocated, by class. Their sum is the total.
    pub(super) classes: [u64; Class::COUNT],
    /// Granted bytes beyond those requested.
    pub(super) rounding: u64,
    /// Live bytes that are saved for a backward pass.
    pub(super) saved: u64,
}

impl Counts {
    /// Counts an allocation. `is_live` is false where sizes are not tracked.
    pub(super) fn add(&mut self, bytes: u64, requested: u64, category: Category, is_live: bool) {
        if is_live {
            self.live = self.live.wrapping_add(bytes);
            self.high_water = self.high_water.max(self.live);
        }
        self.rounding = self.rounding.wrapping_add(bytes.saturating_sub(requested));
        let class = &mut self.classes[Class::of(category) as usize];
        *class = class.wrapping_add(bytes);
    }

    /// Counts a free. Returns `false`, and changes nothing, if fewer bytes are live.
    pub(super) fn subtract(&mut self, bytes: u64) -> bool {
        let Some(live) = self.live.checked_sub(bytes) else { return false };
        self.live = live;
        true
    }

    /// Undoes [`subtract`](Self::subtract) for a free that failed.
    pub(super) fn restore(&mut self, bytes: u64) {
        self.live = self.live.wrapping_add(bytes);
    }

    /// Moves bytes to another class, for example when a temporary becomes the op's result.
    pub(super) fn reclass(&mut self, bytes: u64, from: Class, to: Class) {
        if let Some(rest) = self.classes[from as usize].checked_sub(bytes) {
            self.classes[from as usize] = rest;
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

    /// Adds these counts to the figures of the op.
    pub(super) fn add_to(&self, figures: &mut Figures) {
        figures.high_water = figures.high_water.saturating_add(self.high_water);
        figures.outliving = figures.outliving.saturating_add(self.live);
        figures.rounding = figures.rounding.saturating_add(self.rounding);
        for (sum, bytes) in figures.classes.iter_mut().zip(self.classes) {
            *sum = sum.saturating_add(bytes);
        }
    }
}
