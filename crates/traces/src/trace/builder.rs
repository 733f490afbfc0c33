//! Builds a trace event by event and checks each.

use std::collections::HashMap;
use std::ops::Range;

use highwater_files::lean::{self, HeldMemory};

use super::{Trace, TraceComment, TraceEvent, TraceLimits, TraceProblem};

mod finish;

/// The longest generated label, in characters of up to 4 bytes. A line with it is within the default limit.
pub(super) const MAX_LABEL: usize = 1000;

/// The label of blocks beyond the limit on labels.
const OTHER: &str = "(other)";

/// The label of blocks that were live before their log began.
const EARLIER: &str = "(allocated before the log)";

/// The most bytes of all generated labels. Further blocks have the label [`OTHER`].
const MADE_LABEL_BYTES: usize = 8 << 20;

/// Costs in bytes: a map entry including unused capacity, and a text besides its letters.
const ENTRY_BYTES: u64 = 60;
const TEXT_BYTES: u64 = 64;

/// The additional cost of a block that was live before the log, while the trace is built.
const EARLIER_BYTES: u64 = 8;

/// The most notes about omitted parts.
const MAX_SKIPPED: usize = 64;

/// A trace in progress.
///
/// Logs by address may begin late and free blocks without an allocation. Such blocks are live from the start of the
/// trace. Their numbers count down from the largest number until [`finish`](Self::finish) puts them in front.
#[derive(Clone, Debug)]
pub(super) struct Builder {
    limits: TraceLimits,
    trace: Trace,
    /// Each live allocation by its id. `None` marks freed ones, where the format needs them.
    live: HashMap<u64, Option<Live>>,
    /// By id: the number of bytes that a live allocation lends.
    lent: HashMap<u64, u64>,
    live_bytes: u64,
    blocks: u32,
    labels: HashMap<String, u32>,
    /// The sizes and labels of the blocks that are live from the start.
    earlier: Vec<(u64, u32)>,
    earlier_bytes: u64,
    memory: HeldMemory,
    /// Bytes of generated labels.
    made_bytes: usize,
    /// The first time of the log, and the time of the following events since then.
    clock: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    block: u32,
    bytes: u64,
}

impl Builder {
    pub(super) fn new(limits: TraceLimits) -> Self {
        Self {
            limits,
            trace: Trace::default(),
            live: HashMap::new(),
            lent: HashMap::new(),
            live_bytes: 0,
            blocks: 0,
            labels: HashMap::new(),
            earlier: Vec::new(),
            earlier_bytes: 0,
            memory: HeldMemory::new(limits.held_bytes),
            made_bytes: 0,
            clock: None,
        }
    }

    /// Sets the time of the following events. Times that go back are ignored. Events before the first call happen at the
    /// first time.
    pub(super) fn at(&mut self, time_ns: u64) {
        let (first, last) = self.clock.unwrap_or((time_ns, 0));
        self.clock = Some((first, time_ns.saturating_sub(first).max(last)));
    }

    /// Returns the bytes of the blocks that were live before the log began.
    pub(super) const fn earlier_bytes(&self) -> u64 {
        self.earlier_bytes
    }

    /// Counts decompressed bytes of the file. The memory limit may be a multiple of them.
    pub(super) const fn note_input(&mut self, bytes: u64) {
        self.memory.note_input(bytes);
    }

