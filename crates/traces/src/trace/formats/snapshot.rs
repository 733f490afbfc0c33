//! PyTorch's memory snapshots: the output of `torch.cuda.memory._dump_snapshot` as a pickle or as JSON, and the list of
//! segments that `torch.cuda.memory_snapshot` returns.
//!
//! The list `device_traces` has a list of events for each device. The trace consists of `alloc` and `free_completed`. A
//! block with only a requested free is still in use on another stream. Sizes are requested bytes. The trace omits
//! segment events, because those are decisions of PyTorch's allocator.
//!
//! The list is a ring buffer, so its beginning may be missing. Blocks that are freed without an allocation, and blocks
//! in `segments` that are live at the end without an event, were live before. The trace does not distinguish streams
//! and private pools.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::BufRead;

use super::Format;
use crate::trace::builder::{Builder, MAX_LABEL};
use crate::trace::json;
use crate::trace::{ReadOptions, Trace, TraceError, TraceLimits, TracePlace, TraceProblem};

mod fields;
mod frame;

use fields::Fields;
use frame::{Frame, Rank};
use highwater_files::FileKind;
use highwater_files::lean::HeldMemory;
use highwater_files::pickle::{self, Heap, Value};

/// Both forms have one name.
const NAME: &str = "a PyTorch snapshot";

pub(super) const PICKLE: Format = Format {
    kind: Some(FileKind::Pickle),
    ..Format::trace(
        NAME,
        |start| start.bytes.first() == Some(&pickle::MAGIC),
        &[b"\x80\x02", b"\x80\x04"],
        |reader, options| parse(reader, options),
    )
    .with_devices()
};

pub(super) const JSON: Format = Format::trace(
    NAME,
    |start| start.has_line(|line| line.starts_with(['{', '['])),
    &[b"{"],
    |reader, options| parse_json(reader, options),
)
.with_devices();

/// The most entries of a dictionary that is searched for every event, and the most frames of a stack. Real ones have
/// about ten and fewer than a hundred. The limit bounds the cost of a long one that many events share.
const MOST_ENTRIES: usize = 64;
const MOST_FRAMES: usize = 256;

