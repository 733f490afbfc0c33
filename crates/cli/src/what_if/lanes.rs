//! Which blocks share a pool: as recorded, or otherwise.

use std::collections::{BTreeMap, HashMap};

use highwater_tracking::{BlockLife, Recording, Trace, TraceLimits, TraceProblem};

/// Which blocks share a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Those of one pool, which is always of one stream.
    Pools,
    /// Those of one kind of memory, whatever their pool and its stream.
    Merged,
}

/// The blocks that are looked at.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    /// Whether the blocks of a pool count, by its index.
    chosen: Vec<bool>,
    /// The first pool of the same kind of memory, which stands for all of that kind, by the index of a pool.
    first_of_kind: Vec<u32>,
}

/// The run has no pool of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no pool {name:?} in the run; there are {known}")]
pub(super) struct UnknownPool {
    name: String,
    known: String,
}

impl Lanes {
    /// All pools of the run, or the one of this name.
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

    /// Whether the blocks of the pool with this index count.
    pub(super) fn has(&self, pool: u32) -> bool {
        self.chosen.get(pool as usize).copied().unwrap_or(false)
    }

    /// Whether several of the pools have one kind of memory: whether to merge them makes a difference.
    pub(super) fn can_be_merged(&self, recording: &Recording) -> bool {
        self.groups(recording, Grouping::Merged).len() < self.groups(recording, Grouping::Pools).len()
    }

    /// The trace of each group.
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

    /// The number of each group.
    fn groups(&self, recording: &Recording, grouping: Grouping) -> BTreeMap<u32, u16> {
        let mut groups = BTreeMap::new();
        for block in recording.blocks().iter().filter(|block| self.has(block.pool)) {
            let next = u16::try_from(groups.len()).unwrap_or(u16::MAX);
            groups.entry(self.key(block, grouping)).or_insert(next);
        }
        groups
    }

    /// The index of the pool that stands for a block's group.
    fn key(&self, block: &BlockLife, grouping: Grouping) -> u32 {
        match grouping {
            Grouping::Pools => block.pool,
            Grouping::Merged => self.first_of_kind.get(block.pool as usize).copied().unwrap_or(block.pool),
        }
    }
}
