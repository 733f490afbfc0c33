//! The ledger of a pool: live bytes by owner and by category.
//!
//! A pool posts to its ledger under its own lock, together with its bytes in use. The sums therefore hold at every
//! event: the bytes of all owners, and the bytes of all categories, both equal the pool's bytes in use. Inclusive
//! figures of an owner also count every owner below it, which gives exact high-water marks of modules for a few
//! additions per event.
//!
//! The values at the peak need no copy at each new peak. Peaks are numbered, and an account saves its value at its
//! first change after the last peak.

use crate::base::hint::cold_path;
use crate::base::owner::OwnerId;

/// The purpose of a block. Every byte has exactly one category, given by its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[repr(u8)]
#[non_exhaustive]
pub enum Category {
    /// Scratch memory that an op frees before it returns, and memory without another category.
    #[default]
    Temporary,
    /// A trained parameter.
    Parameter,
    /// A gradient.
    Gradient,
    /// State that an optimizer keeps between steps.
    OptimizerState,
    /// An op's result or input that is kept for the backward pass.
    Activation,
    /// Input data of the program.
    Input,
    /// An op's result that the backward pass does not need.
    Output,
    /// Scratch memory of a kernel or library.
    Workspace,
    /// Memory that processes need to exchange data, such as the values of other processes while they are summed.
    Communication,
    /// Bytes of a mapped file. The operating system loads and drops their pages, and no pool allocates them.
    Mapped,
}

impl Category {
    /// The number of categories.
    pub const COUNT: usize = 10;

    /// All categories, in index order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Temporary,
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::Output,
        Self::Workspace,
        Self::Communication,
        Self::Mapped,
    ];

    /// Returns the index in [`Category::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Temporary => "temporary",
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer_state",
            Self::Activation => "activation",
            Self::Input => "input",
            Self::Output => "output",
            Self::Workspace => "workspace",
            Self::Communication => "communication",
            Self::Mapped => "mapped",
        }
    }
}

/// The owner and category to charge for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tag {
    /// The owner of the bytes.
    pub owner: OwnerId,
    /// The purpose of the bytes.
    pub category: Category,
}

/// The account of one owner, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerBytes {
    /// Live bytes of this owner itself.
    pub own: u64,
    /// Live bytes of this owner and all owners below it.
    pub live: u64,
    /// The highest `live`.
    pub peak: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    bytes: OwnerBytes,
    own_at_peak: AtPeak,
    parent: OwnerId,
}

/// Live bytes of a category.
#[derive(Clone, Copy, Debug, Default)]
struct CategoryAccount {
    live: u64,
    peak: u64,
    at_peak: AtPeak,
}

/// The value of a number at the last peak.
#[derive(Clone, Copy, Debug, Default)]
struct AtPeak {
    bytes: u64,
    /// The peak after which the number changed. If it is not the last peak, the number is unchanged since.
    number: u64,
}

impl AtPeak {
    /// Saves the value at the last peak. Call it before a number with the value `now` changes.
    #[inline]
    const fn note(&mut self, now: u64, last_peak: u64) {
        if self.number != last_peak {
            cold_path();
            (self.bytes, self.number) = (now, last_peak);
        }
    }

    const fn get(&self, now: u64, last_peak: u64) -> u64 {
        if self.number == last_peak { self.bytes } else { now }
    }
}

impl CategoryAccount {
    #[inline]
    const fn add(&mut self, bytes: u64, last_peak: u64) {
        self.at_peak.note(self.live, last_peak);
        self.live += bytes;
        if self.live > self.peak {
            cold_path();
            self.peak = self.live;
        }
    }

    #[inline]
    const fn remove(&mut self, bytes: u64, last_peak: u64) {
        self.at_peak.note(self.live, last_peak);
        self.live -= bytes;
    }
}

/// Live bytes of one pool by owner and by category. The module docs state its invariant.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Indexed by [`OwnerId::index`]; grows when an owner is first charged.
    accounts: Vec<Account>,
    categories: [CategoryAccount; Category::COUNT],
    /// The total live bytes: the inclusive bytes of the root, whose own account holds only its own bytes.
    live: u64,
    /// The highest total, and how often it rose.
    peak: u64,
    last_peak: u64,
}

