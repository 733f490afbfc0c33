//! Collects the blocks of a snapshot and the steps of its allocator, in the order of the events.

use std::collections::HashMap;

use bfc_core::{Category, Span};
use highwater_files::lean::{self, HeldMemory};
use highwater_files::pickle::{Heap, Value};

use super::SnapshotProblem;
use super::fields::{Fields, FieldsProblem, Key, Layouts};
use super::file::Device;
use super::labels::Labels;
use super::rounding::UNIT;
use super::segments::Segments;
use super::stacks::{NONE, StackReader, Stacks};
use crate::trace::{TraceError, TraceLimits, TracePlace, TraceProblem};

/// The cost of an entry of the table of addresses.
const ENTRY_BYTES: u64 = 48;

/// A block from its allocation to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    /// The requested bytes.
    pub(crate) requested: u64,
    /// The bytes of PyTorch's block. The requested bytes until the regions are known.
    pub(crate) granted: u64,
    /// The address.
    pub(crate) address: u64,
    /// The stack of the allocation; [`NONE`](super::stacks::NONE) if it is unknown.
    pub(crate) stack: u32,
    /// The stack of the free; [`NONE`](super::stacks::NONE) if it is unknown or the block is live at the end.
    pub(crate) freed_stack: u32,
    /// The step that allocated it; `None` for a block that is older than the first event.
    pub(crate) born: Option<u32>,
    /// The step that freed it; `None` for a block that is live at the end.
    pub(crate) freed: Option<u32>,
    /// The category that the file states.
    pub(crate) stated: Option<Category>,
    /// The number of its label.
    pub(super) label: u32,
    /// The number of its stream among those of [`Collected`], and in the end among those of the recording.
    pub(super) stream: u32,
}

/// An effect of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) time_us: u64,
    pub(super) effect: Effect,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// Allocates the next block.
    Alloc,
    /// Frees a block, by its index.
    Free(u32),
    /// Changes a region, by its index.
    Region(u32),
    /// A request ran out of memory, by its index.
    Oom(u32),
}

/// A region that the allocator took or returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionChange {
    pub(super) span: Span,
    pub(super) taken: bool,
    /// Whether it is a part of an expandable segment.
    pub(super) is_expandable: bool,
    /// The private pool, if the file states it.
    pub(super) pool: Option<(u64, u64)>,
}

/// A stream of events; the pool is unknown in files of PyTorch before 2.9.
pub(super) type EventStream = (u64, Option<(u64, u64)>);

/// A request that ran out of memory: its bytes and its label.
pub(super) type Oom = (u64, u32);

/// The contents of a snapshot's events.
#[derive(Debug)]
pub(super) struct Collected {
    /// The blocks in the order of their allocation.
    pub(super) lives: Vec<Life>,
    /// The number of blocks at the beginning that are older than the first event.
    pub(super) earlier_count: usize,
    pub(super) steps: Vec<Step>,
    pub(super) regions: Vec<RegionChange>,
    pub(super) ooms: Vec<Oom>,
    /// The blocks that waited for other streams after their free, by their index, with the step before which they were
    /// freed.
    pub(super) pending: Vec<(u32, u32)>,
    pub(super) streams: Vec<EventStream>,
    pub(super) stacks: Stacks,
    pub(super) labels: Vec<String>,
    pub(super) memory: HeldMemory,
}

impl Collected {
    /// Collects the events of a device, and the blocks that are live at the end.
    pub(super) fn read(
        heap: &Heap,
        device: &Device<'_>,
        segments: &Segments,
        limits: &TraceLimits,
        memory: HeldMemory,
    ) -> Result<Self, TraceError> {
        let mut collector = Collector {
            heap,
            limits,
            layouts: Layouts::default(),
            stacks: StackReader::default(),
            labels: Labels::new(limits),
            earlier: Vec::new(),
            live: HashMap::new(),
            stream_numbers: HashMap::new(),
            last_stream: None,
            earlier_bytes: 0,
            live_bytes: 0,
            requested_free: None,
            waiting: HashMap::new(),
            collected: Self {
                lives: Vec::new(),
                earlier_count: 0,
                steps: Vec::new(),
                regions: Vec::new(),
                ooms: Vec::new(),
                pending: Vec::new(),
                streams: Vec::new(),
                stacks: Stacks::default(),
                labels: Vec::new(),
                memory,
            },
        };
        for (index, &event) in (0..).zip(device.events) {
            collector
                .event(event)
                .map_err(|problem| TracePlace::Event { device: device.number, index }.of(problem))?;
        }
        collector.live_at_end(segments).map_err(|problem| TracePlace::Snapshot.of(problem))?;
        Ok(collector.finish())
    }

