//! PyTorch's memory snapshots: what `torch.cuda.memory._dump_snapshot` writes, as a pickle or as JSON, and the list of
//! segments that `torch.cuda.memory_snapshot` returns.
//!
//! The list `device_traces` has a list of events for each device. Of these, `alloc` and `free_completed` make the trace: a
//! block whose free was only requested is still in use by another stream. Sizes are those asked for. What happens to
//! segments was the decision of PyTorch's allocator, and is ours to make anew. The list is a ring buffer, so its
//! beginning may be missing: what is freed without having been allocated, and what `segments` shows as live at the end
//! without an event, was live before. Streams and private pools are not kept apart.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::BufRead;

use super::builder::{Builder, MAX_LABEL};
use super::json;
use super::pickle::{self, Heap, Value};
use super::read::Counted;
use super::{ReadOptions, Trace, TraceError, TraceLimits, TracePlace, TraceProblem};
use crate::files::lean;
use crate::files::lean::held_limit;

/// The most entries of a dictionary that is looked into for every event, and the most frames of a stack. Real ones have
/// about ten and fewer than a hundred; many events may share one, so a long one would cost its length each time.
const MOST_ENTRIES: usize = 64;
const MOST_FRAMES: usize = 256;

/// The most letters of a file's name or a function's that are looked at.
const MOST_LETTERS: usize = MAX_LABEL;

/// Why something is not a snapshot with a trace in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotProblem {
    /// Something has another type than in snapshots.
    #[error("{what} is missing, or not {expected}")]
    Shape {
        /// Which thing.
        what: &'static str,
        /// What it ought to be.
        expected: &'static str,
    },
    /// No events were recorded.
    #[error("no allocations were recorded{}: was recording switched on (_record_memory_history)?", of_device(*.device))]
    NoEvents {
        /// The device asked for, if one was.
        device: Option<u32>,
    },
    /// There are events of several devices, and none was asked for.
    #[error("events of {count} devices ({first}, {second}{}): choose one with --device", if *.count > 2 { ", ..." } else { "" })]
    SeveralDevices {
        /// How many devices have events.
        count: usize,
        /// The first one.
        first: u32,
        /// The second one.
        second: u32,
    },
}

fn of_device(device: Option<u32>) -> String {
    device.map_or_else(String::new, |device| format!(" for device {device}"))
}

/// Reads a snapshot in a pickle.
pub(super) fn parse(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let pickle = read_whole(reader).map_err(|problem| TracePlace::Byte(0).of(problem))?;
    let input_bytes = pickle.len() as u64;
    trace_of(pickle, input_bytes, options)
}

/// Reads a snapshot in JSON, as Highwater exports it.
pub(super) fn parse_json(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut reader = Counted::new(reader);
    let pickle = json::to_pickle(&mut reader).map_err(|problem| TracePlace::Snapshot.of(problem))?;
    trace_of(pickle, reader.bytes, options)
}

/// Everything that a reader gives.
fn read_whole(mut reader: impl BufRead) -> Result<Vec<u8>, TraceProblem> {
    let mut bytes = Vec::new();
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(bytes);
        }
        let length = buffer.len();
        lean::extend(&mut bytes, buffer);
        reader.consume(length);
    }
}

/// The trace of a snapshot in a pickle, which was made from `input_bytes` of file.
fn trace_of(pickle: Vec<u8>, input_bytes: u64, options: &ReadOptions) -> Result<Trace, TraceError> {
    // The file, the objects in it, and the trace share the memory that may be held: the file is forgotten before the trace is
    // made, which is much smaller than the objects.
    let limit = held_limit(options.limits.held_bytes, input_bytes);
    let objects = limit.saturating_sub(pickle.len() as u64).min(limit / 4 * 3);
    let limits = TraceLimits { held_bytes: objects, ..options.limits };
    let (heap, root) = pickle::read(&pickle[..], &limits).map_err(|error| match error.problem {
        TraceProblem::TooMuchHeld { .. } => error.place.of(TraceProblem::TooMuchHeld { limit }),
        _ => error,
    })?;
    drop(pickle);
    let limits = TraceLimits { held_bytes: limit - objects, ..options.limits };
    trace_of_objects(&heap, root, &limits, options.device)
}

