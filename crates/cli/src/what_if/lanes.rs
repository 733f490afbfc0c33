//! Which blocks share a pool: as recorded, or otherwise.

use std::collections::{BTreeMap, HashMap};

use highwater_tracking::{BlockLife, Recording, Trace, TraceLimits, TraceProblem};

/// As many pools as a recording has at most.
const MOST_GROUPS: usize = 1 << 12;

/// Which blocks share a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Those of one pool, whatever their stream.
    Pools,
    /// Those of one kind of memory, whatever their pool.
    Merged,
    /// Those of one stream of one pool, as allocators do that keep the memory of streams apart.
    Streams,
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

    /// Whether this grouping tells apart, or puts together, what the recorded one does not. What would take too many pools
    /// to be of use is not offered.
    pub(super) fn differs(&self, recording: &Recording, grouping: Grouping) -> bool {
        let groups = self.groups(recording, grouping).len();
        groups != self.groups(recording, Grouping::Pools).len() && groups <= MOST_GROUPS
    }

    /// The trace of each group.
    pub(super) fn traces(
        &self,
        recording: &Recording,
        grouping: Grouping,
    ) -> Result<Vec<Trace>, TraceProblem> {
        let limits = TraceLimits { events: u32::MAX, ..TraceLimits::default() };
        let groups = self.groups(recording, grouping);
        Trace::of_groups(recording, &limits, |block| {
            self.has(block.pool).then(|| groups.get(&self.key(block, grouping)).copied()).flatten()
        })
    }

    /// The number of each group.
    fn groups(&self, recording: &Recording, grouping: Grouping) -> BTreeMap<Key, u16> {
        let mut groups = BTreeMap::new();
        for block in recording.blocks().iter().filter(|block| self.has(block.pool)) {
            let next = u16::try_from(groups.len()).unwrap_or(u16::MAX);
            groups.entry(self.key(block, grouping)).or_insert(next);
        }
        groups
    }
}

/// Tells groups apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pool: u32,
    stream: u32,
}

impl Lanes {
    fn key(&self, block: &BlockLife, grouping: Grouping) -> Key {
        match grouping {
            Grouping::Pools => Key { pool: block.pool, stream: 0 },
            Grouping::Streams => Key { pool: block.pool, stream: block.stream },
            Grouping::Merged => {
                let first = self.first_of_kind.get(block.pool as usize).copied();
                Key { pool: first.unwrap_or(block.pool), stream: 0 }
            }
        }
    }
}
