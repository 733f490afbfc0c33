//! The encoding of events, in memory and in files.
//!
//! One byte holds the kind of the event and flags. A flag omits a field that follows from earlier events: the same
//! owner as before, the next allocation number, or a block without rounding. Times, numbers and addresses are
//! differences from the previous ones. Each block of bytes starts from zero, so a reader that knows the names can
//! decode it without earlier blocks.

use bfc_core::Category;
use highwater_files::boundary::floor_boundary;
use highwater_files::varint;

use crate::scope::Phase;

/// The longest name or text in bytes; longer ones are cut.
pub(super) const MAX_TEXT: usize = 1024;

/// The longest report of a failure in bytes.
pub(super) const MAX_REPORT: usize = 16 << 10;

/// An event, or a name that later events refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawEvent<'a> {
    /// The pool allocated a block.
    Alloc { id: u64, requested: u64, granted: u64, address: u64, owner: u32, category: Category },
    /// The pool freed a block.
    Free { id: u64 },
    /// A live block was charged to another owner or category.
    Retag { id: u64, owner: u32, category: Category },
    /// An op began on this thread.
    Enter { owner: u32 },
    /// The innermost running op on this thread ended.
    Leave { high_water: u64, outliving: u64 },
    /// A request ran out of memory.
    Failed { requested: u64, owner: u32, category: Category },
    /// The report of the failure just before, as JSON.
    Report { text: &'a str },
    /// The pool took a region from its source or returned it.
    Region { address: u64, bytes: u64, taken: bool },
    /// The program marked this moment.
    Mark { text: &'a str },
    /// The number of lost events before this one. Events for the blocks that were live follow.
    Lost { events: u64 },
    /// The thread, pool and stream of the following events.
    Switch { context: EventContext },
    /// The name of an owner below an owner that already has its name. Ops have a phase.
    Owner { owner: u32, parent: u32, phase: Option<Phase>, name: &'a str },
    /// The name of a pool and of its kind of memory.
    Pool { pool: u32, memory: &'a str, name: &'a str },
}

/// The thread, pool and stream of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventContext {
    /// The number of the thread.
    pub(super) thread: u64,
    /// The pool of the event; the last one for events without a pool.
    pub(super) pool: u32,
    /// The device stream; 0 on the host.
    pub(super) stream: u32,
}

mod tag {
    pub(super) const KIND: u8 = 0x0f;
    pub(super) const ALLOC: u8 = 0;
    pub(super) const FREE: u8 = 1;
    pub(super) const RETAG: u8 = 2;
    pub(super) const ENTER: u8 = 3;
    pub(super) const LEAVE: u8 = 4;
    pub(super) const FAILED: u8 = 5;
    pub(super) const REGION: u8 = 6;
    pub(super) const MARK: u8 = 7;
    pub(super) const LOST: u8 = 8;
    pub(super) const SWITCH: u8 = 9;
    pub(super) const OWNER: u8 = 10;
    pub(super) const POOL: u8 = 11;
    pub(super) const REPORT: u8 = 12;

    /// The owner is that of the last event with an owner.
    pub(super) const SAME_OWNER: u8 = 0x10;
    /// The allocation's number follows the last one.
    pub(super) const NEXT_ID: u8 = 0x20;
    /// The address differs from the last one by a multiple of [`super::GRAIN`], and counts in that unit.
    pub(super) const GRAINS: u8 = 0x40;
    /// The pool granted as many bytes as were requested.
    pub(super) const EXACT: u8 = 0x80;
    /// The pool took the region; otherwise it returned it.
    pub(super) const TAKEN: u8 = 0x10;

    /// The valid flags of a kind of event.
    pub(super) const fn flags_of(kind: u8) -> u8 {
        match kind {
            ALLOC => SAME_OWNER | NEXT_ID | GRAINS | EXACT,
            RETAG | ENTER | FAILED => SAME_OWNER,
            REGION => TAKEN,
            _ => 0,
        }
    }
}

/// The usual granularity of addresses: the alignment of every request.
const GRAIN: i64 = bfc_core::DEFAULT_ALIGNMENT as i64;

/// The values of the last events, from which the next ones differ.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    time: u64,
    id: u64,
    address: u64,
    owner: u32,
    context: EventContext,
}