    /// Charges for memory before it is allocated.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), TraceProblem> {
        Ok(self.memory.charge(bytes)?)
    }

    /// Adds an allocation by id with a label from the file. Fails beyond the limit on labels.
    pub(super) fn alloc(
        &mut self,
        id: u64,
        bytes: u64,
        alignment: u32,
        label: &str,
    ) -> Result<(), TraceProblem> {
        self.check_alloc(id, bytes)?;
        let label = self.label(label)?;
        self.push_alloc(id, bytes, alignment, label)
    }

    /// Adds an allocation by id with a label from [`made_label`](Self::made_label).
    pub(super) fn alloc_labelled(
        &mut self,
        id: u64,
        bytes: u64,
        alignment: u32,
        label: u32,
    ) -> Result<(), TraceProblem> {
        self.check_alloc(id, bytes)?;
        self.push_alloc(id, bytes, alignment, label)
    }

    /// Makes the allocation occupy only the bytes of `range` from now on.
    pub(super) fn occupy(&mut self, id: u64, range: Range<u64>) -> Result<(), TraceProblem> {
        let live = self.live.get(&id).copied().flatten().ok_or(TraceProblem::UnknownId { id })?;
        let Range { start, end } = range;
        let bytes = end.checked_sub(start).filter(|_| end <= live.bytes);
        let occupied = bytes.ok_or(TraceProblem::BadRange { start, end, bytes: live.bytes })?;
        // An allocation that occupies only a part from the start never occupied all its bytes.
        let is_new =
            matches!(self.trace.events.last(), Some(TraceEvent::Alloc { block, .. }) if *block == live.block);
        if !is_new {
            self.note_peak();
        }
        let lent = self.lent.get(&id).copied().unwrap_or(0);
        let others = self.live_bytes - (live.bytes - lent);
        let sum = others.checked_add(occupied).and_then(|sum| sum.checked_add(self.earlier_bytes));
        sum.ok_or(TraceProblem::TooManyBytes)?;
        self.push(TraceEvent::Occupy { block: live.block, start, end })?;
        self.live_bytes = others + occupied;
        if occupied < live.bytes {
            if self.lent.insert(id, live.bytes - occupied).is_none() {
                self.charge(ENTRY_BYTES)?;
            }
        } else {
            self.lent.remove(&id);
        }
        Ok(())
    }

    /// Adds a free by id and forgets the id.
    pub(super) fn free(&mut self, id: u64) -> Result<(), TraceProblem> {
        let live = self.live.get(&id).copied().flatten().ok_or(TraceProblem::UnknownId { id })?;
        self.note_peak();
        self.push(TraceEvent::Free { block: live.block })?;
        self.live.remove(&id);
        self.live_bytes -= live.bytes - self.lent.remove(&id).unwrap_or(0);
        Ok(())
    }

    /// Adds an allocation in a log by address.
    pub(super) fn alloc_at(&mut self, address: u64, bytes: u64, label: u32) -> Result<(), TraceProblem> {
        self.alloc_labelled(address, bytes, 1, label).map_err(|problem| match problem {
            TraceProblem::IdInUse { id } => TraceProblem::AddressInUse { address: id },
            problem => problem,
        })
    }

    /// Adds a free in a log by address. A block without an allocation was live before the log began, with `bytes`
    /// bytes.
    pub(super) fn free_at(&mut self, address: u64, bytes: u64) -> Result<(), TraceProblem> {
        match self.live.get(&address) {
            Some(&Some(live)) => {
                self.note_peak();
                self.push(TraceEvent::Free { block: live.block })?;
                self.live_bytes -= live.bytes;
            }
            Some(None) => return Err(TraceProblem::FreedBefore { address }),
            None => {
                let block = self.add_earlier(bytes, None)?;
                self.push(TraceEvent::Free { block })?;
            }
        }
        self.insert(address, None)
    }

    /// Returns whether the log has an event for an address.
    pub(super) fn is_known(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// Adds a block that is live at the end of a log by address. Without an event for it, the block was always live.
    pub(super) fn live_at_end(
        &mut self,
        address: u64,
        bytes: u64,
        label: Option<u32>,
    ) -> Result<(), TraceProblem> {
        if self.is_known(address) {
            return Ok(());
        }
        let block = self.add_earlier(bytes, label)?;
        self.insert(address, Some(Live { block, bytes }))
    }

    /// Sets the stream of the last allocation.
    pub(super) fn set_stream(&mut self, stream: u32) -> Result<(), TraceProblem> {
        if stream != 0 {
            let events = self.trace.events.len();
            let more = events - self.trace.streams.len();
            self.charge(lean::cost::<u32>() * more as u64)?;
            for _ in 1..more {
                lean::push(&mut self.trace.streams, 0);
            }
            lean::push(&mut self.trace.streams, stream);
        }
        Ok(())
    }

    /// Sets the granularity of offsets from the file.
    pub(super) const fn set_granule(&mut self, bytes: u64) {
        self.trace.granule = Some(bytes);
    }

    /// Notes a part of the file that the trace omits.
    pub(super) fn skip(&mut self, what: String) {
        if self.trace.skipped.len() < MAX_SKIPPED && !self.trace.skipped.contains(&what) {
            self.trace.skipped.push(what);
        }
    }

    pub(super) fn comment(&mut self, text: &str) -> Result<(), TraceProblem> {
        let limit = self.limits.comments;
        if self.trace.comments.len() >= limit as usize {
            return Err(TraceProblem::TooMany { what: "comments", limit });
        }
        self.charge(TEXT_BYTES + text.len() as u64)?;
        let position = self.trace.events.len();
        self.trace.comments.push(TraceComment { position, text: text.to_owned() });
        Ok(())
    }

    /// Adds a mark as a comment of one line. Ignores marks beyond the limit on comments.
    pub(super) fn mark(&mut self, text: &str) {
        let letter = |letter: char| if letter.is_control() { ' ' } else { letter };
        let text: String = text.chars().take(MAX_LABEL).map(letter).collect();
        let _ = self.comment(format!("mark: {}", text.trim()).trim_end());
    }

    /// Returns the index of a generated label: shortened, without control characters, and one label for all beyond the
    /// limit.
    pub(super) fn made_label(&mut self, text: &str) -> Result<u32, TraceProblem> {
        let word = |letter: char| if letter.is_control() { ' ' } else { letter };
        let text: String = text.chars().take(MAX_LABEL).map(word).collect();
        let text = match text.trim() {
            "" => "unknown",
            text => text,
        };
        // Reserves space for the two labels that stand for many blocks.
        let room = self.trace.labels.len() + 2 < self.limits.labels as usize
            && self.made_bytes + text.len() <= MADE_LABEL_BYTES;
        if self.labels.contains_key(text) {
            self.label(text)
        } else if room {
            self.made_bytes += text.len();
            self.label(text)
        } else {
            self.label(OTHER)
        }
    }

    /// Returns the trace, with the blocks that were live before it at the front.
    pub(super) fn finish(mut self) -> Trace {
        self.note_peak();
        if !self.earlier.is_empty() {
            self.put_earlier_in_front();
        }
        finish::order_labels(&mut self.trace);
        self.trace
    }

    fn check_alloc(&self, id: u64, bytes: u64) -> Result<(), TraceProblem> {
        if self.live.get(&id).is_some_and(Option::is_some) {
            return Err(TraceProblem::IdInUse { id });
        }
        let live_bytes = self.live_bytes.checked_add(bytes);
        live_bytes.and_then(|sum| sum.checked_add(self.earlier_bytes)).ok_or(TraceProblem::TooManyBytes)?;
        Ok(())
    }

    fn push_alloc(&mut self, id: u64, bytes: u64, alignment: u32, label: u32) -> Result<(), TraceProblem> {
        self.note_peak();
        let block = self.blocks;
        self.push(TraceEvent::Alloc { block, bytes, label, alignment })?;
        // There are at least as many events as blocks, and their number fits into 32 bits.
        self.blocks += 1;
        self.live_bytes += bytes;
        self.insert(id, Some(Live { block, bytes }))
    }

    fn insert(&mut self, id: u64, live: Option<Live>) -> Result<(), TraceProblem> {
        if self.live.len() == self.live.capacity() {
            // A full map doubles and copies its entries.
            self.charge(ENTRY_BYTES * self.live.capacity().max(4) as u64)?;
        }
        self.live.insert(id, live);
        Ok(())
    }

    /// Updates the live bytes before the next event.
    fn note_peak(&mut self) {
        self.trace.peak_live_bytes = self.trace.peak_live_bytes.max(self.live_bytes);
    }

    /// Adds a block that was live before the log began. Returns its temporary number.
    fn add_earlier(&mut self, bytes: u64, label: Option<u32>) -> Result<u32, TraceProblem> {
        self.check_room()?;
        self.note_peak();
        let label = match label {
            Some(label) => label,
            None => self.label(EARLIER).or_else(|_| self.label(OTHER))?,
        };
        let sum = self.earlier_bytes.checked_add(bytes).ok_or(TraceProblem::TooManyBytes)?;
        self.trace.peak_live_bytes.checked_add(sum).ok_or(TraceProblem::TooManyBytes)?;
        let block = u32::MAX - u32::try_from(self.earlier.len()).unwrap_or(u32::MAX);
        self.charge(lean::cost::<(u64, u32)>() + lean::cost::<TraceEvent>() + EARLIER_BYTES)?;
        lean::push(&mut self.earlier, (bytes, label));
        self.earlier_bytes = sum;
        Ok(block)
    }

    fn push(&mut self, event: TraceEvent) -> Result<(), TraceProblem> {
        self.check_room()?;
        self.charge(lean::cost::<TraceEvent>())?;
        lean::push(&mut self.trace.events, event);
        let Some((_, now)) = self.clock else { return Ok(()) };
        let untimed = self.trace.events.len() - 1 - self.trace.times_ns.len();
        self.charge(lean::cost::<u64>() * (1 + untimed as u64))?;
        for _ in 0..untimed {
            lean::push(&mut self.trace.times_ns, 0);
        }
        lean::push(&mut self.trace.times_ns, now);
        Ok(())
    }

    fn check_room(&self) -> Result<(), TraceProblem> {
        // Each kind of block has half of the numbers, so that they never collide.
        let limit = self.limits.events.min(u32::MAX / 2);
        if self.trace.events.len() + self.earlier.len() >= limit as usize {
            return Err(TraceProblem::TooMany { what: "events", limit });
        }
        Ok(())
    }

    fn label(&mut self, text: &str) -> Result<u32, TraceProblem> {
        if let Some(&label) = self.labels.get(text) {
            return Ok(label);
        }
        let limit = self.limits.labels;
        match u32::try_from(self.trace.labels.len()) {
            Ok(label) if label < limit => {
                // The list and the index hold one copy each.
                self.charge(2 * (TEXT_BYTES + text.len() as u64))?;
                self.trace.labels.push(text.to_owned());
                self.labels.insert(text.to_owned(), label);
                Ok(label)
            }
            _ => Err(TraceProblem::TooMany { what: "different labels", limit }),
        }
    }
}
