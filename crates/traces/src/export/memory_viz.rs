//! PyTorch's memory snapshot: the map of each pool at the end, and the events before it.
//!
//! The viewer walks backwards from the map and fails if the two disagree. Therefore blocks cover their segment without
//! a gap, and every event is in a segment that exists at that time. A free is requested and completed in one step.
//! Viewers up to May 2026 need at least one event of the category "unknown"; the segments' own events have it.
//!
//! Sources: `torch/cuda/_memory_viz.py` and `MemoryViz.js`, in the version of 2026.

use std::io::Write;

use bfc_core::Category;
use highwater_tracking::{BlockLife, EventKind, Recording};

use super::encoder::Encoder;
use super::segments::{Segment, Segments, events_by_pool};
use super::{ExportError, Output};

/// The number under which encoders share the id of the default pool. Owners have smaller numbers.
const DEFAULT_POOL: u32 = u32::MAX;

/// The notes for blocks whose category changed, by the index of the first category.
const ALLOCATED_AS: [&str; Category::COUNT] = [
    "allocated as temporary",
    "allocated as parameter",
    "allocated as gradient",
    "allocated as optimizer state",
    "allocated as activation",
    "allocated as input",
    "allocated as output",
    "allocated as workspace",
    "allocated as communication",
    "allocated as mapped",
];

/// The most bytes of names in a stack.
const MAX_STACK_BYTES: usize = 4096;

/// The data of a recording that its snapshot needs.
struct Snapshot<'a> {
    recording: &'a Recording,
    pools: Vec<Pool>,
}

/// A pool: a device of the snapshot.
struct Pool {
    events: Vec<u32>,
    segments: Segments,
    /// The blocks that are live at the end, by address.
    live: Vec<u32>,
}

/// Writes a recording as a snapshot.
pub(super) fn write<W: Write>(
    recording: &Recording,
    mut encoder: impl Encoder,
    out: &mut Output<W>,
) -> Result<(), ExportError> {
    let snapshot = Snapshot::of(recording)?;
    encoder.begin_dictionary();
    encoder.key("segments");
    encoder.begin_list();
    for (number, pool) in (0..).zip(&snapshot.pools) {
        snapshot.write_map(number, pool, &mut encoder, out)?;
    }
    encoder.end_list();

    encoder.key("device_traces");
    encoder.begin_list();
    for pool in &snapshot.pools {
        encoder.item();
        snapshot.write_events(pool, &mut encoder, out)?;
    }
    encoder.end_list();

    snapshot.write_settings(&mut encoder);
    encoder.end_dictionary();
    encoder.finish();
    out.flush(encoder.buffer())?;
    Ok(())
}

impl<'a> Snapshot<'a> {
    fn of(recording: &'a Recording) -> Result<Self, ExportError> {
        let mut live: Vec<Vec<u32>> = vec![Vec::new(); recording.pools().len()];
        for (number, block) in (0..).zip(recording.blocks()) {
            if block.freed.is_none() && block.granted > 0 {
                live[block.pool as usize].push(number);
            }
        }
        let mut pools = Vec::new();
        for (events, mut live) in events_by_pool(recording).into_iter().zip(live) {
            let segments = Segments::of(recording, &events)?;
            live.sort_by_key(|&block| recording.block(block).address);
            for pair in live.windows(2) {
                let [first, second] = [pair[0], pair[1]];
                let address = recording.block(second).address;
                if recording.block(first).address + recording.block(first).granted > address {
                    return Err(ExportError::Overlap { first, second, address });
                }
            }
            pools.push(Pool { events, segments, live });
        }
        Ok(Self { recording, pools })
    }

