//! Which blocks share a pool: as recorded, or merged.

use std::collections::{BTreeMap, HashMap};

use bfc_core::{did_you_mean, printable};
use highwater_traces::{Trace, TraceLimits, TraceProblem};
use highwater_tracking::{BlockLife, Recording};

/// Which blocks share a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// The blocks of one pool, which has one stream.
    Pools,
    /// All blocks of one kind of memory, across pools and streams.
    Merged,
}

/// The selected blocks.
#[derive(Clone, Debug)]
pub(super) struct PoolSelection {
    /// Whether a pool's blocks count, by pool index.
    chosen: Vec<bool>,
    /// The first pool with the same kind of memory, by pool index. It represents that kind.
    first_of_kind: Vec<u32>,
}

/// The run has no pool with this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run has no pool {name:?}{}; its pools are {known}", did_you_mean(name, known.split(", ")), known = printable(known))]
pub(super) struct UnknownPool {
    name: String,
    known: String,
}

impl PoolSelection {
    /// All pools of the run, or the one with this name.
    pub(super) fn new(recording: &Recording, only: Option<&str>) -> Result<Self, UnknownPool> {
        let pools = recording.pools();
        let chosen: Vec<bool> = pools.iter().map(|pool| only.is_none_or(|only| only == pool.name)).collect();
        match only {
            Some(name) if !chosen.contains(&true) => {
                let known: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
                Err(UnknownPool { name: name.to_owned(), known: known.join(", ") })
            }
            _ => {
                let mut kinds: HashMap<&str, u32> = HashMap::new();
                let first = |(pool, index)| *kinds.entry(pool).or_insert(index);
                let first_of_kind =
                    pools.iter().map(|pool| pool.memory.as_str()).zip(0..).map(first).collect();
                Ok(Self { chosen, first_of_kind })
            }
        }
    }

    /// Whether the blocks of this pool count.
    pub(super) fn has(&self, pool: u32) -> bool {
        self.chosen.get(pool as usize).copied().unwrap_or(false)
    }

    /// Whether several pools have one kind of memory, so that merging changes something.
    pub(super) fn can_be_merged(&self, recording: &Recording) -> bool {
        self.groups(recording, Grouping::Merged).len() < self.groups(recording, Grouping::Pools).len()
    }

    /// The traces of the groups.
    pub(super) fn traces(
        &self,
        recording: &Recording,
        grouping: Grouping,
    ) -> Result<Vec<Trace>, TraceProblem> {
        let limits = TraceLimits { events: u32::MAX, held_bytes: u64::MAX, ..TraceLimits::default() };
        let groups = self.groups(recording, grouping);
        Trace::of_groups(recording, &limits, |block| {
            self.has(block.pool).then(|| groups.get(&self.key(block, grouping)).copied()).flatten()
        })
    }

    /// Numbers the groups.
    fn groups(&self, recording: &Recording, grouping: Grouping) -> BTreeMap<u32, u16> {
        let mut groups = BTreeMap::new();
        for block in recording.blocks().iter().filter(|block| self.has(block.pool)) {
            let next = u16::try_from(groups.len()).unwrap_or(u16::MAX);
            groups.entry(self.key(block, grouping)).or_insert(next);
        }
        groups
    }

    /// The index of the pool that represents a block's group.
    fn key(&self, block: &BlockLife, grouping: Grouping) -> u32 {
        match grouping {
            Grouping::Pools => block.pool,
            Grouping::Merged => self.first_of_kind.get(block.pool as usize).copied().unwrap_or(block.pool),
        }
    }
}
