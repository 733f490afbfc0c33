//! Heap profiles of other tools: blocks or sums of blocks with call stacks.
//!
//! | format | written by | contents |
//! |---|---|---|
//! | pprof | JAX, Go, `highwater export` | live bytes by stack at one moment |
//! | heap text | jemalloc, tcmalloc | live bytes by stack at one moment |
//! | heaptrack | heaptrack | every allocation and free |
//! | memray | `memray transform csv` | live bytes by stack at the peak |
//!
//! A profile becomes a [`Recording`](highwater_tracking::Recording) whose owners are [stacks](stacks). A profile of one moment has one
//! allocation per block and no frees.

pub(crate) mod fields;
pub(super) mod protobuf;
pub(super) mod stacks;

use super::{TraceError, TraceLimits, TracePlace, TraceProblem};
use bfc_core::printable;
use highwater_files::lean::HeldMemory;
use highwater_tracking::{Composer, Recording, RecordingLimits, RunFacts};

/// The reason why a profile cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileProblem {
    /// The bytes are not a protocol buffer.
    #[error("not a pprof profile: {what}")]
    Protobuf {
        /// The problem.
        what: &'static str,
    },
    /// The profile counts no bytes.
    #[error(
        "a profile of {found}, without bytes: save a heap profile, such as that of jax.profiler.save_device_memory_profile or Go's \
         /debug/pprof/heap", found = printable(found)
    )]
    NoBytes {
        /// The names of its values.
        found: String,
    },
    /// An entry refers to another one that does not exist.
    #[error("{what} {number} does not exist")]
    Missing {
        /// The kind of entry.
        what: &'static str,
        /// Its number.
        number: u64,
    },
    /// A sample has a negative value.
    #[error(
        "a negative number of bytes: this is a difference of two profiles; read both with `highwater diff`"
    )]
    Negative,
    /// The data of heaptrack was not interpreted.
    #[error("raw data of heaptrack: pipe the file through heaptrack_interpret")]
    RawHeaptrack,
    /// The version of heaptrack's format is unknown.
    #[error("version {found} of heaptrack's format; versions 1 to 3 are supported")]
    HeaptrackVersion {
        /// The version of the file.
        found: u64,
    },
    /// The JSON is not that of PyTorch's profiler.
    #[error("not the JSON of PyTorch's profiler: {message}", message = printable(message))]
    Json {
        /// The problem.
        message: String,
    },
    /// A profile of PyTorch contains no events of memory.
    #[error("no events of memory{}: call torch.profiler.profile(profile_memory=True)", device.map_or_else(String::new, |device| format!(" of device {device}")))]
    NoMemoryEvents {
        /// The requested device, if any.
        device: Option<u32>,
    },
    /// A timeline of PyTorch contains sums only.
    #[error(
        "sums over time, without blocks: call export_memory_timeline with a path that ends with .raw.json.gz"
    )]
    TimelineOfSums,
}

/// The most blocks of a profile whose samples are divided into blocks.
pub(super) const MOST_BLOCKS: u64 = 1 << 16;

/// The cost of an entry of a table besides its texts, including unused capacity.
pub(super) const ENTRY_BYTES: u64 = 96;

/// A profile that is being read.
pub(super) struct Reading {
    pub(super) composer: Composer,
}

impl Reading {
    /// Starts a recording that may use so many eighths of the memory limit.
    pub(super) fn new(limits: &TraceLimits, eighths: u64) -> Self {
        let memory = HeldMemory::new(limits.held_bytes).with_eighths(eighths);
        Self { composer: Composer::new(recording_limits(limits), memory) }
    }

    /// Charges for memory before it is allocated.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), TraceProblem> {
        Ok(self.composer.memory().charge(bytes)?)
    }

    pub(super) fn finish(self, facts: RunFacts) -> Result<(Recording, u64), TraceError> {
        self.composer.finish(facts).map_err(|problem| TracePlace::Recording.of(problem))
    }
}

/// The limits of a recording that is made of a file with these limits.
pub(super) fn recording_limits(limits: &TraceLimits) -> RecordingLimits {
    RecordingLimits {
        events: limits.events,
        input_bytes: limits.input_bytes,
        held_bytes: limits.held_bytes,
        ..RecordingLimits::default()
    }
}

/// The facts of a run of `program`, with the format of the file.
pub(super) fn facts(program: &str, format: &str) -> RunFacts {
    let mut facts = RunFacts::default().with("from", format);
    facts.program = program.to_owned();
    facts
}
