//! A trace in the form of the replay loop: one word per event, with reusable slots.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::bufread::GzDecoder;
use highwater_traces::{Trace, TraceEvent, TraceLimits};

/// One event: an allocation of this many bytes into a slot, or the free of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Bytes to allocate; 0 for a free.
    pub bytes: u64,
    /// The slot that receives or frees the block.
    pub slot: u32,
}

/// A trace for replay; its end frees everything.
#[derive(Debug)]
pub struct Program {
    pub name: String,
    pub events: Vec<Event>,
    /// The number of slots.
    pub slots: usize,
    /// The peak of live requested bytes.
    pub peak_live: u64,
}

impl Program {
    /// Reads a trace, plain or compressed.
    pub fn load(path: &Path) -> Result<Self> {
        let context = || format!("cannot read {}", path.display());
        let file = BufReader::new(File::open(path).with_context(context)?);
        let text: Box<dyn Read> = match path.extension() {
            Some(extension) if extension == "gz" => Box::new(GzDecoder::new(file)),
            _ => Box::new(file),
        };
        let trace = Trace::parse(BufReader::new(text), &TraceLimits::default()).with_context(context)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.trim_end_matches(".gz").trim_end_matches(".trace").to_owned();
        Self::of(name, &trace).with_context(context)
    }

    fn of(name: String, trace: &Trace) -> Result<Self> {
        let mut program = Self { name, events: Vec::new(), slots: 0, peak_live: 0 };
        let (mut slot_of, mut bytes_of) = (Vec::new(), Vec::new());
        let (mut unused, mut live) = (Vec::new(), 0);
        for event in trace.events() {
            match *event {
                TraceEvent::Alloc { bytes, .. } => {
                    let bytes = bytes.max(1);
                    let slot = unused.pop().unwrap_or_else(|| {
                        program.slots += 1;
                        program.slots as u32 - 1
                    });
                    slot_of.push(Some(slot));
                    bytes_of.push(bytes);
                    program.events.push(Event { bytes, slot });
                    live += bytes;
                    program.peak_live = program.peak_live.max(live);
                }
                // A pool cannot lend bytes of a live block.
                TraceEvent::Occupy { .. } => {}
                TraceEvent::Free { block } => {
                    if let Some(slot) = slot_of[block as usize].take() {
                        live -= bytes_of[block as usize];
                        program.events.push(Event { bytes: 0, slot });
                        unused.push(slot);
                    }
                }
                other => bail!("no peer can replay {other:?}"),
            }
        }
        for slot in slot_of.into_iter().flatten() {
            program.events.push(Event { bytes: 0, slot });
        }
        Ok(program)
    }
}