    /// Writes the final segments of a pool.
    fn write_map<W: Write>(
        &self,
        device: u64,
        pool: &Pool,
        encoder: &mut impl Encoder,
        out: &mut Output<W>,
    ) -> Result<(), ExportError> {
        let mut live = pool.live.as_slice();
        for segment in pool.segments.all.iter().filter(|segment| segment.present) {
            let count = live.partition_point(|&block| self.recording.block(block).address < segment.end);
            let (blocks, rest) = live.split_at(count);
            live = rest;
            let lives = || blocks.iter().map(|&block| self.recording.block(block));

            encoder.item();
            encoder.begin_dictionary();
            number(encoder, "device", device);
            number(encoder, "address", segment.start);
            number(encoder, "total_size", segment.bytes());
            let granted = lives().map(|block| block.granted).sum();
            number(encoder, "allocated_size", granted);
            number(encoder, "active_size", granted);
            let requested = lives().fold(0_u64, |sum, block| sum.saturating_add(block.requested));
            number(encoder, "requested_size", requested);
            number(encoder, "stream", 0);
            encoder.key("segment_type");
            encoder.word("large");
            encoder.key("segment_pool_id");
            default_pool(encoder);
            encoder.key("is_expandable");
            encoder.truth(false);
            no_frames(encoder);
            encoder.key("blocks");
            encoder.begin_list();
            let mut address = segment.start;
            for block in lives() {
                free_block(encoder, address, block.address);
                self.live_block(encoder, block);
                address = block.address + block.granted;
                out.flush_if_full(encoder.buffer())?;
            }
            free_block(encoder, address, segment.end);
            encoder.end_list();
            encoder.end_dictionary();
            out.flush_if_full(encoder.buffer())?;
        }
        Ok(())
    }

    fn live_block(&self, encoder: &mut impl Encoder, block: &BlockLife) {
        encoder.item();
        encoder.begin_dictionary();
        number(encoder, "address", block.address);
        number(encoder, "size", block.granted);
        number(encoder, "requested_size", block.requested);
        encoder.key("state");
        encoder.word("active_allocated");
        self.frames(encoder, block.last_owner);
        encoder.end_dictionary();
    }

    fn write_events<W: Write>(
        &self,
        pool: &Pool,
        encoder: &mut impl Encoder,
        out: &mut Output<W>,
    ) -> Result<(), ExportError> {
        encoder.begin_list();
        for segment in pool.segments.all.iter().filter(|segment| segment.fixed) {
            self.segment_event(encoder, segment, true, 0);
            out.flush_if_full(encoder.buffer())?;
        }
        let mut live = 0;
        for &index in &pool.events {
            let event = self.recording.events()[index as usize];
            match event.kind {
                EventKind::Alloc(block) => {
                    let block = self.recording.block(block);
                    live += block.granted;
                    if block.granted > 0 {
                        self.alloc(encoder, block, event.at_ns);
                    }
                }
                EventKind::Free(block) => {
                    let block = self.recording.block(block);
                    live -= block.granted;
                    if block.granted > 0 {
                        for action in ["free_requested", "free_completed"] {
                            self.begin_event(encoder, action, block.requested, block.stream, event.at_ns);
                            number(encoder, "addr", block.address);
                            self.end_event(encoder, block.last_owner, block.last_category.name());
                        }
                    }
                }
                EventKind::Region(region) => {
                    let region = &self.recording.regions()[region as usize];
                    if let Some(segment) = pool.segments.moving(region.address) {
                        self.segment_event(encoder, segment, region.taken, event.at_ns);
                    }
                }
                EventKind::Failed(failure) => {
                    let failure = &self.recording.failures()[failure as usize];
                    let free = self.limit(failure.pool).map_or(0, |limit| limit.saturating_sub(live));
                    self.begin_event(encoder, "oom", failure.requested, 0, event.at_ns);
                    number(encoder, "device_free", free);
                    self.end_event(encoder, failure.owner, failure.category.name());
                }
                _ => {}
            }
            out.flush_if_full(encoder.buffer())?;
        }
        encoder.end_list();
        Ok(())
    }

    fn alloc(&self, encoder: &mut impl Encoder, block: &BlockLife, at_ns: u64) {
        self.begin_event(encoder, "alloc", block.requested, block.stream, at_ns);
        number(encoder, "addr", block.address);
        if block.category != block.last_category {
            encoder.key("user_metadata");
            encoder.word(ALLOCATED_AS[block.category.index()]);
        }
        self.end_event(encoder, block.owner, block.last_category.name());
    }

    fn segment_event(&self, encoder: &mut impl Encoder, segment: &Segment, taken: bool, at_ns: u64) {
        let action = if taken { "segment_alloc" } else { "segment_free" };
        self.begin_event(encoder, action, segment.bytes(), 0, at_ns);
        number(encoder, "addr", segment.start);
        self.end_event(encoder, 0, "unknown");
    }

