//! Composes a recording from the events of another tool.
//!
//! Blocks of a tool without addresses get addresses one behind the other, which never overlap.

use std::collections::HashMap;
use std::sync::Arc;

use bfc_core::{Category, Span};
use highwater_files::boundary::floor_boundary;
use highwater_files::lean::HeldMemory;

use super::builder::{BlockProblem, Builder, RecordingLimits};
use super::recording::Recording;
use super::wire::{EventContext, MAX_TEXT, RawEvent};
use crate::report::RunFacts;
use crate::scope::Phase;

/// The cost of the index entry of a name, besides its letters, and that of an owner.
const NAME_BYTES: u64 = 96;
const OWNER_ENTRY_BYTES: u64 = 48;

/// A block to allocate, of a tool that knows only its size.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock {
    /// The requested and granted bytes.
    pub bytes: u64,
    /// The number of its owner, from [`Composer::owner`].
    pub owner: u32,
    /// Its category.
    pub category: Category,
}

/// A block to allocate, of a tool that knows its place.
#[derive(Clone, Copy, Debug)]
pub struct PlacedBlock {
    /// The requested bytes.
    pub requested: u64,
    /// The granted bytes, at least those requested.
    pub granted: u64,
    /// The address.
    pub address: u64,
    /// The number of its owner, from [`Composer::owner`].
    pub owner: u32,
    /// Its category.
    pub category: Category,
    /// The device stream; 0 for the default stream.
    pub stream: u32,
}

/// A name of owners, stored in a [`Composer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerName(u32);

/// A recording in progress, of the events of another tool. Events belong to the current time, thread and pool.
///
/// The limits of a recording apply, and all memory is charged to one account.
///
/// ```
/// use bfc_core::{Category, MIB};
/// use highwater_files::lean::HeldMemory;
/// use highwater_tracking::{Composer, NewBlock, Phase, RecordingLimits, Report, RunFacts};
/// let mut composer = Composer::new(RecordingLimits::default(), HeldMemory::new(MIB));
/// composer.select_pool("heap", "host")?;
/// let (module, op) = (composer.name("net")?, composer.name("matmul")?);
/// let module = composer.owner(0, module, None)?;
/// let owner = composer.owner(module, op, Some(Phase::Forward))?;
/// let block = composer.alloc(NewBlock { bytes: 1000, owner, category: Category::Output })?;
/// composer.free(block)?;
/// let (recording, _) = composer.finish(RunFacts::new("example"))?;
/// assert_eq!(Report::from_recording(&recording).places[0].path(), "net.matmul");
/// # Ok::<(), highwater_tracking::BlockProblem>(())
/// ```
///
/// # Errors
/// Methods fail with a [`BlockProblem`] for an event beyond a limit, or one that contradicts earlier events.
#[derive(Debug)]
pub struct Composer {
    builder: Builder,
    /// The numbers of the names. Many owners share a name, and each is stored and hashed once.
    names: HashMap<Arc<str>, OwnerName>,
    texts: Vec<Arc<str>>,
    /// The numbers of the owners by parent and name.
    owners: HashMap<(u32, OwnerName), u32>,
    pools: HashMap<String, u32>,
    context: EventContext,
    now_ns: u64,
    blocks: u64,
    next_address: u64,
}

impl Composer {
    /// Creates an empty recording.
    #[must_use]
    pub fn new(limits: RecordingLimits, memory: HeldMemory) -> Self {
        Self {
            builder: Builder::new(limits, memory),
            names: HashMap::new(),
            texts: Vec::new(),
            owners: HashMap::new(),
            pools: HashMap::new(),
            context: EventContext::default(),
            now_ns: 0,
            blocks: 0,
            next_address: 0,
        }
    }

    /// Returns the memory account, to which the reader adds its own data.
    pub const fn memory(&mut self) -> &mut HeldMemory {
        self.builder.memory_mut()
    }

    /// Sets the time of the following events, in nanoseconds since the first one.
    pub const fn at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Makes this pool the one of the following events.
    pub fn select_pool(&mut self, name: &str, memory: &str) -> Result<(), BlockProblem> {
        let name = cut(name);
        self.context.pool = match self.pools.get(name) {
            Some(&pool) => pool,
            None => {
                let pool = self.pools.len() as u32;
                self.builder.memory_mut().charge(NAME_BYTES + name.len() as u64)?;
                self.take(&RawEvent::Pool { pool, memory, name })?;
                self.pools.insert(name.to_owned(), pool);
                pool
            }
        };
        Ok(())
    }

