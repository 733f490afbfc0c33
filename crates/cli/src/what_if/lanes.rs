//! Which blocks share a pool: as recorded, or otherwise.

use std::collections::BTreeSet;

use highwater_tracking::{BlockLife, Recording, Trace, TraceLimits, TraceProblem};

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
            _ => Ok(Self { chosen }),
        }
    }

    /// Whether the blocks of the pool with this index count.
    pub(super) fn has(&self, pool: u32) -> bool {
        self.chosen.get(pool as usize).copied().unwrap_or(false)
    }

    /// Whether this grouping tells apart, or puts together, what the recorded one does not.
    pub(super) fn differs(&self, recording: &Recording, grouping: Grouping) -> bool {
        self.keys(recording, grouping).len() != self.keys(recording, Grouping::Pools).len()
    }

    /// The trace of each group.
    pub(super) fn traces(
        &self,
        recording: &Recording,
        grouping: Grouping,
    ) -> Result<Vec<Trace>, TraceProblem> {
        let limits = TraceLimits { events: u32::MAX, ..TraceLimits::default() };
        let trace = |key: Key| {
            Trace::from_blocks(recording, &limits, |block| {
                self.has(block.pool) && Key::of(recording, block, grouping) == key
            })
        };
        self.keys(recording, grouping).into_iter().map(trace).collect()
    }

    fn keys(&self, recording: &Recording, grouping: Grouping) -> BTreeSet<Key> {
        let blocks = recording.blocks().iter().filter(|block| self.has(block.pool));
        blocks.map(|block| Key::of(recording, block, grouping)).collect()
    }
}

/// Tells groups apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pool: u32,
    stream: u32,
}

impl Key {
    fn of(recording: &Recording, block: &BlockLife, grouping: Grouping) -> Self {
        let pools = recording.pools();
        match grouping {
            Grouping::Pools => Self { pool: block.pool, stream: 0 },
            Grouping::Streams => Self { pool: block.pool, stream: block.stream },
            Grouping::Merged => {
                // The first pool of that kind of memory stands for all.
                let memory = pools.get(block.pool as usize).map(|pool| &pool.memory);
                let first = pools.iter().position(|pool| Some(&pool.memory) == memory);
                Self { pool: first.map_or(block.pool, |first| first as u32), stream: 0 }
            }
        }
    }
}
