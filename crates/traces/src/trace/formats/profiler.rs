//! The trace of PyTorch's profiler: the JSON of `export_chrome_trace`, recorded with `profile_memory=True`.
//!
//! Events named `[memory]` are the allocations and frees of all devices: an address, the bytes (negative for a free) and
//! the sum after the event. A block is charged to the innermost op that runs on its thread at that time. The sum of the
//! first event shows how many bytes were live before the profile began.
//!
//! Source: the traces that PyTorch 2.15 writes.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;

use super::Format;
use crate::trace::builder::Builder;
use crate::trace::profile::ProfileProblem;
use crate::trace::snapshot::SnapshotProblem;
use crate::trace::{ReadOptions, Trace, TraceError, TracePlace, TraceProblem};

mod json;

pub(super) const FORMAT: Format = Format::trace(
    "PyTorch's profiler",
    |start| start.has_line(|line| line.starts_with('{')) && is_start(start.text()),
    &[b"{\"traceEvents\":["],
    |reader, options| parse(reader, options),
)
.with_devices();

/// The number of PyTorch's device type for the CPU.
const CPU: u64 = 0;

/// The label of blocks that no op allocates.
const NO_OP: &str = "(outside of ops)";

/// Returns whether a JSON object begins like a profiler's trace.
fn is_start(start: &str) -> bool {
    ["\"traceEvents\"", "\"schemaVersion\"", "\"deviceProperties\""].iter().any(|key| start.contains(key))
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug)]
struct MemoryEvent {
    at_ns: u64,
    thread: u64,
    address: u64,
    /// Negative for a free.
    bytes: i64,
    /// The bytes in use after the event, if the file contains them.
    total: Option<u64>,
    device: Device,
}

/// An op that runs on a thread.
#[derive(Clone, Copy, Debug)]
struct Op {
    begin_ns: u64,
    end_ns: u64,
    /// The index of the name.
    name: u32,
}

/// The type and the index of a device. The CPU has the index -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    kind: u64,
    index: i64,
}

/// The events of a file.
#[derive(Debug, Default)]
struct Events {
    memory: Vec<MemoryEvent>,
    /// By thread.
    ops: HashMap<u64, Vec<Op>>,
    names: Vec<String>,
}

fn parse(reader: impl BufRead, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(options.limits);
    let mut events = json::read(reader, &mut builder)?;
    let device = events.device(options.device).map_err(|problem| TracePlace::Byte(0).of(problem))?;
    events.memory.retain(|event| event.device == device);
    events.memory.sort_by_key(|event| event.at_ns);
    let names = events.op_of_each();
    let number = u32::try_from(device.index).unwrap_or(0);
    let mut known: HashMap<Option<u32>, u32> = HashMap::new();
    for ((index, event), name) in (0..).zip(&events.memory).zip(names) {
        let place = TracePlace::Event { device: number, index };
        let text = name.and_then(|name| events.names.get(name as usize)).map_or(NO_OP, String::as_str);
        add(&mut builder, event, &mut known, (name, text)).map_err(|problem| place.of(problem))?;
    }
    add_earlier(&mut builder, &events.memory).map_err(|problem| TracePlace::Byte(0).of(problem))?;
    Ok(builder.finish())
}

fn add(
    builder: &mut Builder,
    event: &MemoryEvent,
    known: &mut HashMap<Option<u32>, u32>,
    (name, text): (Option<u32>, &str),
) -> Result<(), TraceProblem> {
    builder.at(event.at_ns);
    let bytes = event.bytes.unsigned_abs();
    if event.bytes < 0 {
        return builder.free_at(event.address, bytes);
    }
    let label = match known.get(&name) {
        Some(&label) => label,
        None => {
            let label = builder.made_label(text)?;
            known.insert(name, label);
            label
        }
    };
    builder.alloc_at(event.address, bytes, label)
}

/// Adds the bytes that were live before the profile and stay live. The first sum shows all bytes from before.
fn add_earlier(builder: &mut Builder, memory: &[MemoryEvent]) -> Result<(), TraceProblem> {
    let Some(MemoryEvent { bytes, total: Some(total), .. }) = memory.first() else { return Ok(()) };
    let before = total.checked_add_signed(bytes.saturating_neg()).unwrap_or(0);
    let rest = before.saturating_sub(builder.earlier_bytes());
    // No block has the last address.
    if rest > 0 { builder.live_at_end(u64::MAX, rest, None) } else { Ok(()) }
}

impl Events {
    /// Returns the requested device. By default the only GPU with events, or the CPU if there is none.
    fn device(&self, asked: Option<u32>) -> Result<Device, TraceProblem> {
        let mut counts: BTreeMap<Device, u64> = BTreeMap::new();
        for event in &self.memory {
            *counts.entry(event.device).or_default() += 1;
        }
        let is_asked = |device: &Device| asked.is_none_or(|asked| device.index == i64::from(asked));
        let gpus: Vec<Device> =
            counts.keys().copied().filter(|device| device.kind != CPU && is_asked(device)).collect();
        let number = |device: Device| u32::try_from(device.index).unwrap_or(0);
        match gpus.as_slice() {
            [] => {
                let cpu = counts.keys().copied().find(|device| device.kind == CPU && asked.is_none());
                Ok(cpu.ok_or(ProfileProblem::NoMemoryEvents { device: asked })?)
            }
            [device] => Ok(*device),
            [first, second, ..] => {
                let (first, second) = (number(*first), number(*second));
                Err(SnapshotProblem::SeveralDevices { count: gpus.len(), first, second }.into())
            }
        }
    }

    /// Returns the name of the innermost op at each event, in the order of the events.
    fn op_of_each(&mut self) -> Vec<Option<u32>> {
        // An outer op begins first, or ends later.
        let ops = &mut self.ops;
        ops.values_mut().for_each(|ops| ops.sort_by_key(|op| (op.begin_ns, std::cmp::Reverse(op.end_ns))));
        let mut running: HashMap<u64, (usize, Vec<Op>)> = HashMap::new();
        let mut found = Vec::with_capacity(self.memory.len());
        for event in &self.memory {
            let ops = ops.get(&event.thread).map_or(&[][..], Vec::as_slice);
            let (next, stack) = running.entry(event.thread).or_default();
            while let Some(op) = ops.get(*next).filter(|op| op.begin_ns <= event.at_ns) {
                drop_ended(stack, op.begin_ns);
                stack.push(*op);
                *next += 1;
            }
            drop_ended(stack, event.at_ns);
            found.push(stack.last().map(|op| op.name));
        }
        found
    }
}

/// Removes the innermost ops that ended before a time.
fn drop_ended(stack: &mut Vec<Op>, now_ns: u64) {
    while stack.last().is_some_and(|op| op.end_ns < now_ns) {
        stack.pop();
    }
}