/// The reason why a snapshot has no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotProblem {
    /// A value has another type than in snapshots.
    #[error("{what} is missing, or not {expected}")]
    Shape {
        /// The value.
        what: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// No events were recorded.
    #[error("no allocations were recorded{}: was recording switched on (_record_memory_history)?", of_device(*.device))]
    NoEvents {
        /// The requested device, if any.
        device: Option<u32>,
    },
    /// Several devices have events, and none was requested.
    #[error("events of {count} devices ({first}, {second}{}): choose one with --device", if *.count > 2 { ", ..." } else { "" })]
    SeveralDevices {
        /// The number of devices with events.
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

/// The share of the memory limit for the objects of a snapshot, in eighths. The rest holds the file, and then the trace,
/// which is much smaller than the objects.
const OF_OBJECTS: u64 = 6;

/// Reads a snapshot in a pickle.
fn parse(mut reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut bytes = Vec::new();
    let read = reader.read_to_end(&mut bytes);
    read.map_err(|error| TracePlace::Byte(bytes.len() as u64).of(error))?;
    let mut memory = HeldMemory::new(options.limits.held_bytes).with_eighths(OF_OBJECTS);
    memory.note_input(bytes.len() as u64);
    let (heap, root) = pickle::read(&bytes[..], memory)?;
    drop(bytes);
    trace_of(&heap, root, options)
}

/// Reads a snapshot in JSON, as Highwater exports it.
fn parse_json(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let memory = HeldMemory::new(options.limits.held_bytes).with_eighths(OF_OBJECTS);
    let (heap, root) = json::read(reader, memory).map_err(|problem| TracePlace::Snapshot.of(problem))?;
    trace_of(&heap, root, options)
}

/// Builds the trace of a snapshot.
fn trace_of(heap: &Heap, root: Value, options: &ReadOptions) -> Result<Trace, TraceError> {
    let limits = TraceLimits { held_bytes: heap.reserved(), ..options.limits };
    let snapshot = Snapshot { heap, root };
    let mut reader =
        Reader { heap, builder: Builder::new(limits), labels: HashMap::new(), frames: HashMap::new() };
    let device = snapshot.device(options.device).map_err(|problem| TracePlace::Snapshot.of(problem))?;
    for (index, &event) in (0..).zip(device.events) {
        reader
            .event(event)
            .map_err(|problem| TracePlace::Event { device: device.number, index }.of(problem))?;
    }
    if device.events.is_empty() {
        reader.builder.skip(NO_EVENTS.to_owned());
    }
    let most = limits.events;
    snapshot
        .each_live_block(device.number, most, |address, bytes, block| {
            reader.live_block(address, bytes, block)
        })
        .map_err(|problem| TracePlace::Snapshot.of(problem))?;
    let mut trace = reader.builder.finish();
    trace.has_phases = snapshot.is_exported();
    if trace.events().is_empty() && !snapshot.is_list() && device.events.is_empty() {
        return Err(TracePlace::Snapshot.of(SnapshotProblem::NoEvents { device: options.device }));
    }
    Ok(trace)
}

/// The missing part of a snapshot without events, such as a list of segments.
const NO_EVENTS: &str = "all events: the file contains only the blocks live at that moment; call \
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
    /// Returns the events of the requested device, or of the only device with events. Without any events, returns the
    /// device with segments.
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
        devices.pop().map_or_else(|| self.device_of_blocks(asked), Ok)
    }

    /// Returns whether this is a bare list of segments, which has no events.
    fn is_list(&self) -> bool {
        matches!(self.root, Value::List(_))
    }

    /// Returns whether Highwater wrote the snapshot, with the facts of the run in place of PyTorch's settings.
    fn is_exported(&self) -> bool {
        let settings = self.heap.get(self.root, "allocator_settings");
        settings.is_some_and(|settings| self.heap.get(settings, "program").is_some())
    }

    /// Returns the list of segments.
    fn segments(&self) -> Option<&'a [Value]> {
        let list = if self.is_list() { Some(self.root) } else { self.heap.get(self.root, "segments") };
        list.and_then(|list| self.heap.as_list(list))
    }

    /// Returns the device of the segments: the requested one, or the only one with segments.
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

    /// Visits the address, the size and the dictionary of every block that is live at the end. Snapshots without segments have none.
    fn each_live_block(
        &self,
        device: u32,
        most: u32,
        mut show: impl FnMut(u64, u64, &Fields<'_>) -> Result<(), TraceProblem>,
    ) -> Result<(), TraceProblem> {
        let Some(segments) = self.segments() else { return Ok(()) };
        let mut seen = 0;
        // A pickle can refer to one list from many segments. Each list is read once, so that time is linear in the size
        // of the file.
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
                    return Err(TraceProblem::TooMany { what: "events", limit: most });
                }
                let block = Fields::of(self.heap, block, "a block")?;
                let size = block.number("size").unwrap_or(0);
                if block.text("state").is_some_and(|state| state.starts_with("active")) {
                    show(address, block.number("requested_size").unwrap_or(size), &block)?;
                }
                address = address.saturating_add(size);
            }
        }
        Ok(())
    }
}

/// Converts snapshot events to events of a trace.
struct Reader<'a> {
    heap: &'a Heap,
    builder: Builder,
    /// By the stack and the metadata of a label, because many events share them.
    labels: HashMap<(u32, Option<u32>), u32>,
    /// By the dictionary of a frame, because many stacks share one and its texts may be long. `None` for an invalid
    /// frame.
    frames: HashMap<u32, Option<FrameLabel>>,
}

