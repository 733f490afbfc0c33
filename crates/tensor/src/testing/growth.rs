//! Who holds more than before.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use bfc_core::{Ledger, OwnerId};
use highwater_tracking::table::{Table, bytes};

/// How many holders a message names.
const NAMED: usize = 10;

/// Who grew, and by how much: first who grew most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// Those who hold more than before.
    pub holders: Vec<Holder>,
}

/// One who holds more than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// An op in its phase and module, such as `net.fc1.matmul:backward`; empty for memory that nobody claims.
    pub path: String,
    /// What it held before, in bytes.
    pub before: u64,
    /// What it holds now, or the most that it held.
    pub after: u64,
}

impl Holder {
    /// By how many bytes it grew.
    #[must_use]
    pub const fn growth(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

impl Growth {
    /// Who holds more now than before.
    pub(super) fn of_live(before: &Ledger, after: &Ledger) -> Self {
        let now = after.owners().map(|(owner, bytes)| (owner, bytes.own));
        Self::new(before, now.collect())
    }

    /// Who held more at some moment than before, if peaks were reset then. A module's peak is that of all below it, so those
    /// below speak for it.
    pub(super) fn of_peaks(before: &Ledger, after: &Ledger) -> Self {
        let mut peaks: HashMap<OwnerId, u64> =
            after.owners().map(|(owner, bytes)| (owner, bytes.peak)).collect();
        for owner in peaks.keys().copied().filter(|&owner| owner != OwnerId::ROOT).collect::<Vec<_>>() {
            peaks.remove(&owner.parent());
        }
        Self::new(before, peaks.into_iter().collect())
    }

    fn new(before: &Ledger, after: Vec<(OwnerId, u64)>) -> Self {
        let holder = |(owner, after): (OwnerId, u64)| {
            let holder = Holder { path: owner.path(), before: before.owner(owner).own, after };
            (holder.growth() > 0).then_some(holder)
        };
        let mut holders: Vec<Holder> = after.into_iter().filter_map(holder).collect();
        holders
            .sort_by(|a, b| Reverse(a.growth()).cmp(&Reverse(b.growth())).then_with(|| a.path.cmp(&b.path)));
        Self { holders }
    }
}

impl fmt::Display for Growth {
    /// A table of those who grew most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.holders.is_empty() {
            return f.write_str("nobody grew");
        }
        let mut table = Table::new(&["who grew", "before", "after", "growth"]);
        for holder in self.holders.iter().take(NAMED) {
            let path = if holder.path.is_empty() { "(nobody)" } else { &holder.path };
            table.line(path, [bytes(holder.before), bytes(holder.after), bytes(holder.growth())]);
        }
        write!(f, "{table}")?;
        match self.holders.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "({more} more)"),
        }
    }
}
