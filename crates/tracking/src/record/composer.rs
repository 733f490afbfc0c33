//! Composes a recording from the events of another tool.
//!
//! Such events have no addresses of one pool, so blocks get addresses one behind the other, which never overlap.

use std::collections::HashMap;

use bfc_core::Category;

use super::builder::{BlockProblem, Builder, RecordingLimits};
use super::recording::Recording;
use super::wire::{EventContext, MAX_TEXT, RawEvent};
use crate::files::boundary::floor_boundary;
use crate::files::lean::HeldMemory;
use crate::report::RunFacts;
use crate::scope::Phase;

/// The cost of the index entry of an owner, besides its name.
const INDEX_BYTES: u64 = 96;

/// A block to allocate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlock {
    pub(crate) bytes: u64,
    pub(crate) owner: u32,
    pub(crate) category: Category,
}

/// A recording in progress. Events belong to the current time, thread and pool.
#[derive(Debug)]
pub(crate) struct Composer {
    builder: Builder,
    /// The numbers of the owners by parent and name.
    owners: HashMap<(u32, String), u32>,
    pools: HashMap<String, u32>,
    context: EventContext,
    now_ns: u64,
    blocks: u64,
    next_address: u64,
}

impl Composer {
    pub(crate) fn new(limits: RecordingLimits, memory: HeldMemory) -> Self {
        Self {
            builder: Builder::new(limits, memory),
            owners: HashMap::new(),
            pools: HashMap::new(),
            context: EventContext::default(),
            now_ns: 0,
            blocks: 0,
            next_address: 0,
        }
    }

    /// Returns the memory account, to which the reader adds its own data.
    pub(crate) const fn memory(&mut self) -> &mut HeldMemory {
        self.builder.memory_mut()
    }

    /// Sets the time of the following events, in nanoseconds since the first one.
    pub(crate) const fn at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Makes this pool the one of the following events.
    pub(crate) fn select_pool(&mut self, name: &str, memory: &str) -> Result<(), BlockProblem> {
        let name = cut(name);
        self.context.pool = match self.pools.get(name) {
            Some(&pool) => pool,
            None => {
                let pool = self.pools.len() as u32;
                self.builder.memory_mut().charge(INDEX_BYTES + name.len() as u64)?;
                self.take(&RawEvent::Pool { pool, memory, name })?;
                self.pools.insert(name.to_owned(), pool);
                pool
            }
        };
        Ok(())
    }

    /// Returns whether no pool was selected yet.
    pub(crate) fn is_without_pool(&self) -> bool {
        self.pools.is_empty()
    }

    /// Returns the number of an owner below `parent`. The root is 0. Ops have a phase, and their names contain it.
    pub(crate) fn owner(
        &mut self,
        parent: u32,
        name: &str,
        phase: Option<Phase>,
    ) -> Result<u32, BlockProblem> {
        let key = (parent, cut(name).to_owned());
        if let Some(&owner) = self.owners.get(&key) {
            if phase.is_some() {
                // A module that is also an op counts as an op.
                self.take(&RawEvent::Owner { owner, parent, phase, name: &key.1 })?;
            }
            return Ok(owner);
        }
        self.builder.memory_mut().charge(INDEX_BYTES + key.1.len() as u64)?;
        let owner = self.owners.len() as u32 + 1;
        self.take(&RawEvent::Owner { owner, parent, phase, name: &key.1 })?;
        self.owners.insert(key, owner);
        Ok(owner)
    }

    /// Allocates a block and returns its id.
    pub(crate) fn alloc(&mut self, block: NewBlock) -> Result<u64, BlockProblem> {
        let NewBlock { bytes, owner, category } = block;
        let id = self.blocks;
        let (requested, granted, address) = (bytes, bytes, self.next_address);
        self.take(&RawEvent::Alloc { id, requested, granted, address, owner, category })?;
        self.blocks += 1;
        self.next_address = address.wrapping_add(bytes.max(1));
        Ok(id)
    }

    /// Frees a block of the current pool.
    pub(crate) fn free(&mut self, id: u64) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Free { id })
    }

    pub(crate) fn mark(&mut self, text: &str) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Mark { text: cut(text) })
    }

    fn take(&mut self, event: &RawEvent<'_>) -> Result<(), BlockProblem> {
        self.builder.take(self.now_ns, self.context, event)
    }

    /// Returns the recording, and the bytes of the memory limit that are reserved for results.
    pub(crate) fn finish(mut self, facts: RunFacts) -> Result<(Recording, u64), BlockProblem> {
        self.builder.check_rows()?;
        let reserved = self.builder.memory().reserved();
        let mut recording = self.builder.finish();
        recording.facts = facts;
        Ok((recording, reserved))
    }
}

/// Cuts a text to the longest one of a recording.
fn cut(text: &str) -> &str {
    &text[..floor_boundary(text, MAX_TEXT)]
}
