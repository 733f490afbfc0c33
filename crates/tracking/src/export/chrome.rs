//! Traces in Chrome's format, for Perfetto. Ops are slices with their peaks; live and reserved bytes are counters.
//! Every block has an instant event named `[memory]`, as in PyTorch's profiler.
//!
//! Pools are devices, in the order of the recording. Times are microseconds since recording began.
//!
//! Sources: the document "Trace Event Format"; for `[memory]`, PyTorch's Kineto and readers of its traces.

use std::io::Write;

use bfc_core::Category;

use super::json_writer::{push_number, push_text};
use super::segments::{Segments, events_by_pool};
use super::{ExportError, Output};
use crate::record::{BlockLife, Event, EventKind, Execution, Recording};
use crate::scope::Phase;

pub(super) fn write<W: Write>(recording: &Recording, out: &mut Output<W>) -> Result<(), ExportError> {
    let mut trace = ChromeTrace::new(recording)?;
    trace.begin();
    for (index, event) in recording.events().iter().enumerate() {
        trace.event(index, *event);
        out.flush_if_full(&mut trace.buffer)?;
    }
    trace.buffer.extend_from_slice(b"\n]}\n");
    out.flush(&mut trace.buffer)?;
    Ok(())
}

struct ChromeTrace<'a> {
    recording: &'a Recording,
    pools: Vec<Pool>,
    /// By owner: the path of its module, in quotes.
    scopes: Vec<Option<Vec<u8>>>,
    buffer: Vec<u8>,
}

/// A pool at the current moment.
struct Pool {
    /// The quoted names of its counters: bytes, and bytes by category.
    total: Vec<u8>,
    parts: Vec<u8>,
    cpu: bool,
    segments: Segments,
    reserved: u64,
    live: u64,
    categories: [u64; Category::COUNT],
}

impl<'a> ChromeTrace<'a> {
    fn new(recording: &'a Recording) -> Result<Self, ExportError> {
        let mut pools = Vec::new();
        for (pool, events) in recording.pools().iter().zip(events_by_pool(recording)) {
            let segments = Segments::of(recording, &events)?;
            let fixed = segments.all.iter().filter(|segment| segment.fixed);
            pools.push(Pool {
                total: quoted(&format!("{} memory", pool.name)),
                parts: quoted(&format!("{} by category", pool.name)),
                cpu: !pool.memory.starts_with("device"),
                reserved: fixed.map(|segment| segment.bytes()).sum(),
                segments,
                live: 0,
                categories: [0; Category::COUNT],
            });
        }
        let scopes = vec![None; recording.owners().len()];
        Ok(Self { recording, pools, scopes, buffer: Vec::new() })
    }