    /// Returns the time of the first event, in microseconds since the epoch; 0 without times.
    pub(super) fn first_us(&self) -> u64 {
        self.steps.iter().map(|step| step.time_us).find(|&time| time > 0).unwrap_or(0)
    }

    /// Returns whether all addresses are multiples of the unit of PyTorch's allocator.
    pub(super) fn has_units(&self) -> bool {
        self.lives.iter().all(|life| life.address % UNIT == 0)
    }

    /// Returns whether nothing happened and nothing was ever live.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.lives.is_empty()
    }
}

/// Converts events.
///
/// Numbers of blocks count up in the order of their allocation. Those of blocks that are older than the first event
/// count down from the largest number until [`finish`](Self::finish) puts these blocks in front.
struct Collector<'a> {
    heap: &'a Heap,
    limits: &'a TraceLimits,
    layouts: Layouts,
    stacks: StackReader,
    labels: Labels,
    /// The blocks that are older than the first event.
    earlier: Vec<Life>,
    /// The block at each address: its number, or `None` once freed.
    live: HashMap<u64, Option<u32>>,
    stream_numbers: HashMap<EventStream, u32>,
    last_stream: Option<(EventStream, u32)>,
    earlier_bytes: u64,
    live_bytes: u64,
    /// The address of the last event if that requests a free, and its step. The free usually follows at once.
    requested_free: Option<(u64, u32)>,
    /// The blocks that wait for other streams, by address, with the steps of their frees.
    waiting: HashMap<u64, u32>,
    collected: Collected,
}