impl Ledger {
    /// Creates an empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Charges `bytes` more to `tag`.
    #[inline(always)]
    pub fn add(&mut self, tag: Tag, bytes: u64) {
        let Some(account) = self.accounts.get_mut(tag.owner.index()) else {
            self.open(tag.owner);
            return self.add_to_open(tag, bytes);
        };
        account.own_at_peak.note(account.bytes.own, self.last_peak);
        account.bytes.own += bytes;
        self.categories[tag.category.index()].add(bytes, self.last_peak);
        self.walk_up(tag.owner, |account| {
            account.live += bytes;
            if account.live > account.peak {
                cold_path();
                account.peak = account.live;
            }
        });
        self.live += bytes;
        if self.live > self.peak {
            cold_path();
            self.peak = self.live;
            self.last_peak += 1;
        }
    }

    /// Subtracts `bytes` from `tag`, which must have at least as many.
    #[inline(always)]
    pub fn remove(&mut self, tag: Tag, bytes: u64) {
        let Some(account) = self.accounts.get_mut(tag.owner.index()) else {
            self.open(tag.owner);
            return self.remove_from_open(tag, bytes);
        };
        account.own_at_peak.note(account.bytes.own, self.last_peak);
        account.bytes.own -= bytes;
        self.categories[tag.category.index()].remove(bytes, self.last_peak);
        self.walk_up(tag.owner, |account| account.live -= bytes);
        self.live -= bytes;
    }

    #[cold]
    #[inline(never)]
    fn add_to_open(&mut self, tag: Tag, bytes: u64) {
        self.add(tag, bytes);
    }

    #[cold]
    #[inline(never)]
    fn remove_from_open(&mut self, tag: Tag, bytes: u64) {
        self.remove(tag, bytes);
    }

    /// Moves `bytes` from one tag to another, atomically for readers.
    pub fn retag(&mut self, from: Tag, to: Tag, bytes: u64) {
        if from.owner == to.owner {
            self.categories[from.category.index()].remove(bytes, self.last_peak);
            self.categories[to.category.index()].add(bytes, self.last_peak);
        } else {
            self.remove(from, bytes);
            self.add(to, bytes);
        }
    }

    /// Returns the account of one owner; all zero if it was never charged.
    #[must_use]
    pub fn owner(&self, owner: OwnerId) -> OwnerBytes {
        self.accounts
            .get(owner.index())
            .map_or_else(OwnerBytes::default, |account| self.bytes(owner, account))
    }

    const fn bytes(&self, owner: OwnerId, account: &Account) -> OwnerBytes {
        match owner {
            OwnerId::ROOT => OwnerBytes { own: account.bytes.own, live: self.live, peak: self.peak },
            _ => account.bytes,
        }
    }

