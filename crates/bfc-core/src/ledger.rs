//! The account book of a pool: live bytes by owner and by category.
//!
//! A pool posts to its ledger under its own lock, in the same step in which it changes its bytes in use. So the
//! sums hold at every event: the own bytes of all owners, and the bytes of all categories, both equal the pool's
//! bytes in use. An owner's inclusive figures also count every owner below it, which gives exact high-water marks for
//! whole modules at the price of a few additions per event.

use crate::owner::OwnerId;

/// What a block of memory is for. Every byte has exactly one category, given when it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    /// Scratch that an op gives back before it returns, and anything not declared otherwise.
    #[default]
    Temporary,
    /// A trained parameter.
    Parameter,
    /// A gradient.
    Gradient,
    /// State that an optimiser keeps between steps.
    OptimizerState,
    /// An op's result or input that is kept for the backward pass.
    Activation,
    /// Data that entered from outside.
    Input,
    /// An op's result that backward does not need.
    Output,
    /// Scratch that a library asked for.
    Workspace,
}

impl Category {
    /// How many categories there are.
    pub const COUNT: usize = 8;

    /// All categories, in the order of their indices.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Temporary,
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::Output,
        Self::Workspace,
    ];

    /// The category's place in [`Category::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The category's name in tables and JSON.
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
        }
    }
}

/// What a request is charged to: who asks, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Who holds the bytes.
    pub owner: OwnerId,
    /// What the bytes are for.
    pub category: Category,
}

/// One owner's account, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerBytes {
    /// Live bytes charged to this owner itself.
    pub own: u64,
    /// Live bytes charged to this owner and all owners below it.
    pub live: u64,
    /// The most that `live` has been.
    pub peak: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    bytes: OwnerBytes,
    parent: OwnerId,
}

/// Live bytes of one pool by owner and by category. See the module's text for its invariant.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Indexed by [`OwnerId::index`]; grows when an owner is first charged.
    accounts: Vec<Account>,
    categories: [u64; Category::COUNT],
}

impl Ledger {
    /// An empty book.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Charges `bytes` more to `tag`.
    #[inline]
    pub fn add(&mut self, tag: Tag, bytes: u64) {
        self.categories[tag.category.index()] += bytes;
        self.open(tag.owner);
        self.accounts[tag.owner.index()].bytes.own += bytes;
        self.walk_up(tag.owner, |account| {
            account.live += bytes;
            account.peak = account.peak.max(account.live);
        });
    }

    /// Takes `bytes` off `tag`, which must have been charged with at least as many.
    #[inline]
    pub fn remove(&mut self, tag: Tag, bytes: u64) {
        self.open(tag.owner);
        self.categories[tag.category.index()] -= bytes;
        self.accounts[tag.owner.index()].bytes.own -= bytes;
        self.walk_up(tag.owner, |account| account.live -= bytes);
    }

    /// Moves `bytes` from one tag to another, without a moment in which they are nobody's or counted twice.
    pub fn retag(&mut self, from: Tag, to: Tag, bytes: u64) {
        if from.owner == to.owner {
            self.categories[from.category.index()] -= bytes;
            self.categories[to.category.index()] += bytes;
        } else {
            self.remove(from, bytes);
            self.add(to, bytes);
        }
    }

    /// The account of one owner; all zero if it was never charged.
    #[must_use]
    pub fn owner(&self, owner: OwnerId) -> OwnerBytes {
        self.accounts.get(owner.index()).map_or_else(OwnerBytes::default, |account| account.bytes)
    }

