//! The memory growth of each owner between two moments.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use bfc_core::{Ledger, OwnerId};
use highwater_tracking::table::{Table, bytes};

/// The most owners that a message lists.
const MAX_LISTED: usize = 10;

/// The owners whose memory grew, largest growth first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The owners.
    pub holders: Vec<Holder>,
}

/// An owner whose memory grew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// An op with its phase and module, such as `net.fc1.matmul:backward`; empty for memory without an owner.
    pub path: String,
    /// Bytes before.
    pub before: u64,
    /// Bytes after, or the most in between.
    pub after: u64,
}

impl Holder {
    /// Returns the growth in bytes.
    #[must_use]
    pub const fn growth(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

impl Growth {
    /// Compares the live bytes of each owner.
    pub(super) fn of_live(before: &Ledger, after: &Ledger) -> Self {
        let now = after.owners().map(|(owner, bytes)| (owner, bytes.own));
        Self::new(before, now.collect())
    }

    /// Compares the peak of each owner with its bytes before; the caller must have reset the peaks before.
    /// Omits modules, whose peaks include those of the ops within.
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
    /// Prints a table of the largest growths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.holders.is_empty() {
            return f.write_str("no owner grew");
        }
        let mut table = Table::new(&["owner", "before", "after", "growth"]);
        for holder in self.holders.iter().take(MAX_LISTED) {
            let path = if holder.path.is_empty() { "(no owner)" } else { &holder.path };
            table.line(path, [bytes(holder.before), bytes(holder.after), bytes(holder.growth())]);
        }
        write!(f, "{table}")?;
        match self.holders.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, "({more} more)"),
        }
    }
}