/// The information of a frame.
#[derive(Clone, Copy, Debug)]
struct FrameLabel {
    rank: Rank,
    /// The frame's label, created on first use.
    label: Option<u32>,
}

/// The cost of a map entry, including unused capacity.
const ENTRY_BYTES: u64 = 40;

impl Reader<'_> {
    fn event(&mut self, event: Value) -> Result<(), TraceProblem> {
        let fields = Fields::of(self.heap, event, "an event")?;
        if let Some(time) = fields.number("time_us") {
            self.builder.at(time.saturating_mul(1000));
        }
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
                // Marks beyond the limit on comments are ignored.
                let _ = self.builder.comment(&format!("mark: out of memory, {bytes} bytes requested"));
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err(SnapshotProblem::Shape { what: "an event's `action`", expected: "a text" }.into()),
        }
    }

    /// Adds a block that is live at the end, with the stack that allocated it.
    fn live_block(&mut self, address: u64, bytes: u64, block: &Fields<'_>) -> Result<(), TraceProblem> {
        if self.builder.is_known(address) {
            return Ok(());
        }
        // Snapshots before PyTorch 2.1 have the stack in the last entry of a history.
        let history = block.list("history").and_then(|history| history.last()).copied();
        let history = history.and_then(|entry| Fields::of(self.heap, entry, "an entry of a history").ok());
        let stacked = history.as_ref().unwrap_or(block);
        let label = match stacked.list("frames") {
            Some([_, ..]) => Some(self.label(stacked)?),
            _ => None,
        };
        self.builder.live_at_end(address, bytes, label)
    }

    /// Returns the origin of an allocation: the innermost line of Python, otherwise the node of the backward pass, the op
    /// or the innermost frame, otherwise the category. The metadata that the program set follows in brackets.
    fn label(&mut self, event: &Fields<'_>) -> Result<u32, TraceProblem> {
        let metadata = event.text("user_metadata").filter(|text| !text.is_empty());
        let number = match event.get("user_metadata") {
            Some(Value::Text(number)) => Some(number),
            _ => None,
        };
        let Some(Value::List(stack)) = event.get("frames") else {
            return self.builder.made_label(metadata.or(event.text("category")).unwrap_or("unknown"));
        };
        if let Some(&label) = self.labels.get(&(stack, number)) {
            return Ok(label);
        }
        let frames = event.list("frames").unwrap_or_default();
        let mut chosen: Option<(Rank, Value)> = None;
        for &frame in frames.iter().take(MOST_FRAMES) {
            let Some(found) = self.frame(frame)? else { continue };
            if chosen.is_none_or(|(rank, _)| found.rank < rank) {
                chosen = Some((found.rank, frame));
            }
            if found.rank == Rank::Python {
                break;
            }
        }
        let label = match (chosen, metadata) {
            (Some((_, frame)), None) => self.frame_label(frame)?,
            (Some((_, frame)), Some(text)) => {
                let frame = Frame::of(self.heap, frame).map_or_else(String::new, |frame| frame.label());
                let text: String = text.chars().take(MAX_LABEL / 4).collect();
                self.builder.made_label(&format!("{frame} [{text}]"))?
            }
            (None, text) => self.builder.made_label(text.or(event.text("category")).unwrap_or("unknown"))?,
        };
        self.builder.charge(ENTRY_BYTES)?;
        self.labels.insert((stack, number), label);
        Ok(label)
    }

    /// Reads a frame; `None` for an invalid one.
    fn frame(&mut self, value: Value) -> Result<Option<FrameLabel>, TraceProblem> {
        let Value::Dict(number) = value else { return Ok(None) };
        if let Some(&known) = self.frames.get(&number) {
            return Ok(known);
        }
        let found = Frame::of(self.heap, value).map(|frame| FrameLabel { rank: frame.rank(), label: None });
        self.builder.charge(ENTRY_BYTES)?;
        self.frames.insert(number, found);
        Ok(found)
    }

    /// Returns the label of a frame, created once.
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