impl Collector<'_> {
    fn event(&mut self, event: Value) -> Result<(), TraceProblem> {
        let fields = self.layouts.fields(self.heap, event, "an event", &mut self.collected.memory)?;
        let shape = SnapshotProblem::Shape { what: "an event's `action`", expected: "a text" };
        let action = fields.text(Key::Action).ok_or(shape)?;
        self.note_wait(action, &fields)?;
        let effect = match action {
            "alloc" => self.alloc(&fields)?,
            // Some backends free in one step.
            "free_completed" | "free" => self.free(&fields)?,
            "segment_alloc" => self.region(&fields, true, false)?,
            "segment_free" => self.region(&fields, false, false)?,
            "segment_map" => self.region(&fields, true, true)?,
            "segment_unmap" => self.region(&fields, false, true)?,
            "oom" => self.oom(&fields)?,
            _ => return Ok(()),
        };
        self.check_room()?;
        self.collected.memory.charge(lean::cost::<Step>())?;
        let time_us = fields.number(Key::TimeUs).unwrap_or(0);
        lean::push(&mut self.collected.steps, Step { time_us, effect });
        Ok(())
    }

    /// Notes a block whose free does not follow its request at once.
    fn note_wait(&mut self, action: &str, fields: &Fields<'_>) -> Result<(), TraceProblem> {
        let address = fields.number(Key::Addr);
        if let Some((waiting, step)) = self.requested_free.take() {
            if action != "free_completed" || address != Some(waiting) {
                self.collected.memory.charge(2 * ENTRY_BYTES)?;
                self.waiting.insert(waiting, step);
            }
        }
        if action == "free_requested" {
            self.requested_free = address.map(|address| (address, self.collected.steps.len() as u32));
        } else if action == "free_completed" && !self.waiting.is_empty() {
            if let Some(step) = address.and_then(|address| self.waiting.remove(&address)) {
                self.add_pending(address.unwrap_or_default(), step);
            }
        }
        Ok(())
    }

    /// Adds the live block at an address to those that wait. Its memory is charged.
    fn add_pending(&mut self, address: u64, step: u32) {
        if let Some(&Some(number)) = self.live.get(&address) {
            lean::push(&mut self.collected.pending, (number, step));
        }
    }

    fn check_room(&self) -> Result<(), TraceProblem> {
        // Each kind of block has half of the numbers, so that they never collide.
        let limit = self.limits.events.min(u32::MAX / 2);
        if self.collected.steps.len() + self.earlier.len() >= limit as usize {
            return Err(TraceProblem::TooMany { what: "events", limit });
        }
        Ok(())
    }

    fn alloc(&mut self, fields: &Fields<'_>) -> Result<Effect, TraceProblem> {
        let (address, requested) = fields.address_and_bytes()?;
        if self.live.get(&address).is_some_and(Option::is_some) {
            return Err(TraceProblem::AddressInUse { address });
        }
        self.live_bytes = self.live_bytes.checked_add(requested).ok_or(TraceProblem::TooManyBytes)?;
        let life = self.life(fields, address, requested)?;
        let number = self.collected.lives.len() as u32;
        let life = Life { born: Some(self.collected.steps.len() as u32), ..life };
        self.collected.memory.charge(lean::cost::<Life>())?;
        lean::push(&mut self.collected.lives, life);
        self.insert(address, Some(number))?;
        Ok(Effect::Alloc)
    }

    /// Reads a block of an allocation, or of a dictionary in a segment.
    fn life(&mut self, fields: &Fields<'_>, address: u64, requested: u64) -> Result<Life, TraceProblem> {
        let stack = self.stack(fields)?;
        Ok(Life {
            requested,
            granted: requested,
            address,
            stack,
            freed_stack: NONE,
            born: None,
            freed: None,
            stated: stated(fields),
            label: self.label(fields, stack)?,
            stream: self.stream(fields)?,
        })
    }

    fn stack(&mut self, fields: &Fields<'_>) -> Result<u32, TraceProblem> {
        Ok(self.stacks.stack(self.heap, fields.get(Key::Frames), &mut self.collected.memory)?)
    }

    fn label(&mut self, fields: &Fields<'_>, stack: u32) -> Result<u32, TraceProblem> {
        let metadata = match fields.get(Key::UserMetadata) {
            Some(value @ Value::Text(number)) => match self.heap.as_text(value) {
                Some("") | None => (NONE, None),
                text => (number, text),
            },
            _ => (NONE, None),
        };
        let (stacks, memory) = (&self.stacks.stacks, &mut self.collected.memory);
        Ok(self.labels.of_stack(stacks, stack, metadata, fields.text(Key::Category), memory)?)
    }

    /// Returns the number of the event's stream and pool.
    fn stream(&mut self, fields: &Fields<'_>) -> Result<u32, TraceProblem> {
        let stream = (fields.number(Key::Stream).unwrap_or(0), fields.pair(Key::PoolId));
        self.stream_number(stream)
    }

    fn stream_number(&mut self, stream: EventStream) -> Result<u32, TraceProblem> {
        if let Some((last, number)) = self.last_stream {
            if last == stream {
                return Ok(number);
            }
        }
        let number = match self.stream_numbers.get(&stream) {
            Some(&known) => known,
            None => {
                self.collected.memory.charge(2 * ENTRY_BYTES)?;
                let number = self.collected.streams.len() as u32;
                lean::push(&mut self.collected.streams, stream);
                self.stream_numbers.insert(stream, number);
                number
            }
        };
        self.last_stream = Some((stream, number));
        Ok(number)
    }

    fn free(&mut self, fields: &Fields<'_>) -> Result<Effect, TraceProblem> {
        let (address, bytes) = fields.address_and_bytes()?;
        let freed_stack = self.stack(fields)?;
        let freed = Some(self.collected.steps.len() as u32);
        let number = match self.live.get(&address) {
            Some(&Some(number)) => {
                let life = self.life_mut(number);
                (life.freed, life.freed_stack) = (freed, freed_stack);
                let requested = life.requested;
                if (number as usize) < self.collected.lives.len() {
                    self.live_bytes -= requested;
                }
                number
            }
            Some(None) => return Err(TraceProblem::FreedBefore { address }),
            None => {
                let label = self.labels.earlier(&mut self.collected.memory)?;
                let life = Life { freed, freed_stack, ..self.earlier_life(address, bytes, label) };
                let life = Life { stream: self.stream(fields)?, ..life };
                self.add_earlier(life)?
            }
        };
        self.insert(address, None)?;
        Ok(Effect::Free(number))
    }

    const fn earlier_life(&self, address: u64, bytes: u64, label: u32) -> Life {
        Life {
            requested: bytes,
            granted: bytes,
            address,
            stack: NONE,
            freed_stack: NONE,
            born: None,
            freed: None,
            stated: None,
            label,
            stream: 0,
        }
    }

    fn life_mut(&mut self, number: u32) -> &mut Life {
        let lives = self.collected.lives.len();
        if (number as usize) < lives {
            &mut self.collected.lives[number as usize]
        } else {
            &mut self.earlier[(u32::MAX - number) as usize]
        }
    }

    /// Adds a block that is older than the first event. Returns its number.
    fn add_earlier(&mut self, life: Life) -> Result<u32, TraceProblem> {
        self.check_room()?;
        let sum = self.earlier_bytes.checked_add(life.requested);
        self.earlier_bytes = sum.ok_or(TraceProblem::TooManyBytes)?;
        let number = u32::MAX - self.earlier.len() as u32;
        self.collected.memory.charge(lean::cost::<Life>())?;
        lean::push(&mut self.earlier, life);
        Ok(number)
    }

    fn insert(&mut self, address: u64, number: Option<u32>) -> Result<(), TraceProblem> {
        if self.live.len() == self.live.capacity() {
            // A full map doubles and copies its entries.
            self.collected.memory.charge(ENTRY_BYTES * self.live.capacity().max(4) as u64)?;
        }
        self.live.insert(address, number);
        Ok(())
    }

    fn region(
        &mut self,
        fields: &Fields<'_>,
        taken: bool,
        is_expandable: bool,
    ) -> Result<Effect, TraceProblem> {
        let (address, bytes) = fields.address_and_bytes()?;
        let span = Span { address, bytes };
        self.collected.memory.charge(lean::cost::<RegionChange>())?;
        let change = RegionChange { span, taken, is_expandable, pool: fields.pair(Key::PoolId) };
        lean::push(&mut self.collected.regions, change);
        Ok(Effect::Region(self.collected.regions.len() as u32 - 1))
    }

    fn oom(&mut self, fields: &Fields<'_>) -> Result<Effect, TraceProblem> {
        let bytes = fields.number(Key::Size).unwrap_or(0);
        let stack = self.stack(fields)?;
        let label = self.label(fields, stack)?;
        self.collected.memory.charge(lean::cost::<Oom>())?;
        lean::push(&mut self.collected.ooms, (bytes, label));
        Ok(Effect::Oom(self.collected.ooms.len() as u32 - 1))
    }

    /// Adds the blocks that are live at the end and have no event, with the stacks that allocated them.
    fn live_at_end(&mut self, segments: &Segments) -> Result<(), TraceProblem> {
        for live in &segments.live {
            let address = live.block.address;
            if self.live.contains_key(&address) {
                continue;
            }
            let fields = Fields::of(self.heap, live.stacked, "an entry of a history").ok();
            let requested = live.block.requested;
            let life =
                match fields.filter(|fields| fields.list(Key::Frames).is_some_and(|list| !list.is_empty())) {
                    Some(fields) => self.life(&fields, address, requested)?,
                    None => {
                        let label = self.labels.earlier(&mut self.collected.memory)?;
                        self.earlier_life(address, requested, label)
                    }
                };
            let (stream, pool) = segments.streams[live.segment as usize];
            let stream = self.stream_number((stream, Some(pool)))?;
            let number = self.add_earlier(Life { stream, ..life })?;
            self.insert(address, Some(number))?;
        }
        Ok(())
    }

    /// Puts the blocks that are older than the first event in front.
    fn finish(mut self) -> Collected {
        // The events end before these are free.
        let waiting: Vec<(u64, u32)> = self.waiting.drain().chain(self.requested_free.take()).collect();
        waiting.into_iter().for_each(|(address, step)| self.add_pending(address, step));
        let Self { mut earlier, mut collected, .. } = self;
        let (count, lives) = (earlier.len() as u32, collected.lives.len() as u32);
        if count > 0 {
            earlier.reserve_exact(collected.lives.len());
            earlier.append(&mut collected.lives);
            collected.lives = earlier;
            let frees = collected.steps.iter_mut().filter_map(|step| match &mut step.effect {
                Effect::Free(number) => Some(number),
                _ => None,
            });
            for number in frees.chain(collected.pending.iter_mut().map(|(number, _)| number)) {
                *number = if *number < lives { *number + count } else { u32::MAX - *number };
            }
        }
        collected.pending.sort_unstable_by_key(|&(_, step)| step);
        Collected {
            earlier_count: count as usize,
            stacks: self.stacks.stacks,
            labels: self.labels.texts,
            ..collected
        }
    }
}

/// Returns the category that a field, or the metadata of the program, states.
fn stated(fields: &Fields<'_>) -> Option<Category> {
    let category = |key| fields.text(key).filter(|text| !text.is_empty()).and_then(category_named);
    category(Key::Category).or_else(|| category(Key::UserMetadata))
}

impl From<FieldsProblem> for TraceProblem {
    fn from(problem: FieldsProblem) -> Self {
        match problem {
            FieldsProblem::Shape(problem) => problem.into(),
            FieldsProblem::TooMuchHeld(problem) => problem.into(),
        }
    }
}

/// Returns the category with a name, as Highwater and PyTorch's profiler write it.
fn category_named(name: &str) -> Option<Category> {
    let is_named = |category: &Category| category.name().split(['_', ' ']).eq(name.split(['_', ' ']));
    Category::ALL.into_iter().find(is_named)
}