    fn begin(&mut self) {
        let program = quoted(match self.recording.facts().program.as_str() {
            "" => "highwater",
            program => program,
        });
        let out = &mut self.buffer;
        out.extend_from_slice(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        out.extend_from_slice(b"{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":");
        out.extend_from_slice(&program);
        out.extend_from_slice(b"}}");
        for &thread in self.recording.threads() {
            out.extend_from_slice(b",\n{\"ph\":\"M\",\"pid\":1,\"tid\":");
            push_number(out, thread);
            out.extend_from_slice(b",\"name\":\"thread_name\",\"args\":{\"name\":\"thread ");
            push_number(out, thread);
            out.extend_from_slice(b"\"}}");
        }
    }

    fn event(&mut self, index: usize, event: Event) {
        match event.kind {
            EventKind::Alloc(number) => {
                let block = *self.recording.block(number);
                let pool = &mut self.pools[block.pool as usize];
                pool.live += block.granted;
                pool.categories[block.category.index()] += block.granted;
                self.memory(index, event, &block, "");
                self.totals(event, block.pool);
                self.parts(event, block.pool);
            }
            EventKind::Free(number) => {
                let block = *self.recording.block(number);
                let pool = &mut self.pools[block.pool as usize];
                pool.live -= block.granted;
                pool.categories[block.last_category.index()] -= block.granted;
                self.memory(index, event, &block, "-");
                self.totals(event, block.pool);
                self.parts(event, block.pool);
            }
            EventKind::Retag(number) => {
                let retag = self.recording.retags()[number as usize];
                if retag.category == retag.old_category {
                    return;
                }
                let block = self.recording.block(retag.block);
                let pool = &mut self.pools[block.pool as usize];
                pool.categories[retag.old_category.index()] -= block.granted;
                pool.categories[retag.category.index()] += block.granted;
                self.parts(event, block.pool);
            }
            EventKind::Region(number) => {
                let region = self.recording.regions()[number as usize];
                let pool = &mut self.pools[region.pool as usize];
                let Some(bytes) = pool.segments.moving(region.address).map(|segment| segment.bytes()) else {
                    return;
                };
                pool.reserved = if region.taken { pool.reserved + bytes } else { pool.reserved - bytes };
                self.totals(event, region.pool);
            }
            EventKind::Enter(number) => {
                let execution = self.recording.executions()[number as usize];
                self.slice(event, &execution);
            }
            EventKind::Failed(number) => {
                let failure = self.recording.failures()[number as usize];
                let name = format!("out of memory: {} bytes requested", failure.requested);
                self.instant(event, &name);
            }
            EventKind::Mark(number) => {
                let recording = self.recording;
                self.instant(event, &recording.marks()[number as usize]);
            }
            EventKind::Leave(_) => {}
        }
    }

    /// Begins an event, up to and with its time.
    fn head(&mut self, start: &[u8], event: Event) {
        let out = &mut self.buffer;
        out.extend_from_slice(b",\n{\"pid\":1,\"tid\":");
        push_number(out, self.recording.threads()[event.thread as usize]);
        out.extend_from_slice(b",\"ts\":");
        push_microseconds(out, event.at_ns);
        out.push(b',');
        out.extend_from_slice(start);
    }

    fn field(&mut self, name: &[u8], number: u64) {
        self.buffer.extend_from_slice(name);
        push_number(&mut self.buffer, number);
    }

    /// Writes the instant event of an allocation or a free.
    fn memory(&mut self, index: usize, event: Event, block: &BlockLife, sign: &str) {
        let pool = &self.pools[block.pool as usize];
        let (live, reserved, cpu) = (pool.live, pool.reserved, pool.cpu);
        self.head(
            b"\"ph\":\"i\",\"s\":\"t\",\"cat\":\"cpu_instant_event\",\"name\":\"[memory]\",\"args\":{",
            event,
        );
        self.field(b"\"Total Reserved\":", reserved);
        self.field(b",\"Total Allocated\":", live);
        self.buffer.extend_from_slice(b",\"Bytes\":");
        self.field(sign.as_bytes(), block.granted);
        self.field(b",\"Addr\":", block.address);
        self.field(b",\"Device Id\":", if cpu { 0 } else { block.pool.into() });
        self.field(b",\"Device Type\":", u64::from(!cpu));
        self.field(b",\"Ev Idx\":", index as u64);
        self.buffer.extend_from_slice(b"}}");
    }

    /// Writes a pool's bytes in use and reserved from here on.
    fn totals(&mut self, event: Event, pool: u32) {
        self.head(b"\"ph\":\"C\",\"name\":", event);
        let pool = &self.pools[pool as usize];
        let (live, reserved) = (pool.live, pool.reserved);
        self.buffer.extend_from_slice(&pool.total);
        self.field(b",\"args\":{\"allocated\":", live);
        self.field(b",\"reserved\":", reserved);
        self.buffer.extend_from_slice(b"}}");
    }

    /// Writes a pool's bytes in use by category from here on.
    fn parts(&mut self, event: Event, pool: u32) {
        self.head(b"\"ph\":\"C\",\"name\":", event);
        let pool = &self.pools[pool as usize];
        let out = &mut self.buffer;
        out.extend_from_slice(&pool.parts);
        out.extend_from_slice(b",\"args\":{");
        for (category, bytes) in Category::ALL.into_iter().zip(pool.categories) {
            if category.index() > 0 {
                out.push(b',');
            }
            out.push(b'"');
            out.extend_from_slice(category.name().as_bytes());
            out.extend_from_slice(b"\":");
            push_number(out, bytes);
        }
        out.extend_from_slice(b"}}");
    }

    /// Writes an execution of an op.
    fn slice(&mut self, event: Event, execution: &Execution) {
        let owner = self.recording.owner(execution.owner);
        let end = execution.left.map_or_else(|| self.recording.end_ns(), |left| self.recording.time_of(left));
        self.head(b"\"ph\":\"X\",\"dur\":", event);
        push_microseconds(&mut self.buffer, end.saturating_sub(event.at_ns));
        self.buffer.extend_from_slice(b",\"name\":");
        push_text(&mut self.buffer, &owner.name);
        self.buffer.extend_from_slice(b",\"cat\":\"");
        self.buffer.extend_from_slice(owner.phase.unwrap_or(Phase::Forward).name().as_bytes());
        self.buffer.extend_from_slice(b"\",\"args\":{\"scope\":");
        let recording = self.recording;
        let scope = self.scopes[execution.owner as usize].get_or_insert_with(|| {
            quoted(end_of(&recording.owner_path(recording.module_of(execution.owner))))
        });
        self.buffer.extend_from_slice(scope);
        self.field(b",\"peak_bytes\":", execution.high_water);
        self.field(b",\"net_bytes\":", execution.outliving);
        self.field(b",\"live_before\":", execution.live_before);
        self.field(b",\"live_peak\":", execution.live_peak);
        self.buffer.extend_from_slice(b"}}");
    }

    /// Writes a named moment.
    fn instant(&mut self, event: Event, name: &str) {
        self.head(b"\"ph\":\"i\",\"s\":\"p\",\"name\":", event);
        push_text(&mut self.buffer, name);
        self.buffer.push(b'}');
    }
}

/// Returns the end of a path. Paths of real runs are short enough to stay complete.
fn end_of(path: &str) -> &str {
    const MAX_BYTES: usize = 4096;
    &path[path.ceil_char_boundary(path.len().saturating_sub(MAX_BYTES))..]
}

fn quoted(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    push_text(&mut out, text);
    out
}

/// Appends nanoseconds as microseconds with three decimals.
fn push_microseconds(out: &mut Vec<u8>, ns: u64) {
    push_number(out, ns / 1000);
    let digit = |power: u64| b'0' + (ns / power % 10) as u8;
    out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}