    fn begin_event(
        &self,
        encoder: &mut impl Encoder,
        action: &'static str,
        size: u64,
        stream: u32,
        at_ns: u64,
    ) {
        encoder.item();
        encoder.begin_dictionary();
        encoder.key("action");
        encoder.word(action);
        number(encoder, "size", size);
        number(encoder, "stream", stream.into());
        let started = self.recording.facts().started_unix_ms.saturating_mul(1000);
        number(encoder, "time_us", started.saturating_add(at_ns / 1000));
    }

    fn end_event(&self, encoder: &mut impl Encoder, owner: u32, category: &'static str) {
        encoder.key("category");
        encoder.word(category);
        encoder.key("pool_id");
        default_pool(encoder);
        self.frames(encoder, owner);
        encoder.end_dictionary();
    }

    /// Returns the stack of an owner: the owner, the modules above it, and the program.
    fn frames(&self, encoder: &mut impl Encoder, owner: u32) {
        encoder.key("frames");
        encoder.shared(owner, |encoder| {
            encoder.begin_list();
            let (mut above, mut bytes) = (owner, 0);
            // JSON repeats the stack with each event, so very long stacks lose their outer frames.
            while above != 0 && bytes < MAX_STACK_BYTES {
                let named = self.recording.owner(above);
                frame(encoder, if named.is_op() { "op" } else { "module" }, &named.name);
                bytes += named.name.len();
                above = named.parent;
            }
            let program = self.recording.facts().program.as_str();
            frame(encoder, "program", if program.is_empty() { "program" } else { program });
            encoder.end_list();
        });
    }

    /// Writes the facts of the run, where viewers show an allocator's settings.
    fn write_settings(&self, encoder: &mut impl Encoder) {
        let facts = self.recording.facts();
        encoder.key("allocator_settings");
        encoder.begin_dictionary();
        encoder.key("program");
        encoder.text(&facts.program);
        encoder.key("version");
        encoder.text(&facts.version);
        encoder.key("facts");
        encoder.begin_list();
        for (name, value) in &facts.more {
            encoder.item();
            encoder.text(&format!("{name}: {value}"));
        }
        encoder.end_list();
        encoder.key("pools");
        encoder.begin_list();
        for pool in self.recording.pools() {
            encoder.item();
            encoder.text(&format!("{} ({})", pool.name, pool.memory));
        }
        encoder.end_list();
        encoder.end_dictionary();
    }

    fn limit(&self, pool: u32) -> Option<u64> {
        let name = &self.recording.pools()[pool as usize].name;
        let pools = &self.recording.summary()?.report.pools;
        pools.iter().find(|row| row.name == *name)?.limit
    }
}

fn number(encoder: &mut impl Encoder, key: &'static str, number: u64) {
    encoder.key(key);
    encoder.number(number);
}

/// The id of the default pool, as opposed to PyTorch's private pools.
fn default_pool(encoder: &mut impl Encoder) {
    encoder.shared(DEFAULT_POOL, |encoder| {
        encoder.begin_list();
        for _ in 0..2 {
            encoder.item();
            encoder.number(0);
        }
        encoder.end_list();
    });
}

fn no_frames(encoder: &mut impl Encoder) {
    encoder.key("frames");
    encoder.begin_list();
    encoder.end_list();
}

fn free_block(encoder: &mut impl Encoder, start: u64, end: u64) {
    if start < end {
        encoder.item();
        encoder.begin_dictionary();
        number(encoder, "address", start);
        number(encoder, "size", end - start);
        number(encoder, "requested_size", 0);
        encoder.key("state");
        encoder.word("inactive");
        no_frames(encoder);
        encoder.end_dictionary();
    }
}

fn frame(encoder: &mut impl Encoder, kind: &'static str, name: &str) {
    encoder.item();
    encoder.begin_dictionary();
    encoder.key("filename");
    encoder.word(kind);
    number(encoder, "line", 0);
    encoder.key("name");
    encoder.text(name);
    encoder.end_dictionary();
}