    /// The accounts of all owners that were ever charged, in the order of their ids.
    pub fn owners(&self) -> impl Iterator<Item = (OwnerId, OwnerBytes)> + '_ {
        self.accounts
            .iter()
            .enumerate()
            .filter(|(_, account)| account.bytes.peak > 0)
            .map(|(index, account)| (OwnerId::from_index(index), account.bytes))
    }

    /// The owners that hold most themselves, at most `most` of them, in falling order of bytes.
    #[must_use]
    pub fn largest_holders(&self, most: usize) -> Vec<(OwnerId, u64)> {
        let owners = self.owners().map(|(owner, bytes)| (owner, bytes.own));
        let mut holders: Vec<(OwnerId, u64)> = owners.filter(|(_, own)| *own > 0).collect();
        holders.sort_by_key(|&(owner, own)| (std::cmp::Reverse(own), owner));
        holders.truncate(most);
        holders
    }

    /// Live bytes of one category.
    #[must_use]
    pub const fn category(&self, category: Category) -> u64 {
        self.categories[category.index()]
    }

    /// All live bytes: the sum over categories, which equals the sum over owners.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.categories.iter().sum()
    }

    /// Sets every owner's peak to what it holds now.
    pub fn reset_peaks(&mut self) {
        for account in &mut self.accounts {
            account.bytes.peak = account.bytes.live;
        }
    }

    /// Adds all that another book holds. Peaks are added too, and are then upper bounds: the two may have been reached
    /// at different times.
    pub(crate) fn add_all(&mut self, other: &Self) {
        for (sum, bytes) in self.categories.iter_mut().zip(other.categories) {
            *sum += bytes;
        }
        for (index, account) in other.accounts.iter().enumerate() {
            self.open(OwnerId::from_index(index));
            let sum = &mut self.accounts[index].bytes;
            sum.own += account.bytes.own;
            sum.live += account.bytes.live;
            sum.peak += account.bytes.peak;
        }
    }

    /// Makes accounts for `owner` and all owners above it.
    #[inline]
    fn open(&mut self, owner: OwnerId) {
        if owner.index() < self.accounts.len() {
            return;
        }
        // Parents are interned before their children, so the ids below `owner` include all owners above it.
        let first = self.accounts.len();
        self.accounts.extend((first..=owner.index()).map(|index| Account {
            bytes: OwnerBytes::default(),
            parent: OwnerId::from_index(index).parent(),
        }));
    }

    #[inline]
    fn walk_up(&mut self, owner: OwnerId, mut change: impl FnMut(&mut OwnerBytes)) {
        let mut id = owner;
        loop {
            let account = &mut self.accounts[id.index()];
            change(&mut account.bytes);
            if id == OwnerId::ROOT {
                return;
            }
            id = account.parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(owner: OwnerId, category: Category) -> Tag {
        Tag { owner, category }
    }

    #[test]
    fn the_bytes_of_a_child_count_in_its_parents_live_and_peak() {
        let net = OwnerId::intern(OwnerId::ROOT, "ledger-net");
        let (a, b) = (OwnerId::intern(net, "a"), OwnerId::intern(net, "b"));
        let mut ledger = Ledger::new();
        ledger.add(tag(a, Category::Output), 100);
        ledger.add(tag(b, Category::Output), 50);
        ledger.remove(tag(a, Category::Output), 100);
        assert_eq!(ledger.owner(net), OwnerBytes { own: 0, live: 50, peak: 150 });
        assert_eq!(ledger.owner(a), OwnerBytes { own: 0, live: 0, peak: 100 });
        assert_eq!(ledger.owner(OwnerId::ROOT).live, ledger.total());
    }

    #[test]
    fn retagging_moves_bytes_and_keeps_the_sum() {
        let owner = OwnerId::intern(OwnerId::ROOT, "ledger-retag");
        let mut ledger = Ledger::new();
        ledger.add(tag(owner, Category::Output), 64);
        ledger.retag(tag(owner, Category::Output), tag(owner, Category::Activation), 64);
        assert_eq!(ledger.category(Category::Output), 0);
        assert_eq!(ledger.category(Category::Activation), 64);
        ledger.retag(tag(owner, Category::Activation), Tag::default(), 64);
        assert_eq!(ledger.owner(owner).own, 0);
        assert_eq!(ledger.total(), 64);
    }
}
