//! Who holds how much now, and held how much at the peak.

use bfc_core::Category;

use crate::record::builder::{BlockProblem, RecordingLimits};
use crate::record::recording::Owner;

/// One who holds memory or runs: an op in a module, or a module as far as it holds memory outside of ops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderNow {
    /// The path, with op and phase.
    pub name: String,
    /// Executions that began.
    pub calls: u64,
    /// Bytes charged to it now.
    pub live_bytes: u64,
    /// The most that was charged to it at a time.
    pub most_bytes: u64,
    /// Bytes charged to it when most was in use.
    pub peak_bytes: u64,
}

/// What is in use for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CategoryNow {
    /// The purpose.
    pub category: Category,
    /// Bytes now.
    pub live_bytes: u64,
    /// The most at a time.
    pub most_bytes: u64,
    /// Bytes when most was in use.
    pub peak_bytes: u64,
}

/// An account. What it was at the peak is noted when it first changes after it.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    calls: u64,
    now: u64,
    most: u64,
    at_peak: u64,
    /// The number of the peak that `at_peak` is of.
    peak: u64,
}

impl Account {
    fn before_change(&mut self, last_peak: u64) {
        if self.peak != last_peak {
            (self.at_peak, self.peak) = (self.now, last_peak);
        }
    }

    fn add(&mut self, bytes: u64, last_peak: u64) {
        self.before_change(last_peak);
        self.now += bytes;
        self.most = self.most.max(self.now);
    }

    fn remove(&mut self, bytes: u64, last_peak: u64) {
        self.before_change(last_peak);
        self.now -= bytes;
    }

    const fn at_peak(&self, last_peak: u64) -> u64 {
        if self.peak == last_peak { self.at_peak } else { self.now }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Holders {
    owners: Vec<Owner>,
    depths: Vec<u32>,
    accounts: Vec<Account>,
    categories: [Account; Category::COUNT],
    live: u64,
    peak: u64,
    peak_at: u64,
    peak_owner: u32,
    /// How often the peak was raised.
    last_peak: u64,
}

impl Default for Holders {
    fn default() -> Self {
        Self {
            owners: vec![Owner::default()],
            depths: vec![0],
            accounts: vec![Account::default()],
            categories: [Account::default(); Category::COUNT],
            live: 0,
            peak: 0,
            peak_at: 0,
            peak_owner: 0,
            last_peak: 0,
        }
    }
}

impl Holders {
    /// Takes in the name of an owner.
    pub(super) fn name(
        &mut self,
        number: u32,
        named: Owner,
        limits: &RecordingLimits,
    ) -> Result<(), BlockProblem> {
        if let Some(known) = self.owners.get_mut(number as usize) {
            if number != 0 && known.phase.is_none() {
                known.phase = named.phase;
            }
            return Ok(());
        }
        if number as usize != self.owners.len() {
            return Err(BlockProblem::OutOfTurn { what: "owner", number });
        }
        let too_many = |what, limit| Err(BlockProblem::TooMany { what, limit });
        if number >= limits.owners {
            return too_many("owners", limits.owners);
        }
        self.check(named.parent)?;
        let depth = self.depths[named.parent as usize];
        if depth >= limits.depth {
            return too_many("owners one below the other", limits.depth);
        }
        self.depths.push(depth + 1);
        self.accounts.push(Account::default());
        self.owners.push(named);
        Ok(())
    }

    /// Whether an owner has a name.
    pub(super) const fn check(&self, owner: u32) -> Result<(), BlockProblem> {
        if (owner as usize) < self.owners.len() {
            Ok(())
        } else {
            Err(BlockProblem::Unnamed { what: "owner", number: owner })
        }
    }

    /// Charges bytes to an owner, which has a name.
    pub(super) fn add(
        &mut self,
        owner: u32,
        category: Category,
        bytes: u64,
        now: u64,
    ) -> Result<(), BlockProblem> {
        self.live = self.live.checked_add(bytes).ok_or(BlockProblem::TooManyBytes)?;
        self.accounts[owner as usize].add(bytes, self.last_peak);
        self.categories[category.index()].add(bytes, self.last_peak);
        if self.live > self.peak {
            (self.peak, self.peak_at, self.peak_owner) = (self.live, now, owner);
            self.last_peak += 1;
        }
        Ok(())
    }

    /// Takes off bytes that were charged.
    pub(super) fn remove(&mut self, owner: u32, category: Category, bytes: u64) {
        self.live -= bytes;
        self.accounts[owner as usize].remove(bytes, self.last_peak);
        self.categories[category.index()].remove(bytes, self.last_peak);
    }

    /// Counts an execution.
    pub(super) fn call(&mut self, owner: u32) -> Result<(), BlockProblem> {
        self.check(owner)?;
        self.accounts[owner as usize].calls += 1;
        Ok(())
    }

    pub(super) const fn live(&self) -> u64 {
        self.live
    }

    pub(super) const fn peak(&self) -> u64 {
        self.peak
    }

    pub(super) const fn peak_at_ns(&self) -> u64 {
        self.peak_at
    }

    pub(super) const fn peak_owner(&self) -> u32 {
        self.peak_owner
    }

    /// The names from below the root down, joined by dots. Limits on depth and names keep it short.
    pub(super) fn path(&self, owner: u32) -> String {
        let mut names = Vec::new();
        let mut at = owner;
        while at != 0 {
            let Owner { name, parent, .. } = &self.owners[at as usize];
            names.push(name.as_str());
            at = *parent;
        }
        names.reverse();
        names.join(".")
    }

    /// The largest holders. Only they get a path: the paths of a hostile file may be long.
    pub(super) fn rows(&self, most: usize) -> Vec<HolderNow> {
        let mut found: Vec<(u32, Account)> = (0..).zip(self.accounts.iter().copied()).collect();
        found.retain(|(_, account)| account.calls > 0 || account.most > 0);
        found.sort_by_key(|(owner, account)| {
            let weight = (account.now, account.at_peak(self.last_peak), account.most);
            (std::cmp::Reverse(weight), *owner)
        });
        let row = |(owner, account): (u32, Account)| HolderNow {
            name: self.path(owner),
            calls: account.calls,
            live_bytes: account.now,
            most_bytes: account.most,
            peak_bytes: account.at_peak(self.last_peak),
        };
        found.into_iter().take(most).map(row).collect()
    }

    pub(super) fn categories(&self) -> [CategoryNow; Category::COUNT] {
        Category::ALL.map(|category| {
            let account = &self.categories[category.index()];
            CategoryNow {
                category,
                live_bytes: account.now,
                most_bytes: account.most,
                peak_bytes: account.at_peak(self.last_peak),
            }
        })
    }
}