fn trace_of_objects(
    heap: &Heap,
    root: Value,
    limits: &TraceLimits,
    device: Option<u32>,
) -> Result<Trace, TraceError> {
    let snapshot = Snapshot { heap, root };
    let mut reader =
        Reader { heap, builder: Builder::new(*limits), labels: HashMap::new(), frames: HashMap::new() };
    let device = snapshot.device(device).map_err(|problem| TracePlace::Snapshot.of(problem))?;
    for (index, &event) in (0..).zip(device.events) {
        reader
            .event(event)
            .map_err(|problem| TracePlace::Event { device: device.number, index }.of(problem))?;
    }
    if snapshot.is_list() {
        reader.builder.skip(NO_EVENTS.to_owned());
    }
    let most = limits.events as usize;
    snapshot
        .each_live_block(device.number, most, |address, bytes| reader.builder.live_at_end(address, bytes))
        .map_err(|problem| TracePlace::Snapshot.of(problem))?;
    Ok(reader.builder.finish())
}

/// What a list of segments lacks.
const NO_EVENTS: &str = "all events: torch.cuda.memory_snapshot() returns only the blocks live at that moment; call \
    torch.cuda.memory._record_memory_history() first, and write the file with torch.cuda.memory._dump_snapshot()";

struct Snapshot<'a> {
    heap: &'a Heap,
    root: Value,
}

struct Device<'a> {
    number: u32,
    events: &'a [Value],
}

impl<'a> Snapshot<'a> {
    /// The events of the device asked for, or of the only one that has some.
    fn device(&self, asked: Option<u32>) -> Result<Device<'a>, SnapshotProblem> {
        let shape = |what| SnapshotProblem::Shape { what, expected: "a list" };
        if self.is_list() {
            return self.device_of_blocks(asked);
        }
        if self.heap.entries(self.root).is_none() {
            return Err(SnapshotProblem::Shape { what: "the snapshot", expected: "a dictionary" });
        }
        let traces = self.heap.get(self.root, "device_traces").and_then(|traces| self.heap.as_list(traces));
        let mut devices = Vec::new();
        for (number, &trace) in (0..).zip(traces.ok_or(shape("`device_traces`"))?) {
            let events = self.heap.as_list(trace).ok_or(shape("an item of `device_traces`"))?;
            if !events.is_empty() && asked.is_none_or(|asked| asked == number) {
                devices.push(Device { number, events });
            }
        }
        if let [first, second, ..] = devices.as_slice() {
            let (first, second) = (first.number, second.number);
            return Err(SnapshotProblem::SeveralDevices { count: devices.len(), first, second });
        }
        devices.pop().ok_or(SnapshotProblem::NoEvents { device: asked })
    }

    /// Whether this is the list of segments alone, which has no events.
    fn is_list(&self) -> bool {
        matches!(self.root, Value::List(_))
    }

    /// The list of segments.
    fn segments(&self) -> Option<&'a [Value]> {
        let list = if self.is_list() { Some(self.root) } else { self.heap.get(self.root, "segments") };
        list.and_then(|list| self.heap.as_list(list))
    }

    /// Of a list of segments: the device asked for, or the only one with segments.
    fn device_of_blocks(&self, asked: Option<u32>) -> Result<Device<'a>, SnapshotProblem> {
        let mut devices = BTreeSet::new();
        for &segment in self.segments().unwrap_or_default() {
            let number = Fields::of(self.heap, segment, "a segment")?.number("device").unwrap_or(0);
            let number = u32::try_from(number).map_err(|_| SnapshotProblem::Shape {
                what: "a segment's `device`",
                expected: "below 2^32",
            })?;
            if asked.is_none_or(|asked| asked == number) {
                devices.insert(number);
            }
        }
        let mut numbers = devices.iter().copied();
        match (numbers.next(), numbers.next()) {
            (Some(first), Some(second)) => {
                Err(SnapshotProblem::SeveralDevices { count: devices.len(), first, second })
            }
            (Some(number), None) => Ok(Device { number, events: &[] }),
            (None, _) => Err(SnapshotProblem::NoEvents { device: asked }),
        }
    }

    /// Shows the address and the size of every block that is live at the end; snapshots without segments have none.
    fn each_live_block(
        &self,
        device: u32,
        most: usize,
        mut show: impl FnMut(u64, u64) -> Result<(), TraceProblem>,
    ) -> Result<(), TraceProblem> {
        let Some(segments) = self.segments() else { return Ok(()) };
        let mut seen = 0;
        // A pickle can refer to one list from many segments; each list is read once, so that time is linear in the file.
        let mut lists = HashSet::new();
        for &segment in segments {
            let segment = Fields::of(self.heap, segment, "a segment")?;
            // Early snapshots do not name the device, and have only one.
            if segment.number("device").is_some_and(|number| number != u64::from(device)) {
                continue;
            }
            let Some(mut address) = segment.number("address") else { continue };
            let blocks = segment.list("blocks").unwrap_or_default();
            if blocks.is_empty() || !lists.insert(blocks.as_ptr()) {
                continue;
            }
            for &block in blocks {
                seen += 1;
                if seen > most {
                    return Err(TraceProblem::TooManyEvents {
                        limit: u32::try_from(most).unwrap_or(u32::MAX),
                    });
                }
                let block = Fields::of(self.heap, block, "a block")?;
                let size = block.number("size").unwrap_or(0);
                if block.text("state").is_some_and(|state| state.starts_with("active")) {
                    show(address, block.number("requested_size").unwrap_or(size))?;
                }
                address = address.saturating_add(size);
            }
        }
        Ok(())
    }
}