    /// Returns whether no pool was selected yet.
    #[must_use]
    pub fn is_without_pool(&self) -> bool {
        self.pools.is_empty()
    }

    /// Stores a name, and returns its number. A reader that looks up many owners of one name stores the name before.
    pub fn name(&mut self, text: &str) -> Result<OwnerName, BlockProblem> {
        let text = cut(text);
        if let Some(&known) = self.names.get(text) {
            return Ok(known);
        }
        self.builder.memory_mut().charge(NAME_BYTES + text.len() as u64)?;
        let (name, text) = (OwnerName(self.texts.len() as u32), Arc::<str>::from(text));
        self.texts.push(Arc::clone(&text));
        self.names.insert(text, name);
        Ok(name)
    }

    /// Returns the number of an owner below `parent`. The root is 0. Ops have a phase, and their names contain it.
    pub fn owner(&mut self, parent: u32, name: OwnerName, phase: Option<Phase>) -> Result<u32, BlockProblem> {
        let known = self.owners.get(&(parent, name)).copied();
        // A module that is also an op counts as an op.
        if let Some(owner) = known.filter(|&owner| phase.is_none() || self.builder.owner(owner).is_op()) {
            return Ok(owner);
        }
        self.builder.memory_mut().charge(OWNER_ENTRY_BYTES)?;
        let owner = known.unwrap_or(self.owners.len() as u32 + 1);
        let text = Arc::clone(&self.texts[name.0 as usize]);
        self.take(&RawEvent::Owner { owner, parent, phase, name: &text })?;
        self.owners.insert((parent, name), owner);
        Ok(owner)
    }

    /// Returns how deep an owner is below the root, which has depth 0.
    #[must_use]
    pub fn depth(&self, owner: u32) -> u32 {
        self.builder.depth(owner)
    }

    /// Allocates a block and returns its id.
    pub fn alloc(&mut self, block: NewBlock) -> Result<u64, BlockProblem> {
        let NewBlock { bytes, owner, category } = block;
        let address = self.next_address;
        let placed = PlacedBlock { requested: bytes, granted: bytes, address, owner, category, stream: 0 };
        let id = self.place(placed)?;
        self.next_address = address.wrapping_add(bytes.max(1));
        Ok(id)
    }

    /// Allocates a block at its address and returns its id. A recording has either such blocks or those of
    /// [`alloc`](Self::alloc).
    pub fn place(&mut self, block: PlacedBlock) -> Result<u64, BlockProblem> {
        let PlacedBlock { requested, granted, address, owner, category, stream } = block;
        let (id, granted) = (self.blocks, granted.max(requested));
        self.context.stream = stream;
        self.take(&RawEvent::Alloc { id, requested, granted, address, owner, category })?;
        self.blocks += 1;
        Ok(id)
    }

    /// Notes that the current pool took a region from its source, or returned it.
    pub fn region(&mut self, region: Span, taken: bool) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Region { address: region.address, bytes: region.bytes, taken })
    }

    /// Notes a request of the current pool that ran out of memory.
    pub fn fail(&mut self, requested: u64, owner: u32, category: Category) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Failed { requested, owner, category })
    }

    /// Frees a block of the current pool.
    pub fn free(&mut self, id: u64) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Free { id })
    }

    /// Notes that the events so far only restore what was live before the events of the tool: see
    /// [`Recording::carried_events`].
    pub fn carry(&mut self) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Lost { events: 0 })
    }

    /// Marks the part of the run that follows.
    pub fn mark(&mut self, text: &str) -> Result<(), BlockProblem> {
        self.take(&RawEvent::Mark { text: cut(text) })
    }

    fn take(&mut self, event: &RawEvent<'_>) -> Result<(), BlockProblem> {
        self.builder.take(self.now_ns, self.context, event)
    }

    /// Returns the recording, and the bytes of the memory limit that are reserved for results.
    pub fn finish(mut self, facts: RunFacts) -> Result<(Recording, u64), BlockProblem> {
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