impl Last {
    /// Stores a time and returns its difference from the last one.
    #[inline]
    fn passed(&mut self, time: u64) -> u64 {
        let passed = time.saturating_sub(self.time);
        self.time = self.time.max(time);
        passed
    }

    /// Stores an owner. Returns the flag if it is the last one.
    #[inline]
    fn note_owner(&mut self, owner: u32) -> u8 {
        let flag = if owner == self.owner { tag::SAME_OWNER } else { 0 };
        self.owner = owner;
        flag
    }
}

/// The size of the longest event without text: a tag, a category and seven numbers.
const LONGEST: usize = 2 + 7 * varint::MAX_BYTES;

/// Writes events into a block of bytes.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
    last: Last,
}

impl Encoder {
    /// Creates an encoder with memory for `capacity` bytes and the event that exceeds them.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity + LONGEST), last: Last::default() }
    }

    /// Returns the number of bytes so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the block so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the block.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Sets the context of the following events, unless it is the current one.
    #[inline]
    pub(super) fn at(&mut self, context: EventContext) {
        if self.last.context != context {
            self.push(0, &RawEvent::Switch { context });
        }
    }

    /// Adds an event at a time in nanoseconds, which must not be before the last one. Names and contexts have no time.
    pub(super) fn push(&mut self, time: u64, event: &RawEvent<'_>) {
        match *event {
            RawEvent::Alloc { id, requested, granted, address, owner, category } => {
                // No allocator grants less than was requested.
                let granted = granted.max(requested);
                let distance = address.wrapping_sub(self.last.address) as i64;
                let grains = distance % GRAIN == 0;
                let next = id == self.last.id.wrapping_add(1);
                let mut flags = if next { tag::NEXT_ID } else { 0 };
                flags |= if grains { tag::GRAINS } else { 0 };
                flags |= if granted == requested { tag::EXACT } else { 0 };
                let distance_of_ids = id.wrapping_sub(self.last.id) as i64;
                let owner = self.begin_owned(tag::ALLOC | flags, time, owner);
                if !next {
                    self.difference(distance_of_ids);
                }
                self.difference(if grains { distance / GRAIN } else { distance }).numbers(owner);
                self.byte(category.index() as u8).number(requested);
                if granted != requested {
                    self.number(granted - requested);
                }
                (self.last.id, self.last.address) = (id, address);
            }
            RawEvent::Free { id } => {
                let back = self.last.id.wrapping_sub(id) as i64;
                self.begin(tag::FREE, time).difference(back);
            }
            RawEvent::Retag { id, owner, category } => {
                let back = self.last.id.wrapping_sub(id) as i64;
                let owner = self.begin_owned(tag::RETAG, time, owner);
                self.difference(back).numbers(owner).byte(category.index() as u8);
            }
            RawEvent::Enter { owner } => {
                let owner = self.begin_owned(tag::ENTER, time, owner);
                self.numbers(owner);
            }
            RawEvent::Leave { high_water, outliving } => {
                self.begin(tag::LEAVE, time).number(high_water).number(outliving);
            }
            RawEvent::Failed { requested, owner, category } => {
                let owner = self.begin_owned(tag::FAILED, time, owner);
                self.numbers(owner).byte(category.index() as u8).number(requested);
            }
            RawEvent::Region { address, bytes, taken } => {
                let taken = if taken { tag::TAKEN } else { 0 };
                self.begin(tag::REGION | taken, time).number(address).number(bytes);
            }
            RawEvent::Mark { text } => {
                self.begin(tag::MARK, time).text(text, MAX_TEXT);
            }
            RawEvent::Report { text } => {
                self.byte(tag::REPORT).text(text, MAX_REPORT);
            }
            RawEvent::Lost { events } => {
                self.byte(tag::LOST).number(events);
            }
            RawEvent::Switch { context } => {
                let EventContext { thread, pool, stream } = context;
                self.byte(tag::SWITCH).number(thread).number(pool.into()).number(stream.into());
                self.last.context = context;
            }
            RawEvent::Owner { owner, parent, phase, name } => {
                self.byte(tag::OWNER).number(owner.into()).number(parent.into()).byte(phase_code(phase));
                self.text(name, MAX_TEXT);
            }
            RawEvent::Pool { pool, memory, name } => {
                self.byte(tag::POOL).number(pool.into()).text(memory, MAX_TEXT).text(name, MAX_TEXT);
            }
        }
    }

    /// Writes the tag and the time of an event.
    fn begin(&mut self, tag: u8, time: u64) -> &mut Self {
        let passed = self.last.passed(time);
        self.byte(tag).number(passed)
    }

    /// Writes the tag and the time of an event with an owner. Returns the owner unless it is the last one.
    fn begin_owned(&mut self, tag: u8, time: u64, owner: u32) -> Option<u64> {
        let same = self.last.note_owner(owner);
        self.begin(tag | same, time);
        (same == 0).then_some(owner.into())
    }

    fn byte(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    fn number(&mut self, value: u64) -> &mut Self {
        varint::put(&mut self.bytes, value);
        self
    }

    fn numbers(&mut self, values: Option<u64>) -> &mut Self {
        values.into_iter().for_each(|value| varint::put(&mut self.bytes, value));
        self
    }

    fn difference(&mut self, value: i64) -> &mut Self {
        self.number(varint::zigzag(value))
    }

    fn text(&mut self, text: &str, most_bytes: usize) -> &mut Self {
        let text = &text[..floor_boundary(text, most_bytes)];
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }
}

