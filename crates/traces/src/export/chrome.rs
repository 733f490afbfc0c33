//! Traces in Chrome's format, for Perfetto. Ops are slices with their peaks; live and reserved bytes are counters.
//! Every block has an instant event named `[memory]`, as in PyTorch's profiler.
//!
//! Pools are devices, in the order of the recording. Times are microseconds since recording began.
//!
//! Sources: the document "Trace Event Format"; for `[memory]`, PyTorch's Kineto and readers of its traces.

use std::fmt;
use std::io::{self, Write};

use bfc_core::Category;
use highwater_files::boundary::ceil_boundary;
use highwater_tracking::{BlockLife, Event, EventKind, Execution, Phase, Recording};

use super::json_writer::push_text;
use super::segments::{Segments, events_by_pool};
use super::{ExportError, Output};

pub(super) fn write<W: Write>(recording: &Recording, out: &mut Output<W>) -> Result<(), ExportError> {
    let mut trace = ChromeTrace::new(recording)?;
    trace.begin()?;
    for (index, event) in recording.events().iter().enumerate() {
        trace.event(index, *event)?;
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
    scopes: Vec<Option<String>>,
    buffer: Vec<u8>,
}

/// A pool at the current moment.
struct Pool {
    /// The quoted names of its counters: bytes, and bytes by category.
    total: String,
    parts: String,
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

    fn begin(&mut self) -> io::Result<()> {
        let program = quoted(match self.recording.facts().program.as_str() {
            "" => "highwater",
            program => program,
        });
        let out = &mut self.buffer;
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        write!(out, "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":{program}}}}}")?;
        for thread in self.recording.threads() {
            let name = format!("\"name\":\"thread_name\",\"args\":{{\"name\":\"thread {thread}\"}}");
            write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{thread},{name}}}")?;
        }
        Ok(())
    }

    fn event(&mut self, index: usize, event: Event) -> io::Result<()> {
        match event.kind {
            EventKind::Alloc(number) => {
                let block = *self.recording.block(number);
                let pool = &mut self.pools[block.pool as usize];
                pool.live += block.granted;
                pool.categories[block.category.index()] += block.granted;
                self.memory(index, event, &block, "")?;
                self.totals(event, block.pool)?;
                self.parts(event, block.pool)
            }
            EventKind::Free(number) => {
                let block = *self.recording.block(number);
                let pool = &mut self.pools[block.pool as usize];
                pool.live -= block.granted;
                pool.categories[block.last_category.index()] -= block.granted;
                self.memory(index, event, &block, "-")?;
                self.totals(event, block.pool)?;
                self.parts(event, block.pool)
            }
            EventKind::Retag(number) => {
                let retag = self.recording.retags()[number as usize];
                if retag.category == retag.old_category {
                    return Ok(());
                }
                let block = self.recording.block(retag.block);
                let pool = &mut self.pools[block.pool as usize];
                pool.categories[retag.old_category.index()] -= block.granted;
                pool.categories[retag.category.index()] += block.granted;
                self.parts(event, block.pool)
            }
            EventKind::Region(number) => {
                let region = self.recording.regions()[number as usize];
                let pool = &mut self.pools[region.pool as usize];
                let Some(bytes) = pool.segments.moving(region.address).map(|segment| segment.bytes()) else {
                    return Ok(());
                };
                pool.reserved = if region.taken { pool.reserved + bytes } else { pool.reserved - bytes };
                self.totals(event, region.pool)
            }
            EventKind::Enter(number) => {
                let execution = self.recording.executions()[number as usize];
                self.slice(event, &execution)
            }
            EventKind::Failed(number) => {
                let failure = self.recording.failures()[number as usize];
                let name = format!("out of memory: {} bytes requested", failure.requested);
                self.instant(event, &name)
            }
            EventKind::Mark(number) => {
                let recording = self.recording;
                self.instant(event, &recording.marks()[number as usize])
            }
            // The slice of an op ends with its execution.
            _ => Ok(()),
        }
    }

    /// Begins an event, up to and with its time in microseconds.
    fn head(&mut self, event: Event) -> io::Result<()> {
        let thread = self.recording.threads()[event.thread as usize];
        write!(self.buffer, ",\n{{\"pid\":1,\"tid\":{thread},\"ts\":{},", Microseconds(event.at_ns))
    }

    /// Writes the instant event of an allocation or a free.
    fn memory(&mut self, index: usize, event: Event, block: &BlockLife, sign: &str) -> io::Result<()> {
        self.head(event)?;
        let Pool { live, reserved, cpu, .. } = self.pools[block.pool as usize];
        let (kind, device) = if cpu { (0, 0) } else { (1, block.pool) };
        let BlockLife { granted, address, .. } = block;
        write!(
            self.buffer,
            "\"ph\":\"i\",\"s\":\"t\",\"cat\":\"cpu_instant_event\",\"name\":\"[memory]\",\"args\":{{\
             \"Total Reserved\":{reserved},\"Total Allocated\":{live},\"Bytes\":{sign}{granted},\"Addr\":{address},\
             \"Device Id\":{device},\"Device Type\":{kind},\"Ev Idx\":{index}}}}}"
        )
    }

    /// Writes a pool's bytes in use and reserved from here on.
    fn totals(&mut self, event: Event, pool: u32) -> io::Result<()> {
        self.head(event)?;
        let Pool { total, live, reserved, .. } = &self.pools[pool as usize];
        write!(
            self.buffer,
            "\"ph\":\"C\",\"name\":{total},\"args\":{{\"allocated\":{live},\"reserved\":{reserved}}}}}"
        )
    }

    /// Writes a pool's bytes in use by category from here on.
    fn parts(&mut self, event: Event, pool: u32) -> io::Result<()> {
        self.head(event)?;
        let Pool { parts, categories, .. } = &self.pools[pool as usize];
        write!(self.buffer, "\"ph\":\"C\",\"name\":{parts},\"args\":{{")?;
        for (category, bytes) in Category::ALL.into_iter().zip(categories) {
            let comma = if category.index() > 0 { "," } else { "" };
            write!(self.buffer, "{comma}\"{}\":{bytes}", category.name())?;
        }
        write!(self.buffer, "}}}}")
    }

    /// Writes an execution of an op.
    fn slice(&mut self, event: Event, execution: &Execution) -> io::Result<()> {
        self.head(event)?;
        let recording = self.recording;
        let owner = recording.owner(execution.owner);
        let end = execution.left.map_or_else(|| recording.end_ns(), |left| recording.time_of(left));
        let duration = Microseconds(end.saturating_sub(event.at_ns));
        let (name, phase) = (quoted(&owner.name), owner.phase.unwrap_or(Phase::Forward));
        let scope = self.scopes[execution.owner as usize].get_or_insert_with(|| {
            quoted(end_of(&recording.owner_path(recording.module_of(execution.owner))))
        });
        let Execution { high_water, outliving, live_before, live_peak, .. } = execution;
        write!(
            self.buffer,
            "\"ph\":\"X\",\"dur\":{duration},\"name\":{name},\"cat\":\"{phase}\",\"args\":{{\"scope\":{scope},\
             \"peak_bytes\":{high_water},\"net_bytes\":{outliving},\"live_before\":{live_before},\
             \"live_peak\":{live_peak}}}}}"
        )
    }

    /// Writes a named moment.
    fn instant(&mut self, event: Event, name: &str) -> io::Result<()> {
        self.head(event)?;
        write!(self.buffer, "\"ph\":\"i\",\"s\":\"p\",\"name\":{}}}", quoted(name))
    }
}

/// Returns the end of a path. Paths of real runs are short enough to stay complete.
fn end_of(path: &str) -> &str {
    const MAX_BYTES: usize = 4096;
    &path[ceil_boundary(path, path.len().saturating_sub(MAX_BYTES))..]
}

/// Returns a text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = Vec::new();
    push_text(&mut quoted, text);
    String::from_utf8(quoted).unwrap_or_default()
}

/// Nanoseconds, printed as microseconds with three decimals.
struct Microseconds(u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
