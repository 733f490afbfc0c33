//! PyTorch's memory snapshots: what `torch.cuda.memory._dump_snapshot` writes.
//!
//! The list `device_traces` has a list of events for each device. Of these, `alloc` and `free_completed` make the trace: a
//! block whose free was only requested is still in use by another stream. Sizes are those asked for. What happens to
//! segments was the decision of PyTorch's allocator, and is ours to make anew. The list is a ring buffer, so its
//! beginning may be missing: what is freed without having been allocated, and what `segments` shows as live at the end
//! without an event, was live before. Streams and private pools are not kept apart.

use std::collections::HashMap;
use std::io::BufRead;

use super::builder::{Builder, MAX_LABEL};
use super::pickle::{self, Heap, Value};
use super::{ReadOptions, Trace, TraceError, TracePlace, TraceProblem};

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
    #[error("events of {count} devices ({first}, {second}{}): choose one", if *.count > 2 { ", ..." } else { "" })]
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

pub(super) fn parse(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let (heap, root) = pickle::read(reader, &options.limits)?;
    let snapshot = Snapshot { heap: &heap, root };
    let device = snapshot.device(options.device).map_err(|problem| TracePlace::Snapshot.of(problem))?;
    let mut reader = Reader { heap: &heap, builder: Builder::new(options.limits), labels: HashMap::new() };
    for (index, &event) in (0..).zip(device.events) {
        reader
            .event(event)
            .map_err(|problem| TracePlace::Event { device: device.number, index }.of(problem))?;
    }
    let most = options.limits.events as usize;
    snapshot
        .each_live_block(device.number, most, |address, bytes| reader.builder.live_at_end(address, bytes))
        .map_err(|problem| TracePlace::Snapshot.of(problem))?;
    Ok(reader.builder.finish())
}

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

    /// Shows the address and the size of every block that is live at the end; snapshots without segments have none.
    fn each_live_block(
        &self,
        device: u32,
        most: usize,
        mut show: impl FnMut(u64, u64) -> Result<(), TraceProblem>,
    ) -> Result<(), TraceProblem> {
        let Some(segments) = self.heap.get(self.root, "segments").and_then(|list| self.heap.as_list(list))
        else {
            return Ok(());
        };
        let mut seen = 0;
        for &segment in segments {
            let segment = Fields::of(self.heap, segment, "a segment")?;
            // Early snapshots do not name the device, and have only one.
            if segment.number("device").is_some_and(|number| number != u64::from(device)) {
                continue;
            }
            let Some(mut address) = segment.number("address") else { continue };
            for &block in segment.list("blocks").unwrap_or_default() {
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
    /// By what a label is made from: many events share a stack.
    labels: HashMap<u32, u32>,
}

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
        let frames: Vec<_> =
            frames.iter().take(MOST_FRAMES).filter_map(|&frame| Frame::of(self.heap, frame)).collect();
        let frame = frames.iter().find(|frame| frame.file.ends_with(".py")).or(frames.first());
        let text = frame.map_or_else(|| "unknown".to_owned(), Frame::label);
        let label = self.builder.made_label(&text)?;
        self.labels.insert(stack, label);
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

/// The part of a path after its last separator.
fn file_name(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    if name.len() > MOST_LETTERS { "" } else { name }
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
