//! The figures of calls of ops: of one call while it runs, and the sums over finished calls.

use bfc_core::Category;

use crate::report::Class;

/// The bytes that one call has allocated from one pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) live: u64,
    pub(crate) high_water: u64,
    /// Bytes allocated, by class. Their sum is the total.
    pub(crate) classes: [u64; Class::COUNT],
    /// Granted bytes beyond those requested.
    pub(crate) rounding: u64,
}

impl Counts {
    /// Counts an allocation. `is_live` is false where sizes are not tracked.
    pub(crate) fn add(&mut self, bytes: u64, requested: u64, category: Category, is_live: bool) {
        if is_live {
            self.live = self.live.wrapping_add(bytes);
            self.high_water = self.high_water.max(self.live);
        }
        self.rounding = self.rounding.wrapping_add(bytes.saturating_sub(requested));
        let class = &mut self.classes[Class::of(category) as usize];
        *class = class.wrapping_add(bytes);
    }

    /// Counts a free. Returns `false`, and changes nothing, if fewer bytes are live.
    pub(crate) fn subtract(&mut self, bytes: u64) -> bool {
        let Some(live) = self.live.checked_sub(bytes) else { return false };
        self.live = live;
        true
    }

    /// Undoes [`subtract`](Self::subtract) for a free that failed.
    pub(crate) fn restore(&mut self, bytes: u64) {
        self.live = self.live.wrapping_add(bytes);
    }

    /// Moves bytes to the class of another category, for example when a temporary becomes the call's result.
    pub(crate) fn reclass(&mut self, bytes: u64, from: Category, to: Category) {
        let (from, to) = (Class::of(from) as usize, Class::of(to) as usize);
        if let Some(rest) = self.classes[from].checked_sub(bytes).filter(|_| from != to) {
            self.classes[from] = rest;
            self.classes[to] = self.classes[to].wrapping_add(bytes);
        }
    }

    /// Returns all bytes that were ever allocated.
    pub(crate) fn total(&self) -> u64 {
        self.classes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Adds these counts to the figures of the call.
    pub(crate) fn add_to(&self, figures: &mut Figures) {
        figures.high_water = figures.high_water.saturating_add(self.high_water);
        figures.outliving = figures.outliving.saturating_add(self.live);
        figures.rounding = figures.rounding.saturating_add(self.rounding);
        for (sum, bytes) in figures.classes.iter_mut().zip(self.classes) {
            *sum = sum.saturating_add(bytes);
        }
    }
}

/// The figures of one call, over all pools that it used.
///
/// The high-water marks of several pools are added. The sum is exact for one pool and an upper bound for several,
/// because their marks may come from different moments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) time_ns: u64,
    pub(crate) high_water: u64,
    pub(crate) outliving: u64,
    /// Live bytes of the first pool when the call began.
    pub(crate) live_before: u64,
    /// Granted bytes that were not requested.
    pub(crate) rounding: u64,
    pub(crate) classes: [u64; Class::COUNT],
}

/// The sums over finished calls: of an op in one scope, or of all ops that a thread began. Sizes are granted bytes
/// unless stated otherwise, and include nested ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallTotals {
    /// The number of finished calls.
    pub calls: u64,
    /// The time that the host spent in them, in nanoseconds, including nested ops. 0 on a dry device. If an op takes less
    /// than 4 µs on average, every 17th call is timed.
    pub time_ns: u64,
    /// The most bytes that one call held at a time, of its own allocations.
    pub high_water_bytes: u64,
    /// Bytes that were live when the call that allocated them returned, of all calls together.
    pub outliving_bytes: u64,
    /// The most bytes that were live in the pool of a call when it began.
    pub live_before_bytes: u64,
    /// Bytes allocated as temporaries and workspaces.
    pub temporary_bytes: u64,
    /// Bytes allocated for results: outputs, activations, gradients, inputs.
    pub output_bytes: u64,
    /// Bytes allocated for state that persists between steps: parameters and optimizer state.
    pub persistent_bytes: u64,
    /// Bytes allocated beyond those requested, because pools round sizes up.
    pub rounding_bytes: u64,
}

impl CallTotals {
    /// No calls.
    pub(crate) const NONE: Self = Self {
        calls: 0,
        time_ns: 0,
        high_water_bytes: 0,
        outliving_bytes: 0,
        live_before_bytes: 0,
        temporary_bytes: 0,
        output_bytes: 0,
        persistent_bytes: 0,
        rounding_bytes: 0,
    };

    /// Returns the bytes allocated by all calls.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.temporary_bytes.saturating_add(self.output_bytes).saturating_add(self.persistent_bytes)
    }

    /// Returns the bytes requested by all calls.
    #[must_use]
    pub const fn requested_bytes(&self) -> u64 {
        self.total_bytes().saturating_sub(self.rounding_bytes)
    }

    /// Adds a finished call.
    #[inline]
    pub(crate) fn add_call(&mut self, figures: &Figures) {
        self.calls += 1;
        self.time_ns = self.time_ns.saturating_add(figures.time_ns);
        self.high_water_bytes = self.high_water_bytes.max(figures.high_water);
        self.outliving_bytes = self.outliving_bytes.saturating_add(figures.outliving);
        self.live_before_bytes = self.live_before_bytes.max(figures.live_before);
        self.add_bytes(&figures.classes, figures.rounding);
    }

    /// Adds the bytes of an allocation that belongs to no call.
    pub(crate) fn add_outside(&mut self, counts: &Counts) {
        self.add_bytes(&counts.classes, counts.rounding);
    }

    #[inline]
    fn add_bytes(&mut self, [temporary, output, persistent]: &[u64; Class::COUNT], rounding: u64) {
        self.temporary_bytes = self.temporary_bytes.saturating_add(*temporary);
        self.output_bytes = self.output_bytes.saturating_add(*output);
        self.persistent_bytes = self.persistent_bytes.saturating_add(*persistent);
        self.rounding_bytes = self.rounding_bytes.saturating_add(rounding);
    }
}