/// Turns events into those of a trace.
struct Reader<'a> {
    heap: &'a Heap,
    builder: Builder,
    /// By the stack that a label is made from: many events share one.
    labels: HashMap<u32, u32>,
    /// By the dictionary of a frame: many stacks share one, and its texts may be long. `None` for what is no frame.
    frames: HashMap<u32, Option<FrameLabel>>,
}

/// What a frame says of an allocation.
#[derive(Clone, Copy, Debug)]
struct FrameLabel {
    /// Whether it is a line of Python.
    is_python: bool,
    /// The frame's label, once an allocation needed it.
    label: Option<u32>,
}

/// What an entry of one of the maps takes, with the room that the map keeps for others.
const ENTRY_BYTES: u64 = 40;

impl Reader<'_> {
    fn event(&mut self, event: Value) -> Result<(), TraceProblem> {
        let fields = Fields::of(self.heap, event, "an event")?;
        match fields.text("action") {
            Some("alloc") => {
                let (address, bytes) = fields.address_and_bytes()?;
                let label = self.label(&fields)?;
                self.builder.alloc_at(address, bytes, label)
            }
            // Some backends free in one step.
            Some("free_completed" | "free") => {
                let (address, bytes) = fields.address_and_bytes()?;
                self.builder.free_at(address, bytes)
            }
            Some("oom") => {
                let bytes = fields.number("size").unwrap_or(0);
                // Past the limit on comments there are enough of them.
                let _ = self.builder.comment(&format!("mark: out of memory, {bytes} bytes asked for"));
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err(SnapshotProblem::Shape { what: "an event's `action`", expected: "a text" }.into()),
        }
    }

    /// Where an allocation was asked for: the innermost line of Python, else the innermost frame, else the category.
    fn label(&mut self, event: &Fields<'_>) -> Result<u32, TraceProblem> {
        let Some(Value::List(stack)) = event.get("frames") else {
            return self.builder.made_label(event.text("category").unwrap_or("unknown"));
        };
        if let Some(&label) = self.labels.get(&stack) {
            return Ok(label);
        }
        let frames = event.list("frames").unwrap_or_default();
        let mut chosen = None;
        for &frame in frames.iter().take(MOST_FRAMES) {
            let Some(found) = self.frame(frame)? else { continue };
            chosen = if found.is_python { Some(frame) } else { chosen.or(Some(frame)) };
            if found.is_python {
                break;
            }
        }
        let label = match chosen {
            Some(frame) => self.frame_label(frame)?,
            None => self.builder.made_label("unknown")?,
        };
        self.builder.charge(ENTRY_BYTES)?;
        self.labels.insert(stack, label);
        Ok(label)
    }

    /// What a frame is; `None` for something else.
    fn frame(&mut self, value: Value) -> Result<Option<FrameLabel>, TraceProblem> {
        let Value::Dict(number) = value else { return Ok(None) };
        if let Some(&known) = self.frames.get(&number) {
            return Ok(known);
        }
        let found = Frame::of(self.heap, value)
            .map(|frame| FrameLabel { is_python: frame.file.ends_with(".py"), label: None });
        self.builder.charge(ENTRY_BYTES)?;
        self.frames.insert(number, found);
        Ok(found)
    }

    /// The label of a frame, made once.
    fn frame_label(&mut self, value: Value) -> Result<u32, TraceProblem> {
        let (Value::Dict(number), Some(frame)) = (value, Frame::of(self.heap, value)) else {
            return self.builder.made_label("unknown");
        };
        if let Some(label) = self.frames.get(&number).copied().flatten().and_then(|known| known.label) {
            return Ok(label);
        }
        let label = self.builder.made_label(&frame.label())?;
        if let Some(Some(known)) = self.frames.get_mut(&number) {
            known.label = Some(label);
        }
        Ok(label)
    }
}