const fn phase_code(phase: Option<Phase>) -> u8 {
    match phase {
        None => 0,
        Some(Phase::Forward) => 1,
        Some(Phase::Backward) => 2,
        Some(Phase::Optimizer) => 3,
        Some(Phase::Unknown) => 4,
    }
}

/// The reason why bytes do not encode an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventProblem {
    /// The block ends within an event.
    #[error("an event is cut off, or a number has more than 64 bits")]
    Cut,
    /// The kind of event is unknown.
    #[error("no event begins with byte {found:#04x}")]
    UnknownKind {
        /// The byte.
        found: u8,
    },
    /// The category or phase is unknown.
    #[error("{found} is not a valid {what}")]
    UnknownCode {
        /// The kind of value.
        what: &'static str,
        /// The byte.
        found: u64,
    },
    /// A time, an owner or a size is out of range.
    #[error("a {what} is out of range")]
    OutOfRange {
        /// The kind of value.
        what: &'static str,
    },
    /// A text is too long or not UTF-8.
    #[error("a text is not UTF-8 or exceeds {MAX_TEXT} bytes, or a report exceeds {MAX_REPORT}")]
    BadText,
}

/// Reads the events of one block.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
    last: Last,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, last: Last::default() }
    }

    /// The offset of the next event.
    pub(super) const fn position(&self) -> usize {
        self.position
    }

    /// The time of the last event in nanoseconds.
    pub(super) const fn time(&self) -> u64 {
        self.last.time
    }

    /// The context of the last event.
    pub(super) const fn context(&self) -> EventContext {
        self.last.context
    }

    /// Returns the next event; `None` at the end of the block.
    pub(super) fn next(&mut self) -> Result<Option<RawEvent<'a>>, EventProblem> {
        let Some(&first) = self.bytes.get(self.position) else { return Ok(None) };
        let start = self.position;
        let event = self.event(first);
        if event.is_err() {
            self.position = start;
        }
        event.map(Some)
    }

    fn event(&mut self, first: u8) -> Result<RawEvent<'a>, EventProblem> {
        self.position += 1;
        let kind = first & tag::KIND;
        if first & !tag::KIND & !tag::flags_of(kind) != 0 {
            return Err(EventProblem::UnknownKind { found: first });
        }
        let has = |flag: u8| first & flag != 0;
        if kind <= tag::MARK {
            let passed = self.number()?;
            let time = self.last.time.checked_add(passed);
            self.last.time = time.ok_or(EventProblem::OutOfRange { what: "time" })?;
        }
        Ok(match kind {
            tag::ALLOC => {
                let id = if has(tag::NEXT_ID) {
                    self.last.id.wrapping_add(1)
                } else {
                    self.last.id.wrapping_add(self.difference()? as u64)
                };
                let distance = self.difference()?;
                let distance = if has(tag::GRAINS) { distance.wrapping_mul(GRAIN) } else { distance };
                let address = self.last.address.wrapping_add(distance as u64);
                let owner = self.owner(has(tag::SAME_OWNER))?;
                let category = self.category()?;
                let requested = self.number()?;
                let more = if has(tag::EXACT) { 0 } else { self.number()? };
                let granted = requested.checked_add(more);
                let granted = granted.ok_or(EventProblem::OutOfRange { what: "size" })?;
                (self.last.id, self.last.address) = (id, address);
                RawEvent::Alloc { id, requested, granted, address, owner, category }
            }
            tag::FREE => RawEvent::Free { id: self.earlier_id()? },
            tag::RETAG => {
                let id = self.earlier_id()?;
                let owner = self.owner(has(tag::SAME_OWNER))?;
                RawEvent::Retag { id, owner, category: self.category()? }
            }
            tag::ENTER => RawEvent::Enter { owner: self.owner(has(tag::SAME_OWNER))? },
            tag::LEAVE => RawEvent::Leave { high_water: self.number()?, outliving: self.number()? },
            tag::FAILED => {
                let owner = self.owner(has(tag::SAME_OWNER))?;
                let category = self.category()?;
                RawEvent::Failed { requested: self.number()?, owner, category }
            }
            tag::REGION => {
                RawEvent::Region { address: self.number()?, bytes: self.number()?, taken: has(tag::TAKEN) }
            }
            tag::MARK => RawEvent::Mark { text: self.text(MAX_TEXT)? },
            tag::LOST => RawEvent::Lost { events: self.number()? },
            tag::SWITCH => {
                let (thread, pool, stream) = (self.number()?, self.small("pool")?, self.small("stream")?);
                self.last.context = EventContext { thread, pool, stream };
                RawEvent::Switch { context: self.last.context }
            }
            tag::OWNER => {
                let (owner, parent) = (self.small("owner")?, self.small("owner")?);
                let phase = self.phase()?;
                RawEvent::Owner { owner, parent, phase, name: self.text(MAX_TEXT)? }
            }
            tag::POOL => {
                let pool = self.small("pool")?;
                RawEvent::Pool { pool, memory: self.text(MAX_TEXT)?, name: self.text(MAX_TEXT)? }
            }
            tag::REPORT => RawEvent::Report { text: self.text(MAX_REPORT)? },
            _ => return Err(EventProblem::UnknownKind { found: first }),
        })
    }

    #[inline]
    fn number(&mut self) -> Result<u64, EventProblem> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let (value, taken) = varint::get(rest).ok_or(EventProblem::Cut)?;
        self.position += taken;
        Ok(value)
    }

    fn small(&mut self, what: &'static str) -> Result<u32, EventProblem> {
        u32::try_from(self.number()?).map_err(|_| EventProblem::OutOfRange { what })
    }

    fn difference(&mut self) -> Result<i64, EventProblem> {
        Ok(varint::unzigzag(self.number()?))
    }

    fn earlier_id(&mut self) -> Result<u64, EventProblem> {
        Ok(self.last.id.wrapping_sub(self.difference()? as u64))
    }

    fn owner(&mut self, same: bool) -> Result<u32, EventProblem> {
        if !same {
            self.last.owner = self.small("owner")?;
        }
        Ok(self.last.owner)
    }

    fn byte(&mut self) -> Result<u8, EventProblem> {
        let byte = *self.bytes.get(self.position).ok_or(EventProblem::Cut)?;
        self.position += 1;
        Ok(byte)
    }

    fn category(&mut self) -> Result<Category, EventProblem> {
        let found = self.byte()?;
        let category = Category::ALL.get(usize::from(found)).copied();
        category.ok_or(EventProblem::UnknownCode { what: "category", found: found.into() })
    }

    fn phase(&mut self) -> Result<Option<Phase>, EventProblem> {
        match self.byte()? {
            0 => Ok(None),
            1 => Ok(Some(Phase::Forward)),
            2 => Ok(Some(Phase::Backward)),
            3 => Ok(Some(Phase::Optimizer)),
            4 => Ok(Some(Phase::Unknown)),
            found => Err(EventProblem::UnknownCode { what: "phase", found: found.into() }),
        }
    }

    fn text(&mut self, most_bytes: usize) -> Result<&'a str, EventProblem> {
        let length = self.number()?;
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= most_bytes)
            .ok_or(EventProblem::BadText)?;
        let bytes = self.bytes.get(self.position..self.position + length).ok_or(EventProblem::Cut)?;
        self.position += length;
        std::str::from_utf8(bytes).map_err(|_| EventProblem::BadText)
    }
}

#[cfg(test)]
mod tests;