    /// Returns the accounts of all owners that were ever charged, in order of their ids.
    pub fn owners(&self) -> impl Iterator<Item = (OwnerId, OwnerBytes)> + '_ {
        let owners = self.accounts.iter().enumerate().map(|(index, account)| {
            let owner = OwnerId::from_index(index);
            (owner, self.bytes(owner, account))
        });
        owners.filter(|(_, bytes)| bytes.peak > 0)
    }

    /// Returns at most `most` owners with the most own bytes, in descending order.
    #[must_use]
    pub fn largest_holders(&self, most: usize) -> Vec<(OwnerId, u64)> {
        let owners = self.owners().map(|(owner, bytes)| (owner, bytes.own));
        let mut holders: Vec<(OwnerId, u64)> = owners.filter(|(_, own)| *own > 0).collect();
        holders.sort_by_key(|&(owner, own)| (std::cmp::Reverse(own), owner));
        holders.truncate(most);
        holders
    }

    /// Returns the live bytes of one category.
    #[must_use]
    pub const fn category(&self, category: Category) -> u64 {
        self.categories[category.index()].live
    }

    /// Returns the highest live bytes of one category.
    #[must_use]
    pub const fn category_peak(&self, category: Category) -> u64 {
        self.categories[category.index()].peak
    }

    /// Returns the highest total live bytes since the last [`reset_peaks`](Self::reset_peaks).
    #[must_use]
    pub const fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the own bytes of this owner when the total first reached its peak. The sum over all owners is
    /// [`peak`](Self::peak), and so is the sum of [`category_at_peak`](Self::category_at_peak) over all categories.
    ///
    /// ```
    /// use bfc_core::{Category, Ledger, OwnerId, Tag};
    /// let (a, b) = (OwnerId::intern(OwnerId::ROOT, "a"), OwnerId::intern(OwnerId::ROOT, "b"));
    /// let tag = |owner| Tag { owner, category: Category::Output };
    /// let mut ledger = Ledger::new();
    /// ledger.add(tag(a), 100);
    /// ledger.add(tag(b), 50);
    /// ledger.remove(tag(a), 100);
    /// ledger.add(tag(b), 90);
    /// assert_eq!((ledger.owner(b).own, ledger.own_at_peak(a), ledger.own_at_peak(b)), (140, 100, 50));
    /// ```
    #[must_use]
    pub fn own_at_peak(&self, owner: OwnerId) -> u64 {
        let account = self.accounts.get(owner.index());
        account.map_or(0, |account| account.own_at_peak.get(account.bytes.own, self.last_peak))
    }

    /// Returns the bytes of one category when the total first reached its peak.
    #[must_use]
    pub const fn category_at_peak(&self, category: Category) -> u64 {
        let account = &self.categories[category.index()];
        account.at_peak.get(account.live, self.last_peak)
    }

    /// Returns all live bytes: the sum over categories, which equals the sum over owners.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.categories.iter().map(|account| account.live).sum()
    }

    /// Resets every peak to the live bytes.
    pub fn reset_peaks(&mut self) {
        for account in &mut self.accounts {
            account.bytes.peak = account.bytes.live;
        }
        for account in &mut self.categories {
            account.peak = account.live;
        }
        self.peak = self.total();
        self.last_peak += 1;
    }

    /// Adds another ledger. Peaks, and the values at them, become upper bounds, because the two may have peaked at
    /// different times.
    pub(crate) fn add_all(&mut self, other: &Self) {
        let (last_peak, number) = (self.last_peak, self.last_peak + 1);
        let at_peak = |ours: AtPeak, now: u64, theirs: AtPeak, their_now: u64| AtPeak {
            bytes: ours.get(now, last_peak) + theirs.get(their_now, other.last_peak),
            number,
        };
        for (sum, account) in self.categories.iter_mut().zip(&other.categories) {
            sum.at_peak = at_peak(sum.at_peak, sum.live, account.at_peak, account.live);
            sum.live += account.live;
            sum.peak += account.peak;
        }
        for (index, account) in other.accounts.iter().enumerate() {
            self.open(OwnerId::from_index(index));
            let sum = &mut self.accounts[index];
            sum.own_at_peak = at_peak(sum.own_at_peak, sum.bytes.own, account.own_at_peak, account.bytes.own);
            sum.bytes.own += account.bytes.own;
            sum.bytes.live += account.bytes.live;
            sum.bytes.peak += account.bytes.peak;
        }
        // Owners that the other ledger lacks stay unchanged.
        for sum in self.accounts.iter_mut().skip(other.accounts.len()) {
            sum.own_at_peak = at_peak(sum.own_at_peak, sum.bytes.own, AtPeak::default(), 0);
        }
        self.live += other.live;
        self.peak += other.peak;
        self.last_peak = number;
    }

    /// Creates accounts for `owner` and all owners above it, if missing.
    #[cold]
    #[inline(never)]
    fn open(&mut self, owner: OwnerId) {
        self.open_below(owner, OwnerId::parent);
    }

    /// Creates the missing accounts up to that of `owner`, for owners that are no interned ids, such as those of a
    /// recorded run. `parent` returns the owner above another one, which has a smaller index.
    ///
    /// ```
    /// use bfc_core::{Category, Ledger, OwnerId, Tag};
    /// let [module, op] = [1, 2].map(OwnerId::from_index);
    /// let mut ledger = Ledger::new();
    /// ledger.open_below(op, |owner| if owner == op { module } else { OwnerId::ROOT });
    /// ledger.add(Tag { owner: op, category: Category::Output }, 100);
    /// assert_eq!((ledger.owner(module).own, ledger.owner(module).live), (0, 100));
    /// ```
    pub fn open_below(&mut self, owner: OwnerId, parent: impl Fn(OwnerId) -> OwnerId) {
        // Parents have smaller ids than their children, so the ids below `owner` include all owners above it.
        let first = self.accounts.len();
        self.accounts.extend((first..=owner.index()).map(|index| Account {
            bytes: OwnerBytes::default(),
            own_at_peak: AtPeak::default(),
            parent: parent(OwnerId::from_index(index)),
        }));
    }

    /// Updates the inclusive bytes of `owner` and the owners above it, except the root.
    #[inline]
    fn walk_up(&mut self, owner: OwnerId, mut change: impl FnMut(&mut OwnerBytes)) {
        let mut id = owner;
        while id != OwnerId::ROOT {
            let account = &mut self.accounts[id.index()];
            change(&mut account.bytes);
            id = account.parent;
        }
    }
}

#[cfg(test)]
mod tests;