/// One line of a stack.
struct Frame<'a> {
    function: &'a str,
    file: &'a str,
    line: Option<u64>,
}

impl<'a> Frame<'a> {
    fn of(heap: &'a Heap, value: Value) -> Option<Self> {
        let fields = Fields::of(heap, value, "a frame").ok()?;
        let file = fields.text("filename").unwrap_or_default();
        Some(Self { function: fields.text("name")?, file: file_name(file), line: fields.number("line") })
    }

    fn label(&self) -> String {
        let function: String = self.function.chars().take(MOST_LETTERS / 2).collect();
        match self.line {
            Some(line) if !self.file.is_empty() => format!("{function} {}:{line}", self.file),
            _ => function,
        }
    }
}

/// The part of a path after its last separator; empty if that is too long to be looked at.
fn file_name(path: &str) -> &str {
    let start = path.ceil_char_boundary(path.len().saturating_sub(MOST_LETTERS + 1));
    let tail = &path[start..];
    match tail.rsplit_once(['/', '\\']) {
        Some((_, name)) => name,
        None if tail.len() > MOST_LETTERS || start > 0 => "",
        None => tail,
    }
}

/// A dictionary small enough to be looked into again and again.
struct Fields<'a> {
    heap: &'a Heap,
    value: Value,
}

impl<'a> Fields<'a> {
    fn of(heap: &'a Heap, value: Value, what: &'static str) -> Result<Self, SnapshotProblem> {
        match heap.entries(value) {
            Some(0..=MOST_ENTRIES) => Ok(Self { heap, value }),
            Some(_) => Err(SnapshotProblem::Shape { what, expected: "a dictionary of up to 64 entries" }),
            None => Err(SnapshotProblem::Shape { what, expected: "a dictionary" }),
        }
    }

    fn get(&self, key: &str) -> Option<Value> {
        self.heap.get(self.value, key)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(|value| self.heap.as_text(value))
    }

    fn list(&self, key: &str) -> Option<&'a [Value]> {
        self.get(key).and_then(|value| self.heap.as_list(value))
    }

    fn number(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(Value::Natural(number)) => Some(number),
            _ => None,
        }
    }

    fn address_and_bytes(&self) -> Result<(u64, u64), SnapshotProblem> {
        let field = |key, what| {
            self.number(key).ok_or(SnapshotProblem::Shape { what, expected: "a whole number below 2^64" })
        };
        Ok((field("addr", "an event's `addr`")?, field("size", "an event's `size`")?))
    }
}
