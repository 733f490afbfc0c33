//! Reads recordings, traces and packings within limits.

use std::path::Path;
use std::sync::Arc;

use bfc_core::{Bytes, Packing};
use clap::Args;
use highwater_traces::{
    ReadOptions, RunFile, Trace, TraceError, TraceLimits, TraceProblem, read_recording, read_run,
};
use highwater_tracking::{BlockProblem, Cut, HwmProblem, PackingLimits, Recording, parse_packing};

use crate::error::CommandError;
use crate::files::input;

/// The part of a file to read, and limits that protect against malformed files.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files")]
pub(crate) struct ReadArguments {
    /// The device to read from a PyTorch snapshot or profile of several
    #[arg(long, value_name = "N")]
    device: Option<u32>,

    /// Refuse files of more events than this
    #[arg(long, value_name = "N", default_value_t = TraceLimits::default().events)]
    max_events: u32,

    /// Refuse files of more bytes than this, decompressed
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    max_input: Bytes,

    /// Refuse files that take more memory than this
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_memory: Bytes,

    /// Refuse files that grow by more than this factor when decompressed
    #[arg(long, value_name = "N", default_value_t = TraceLimits::default().ratio)]
    max_ratio: u32,
}

/// An error with the option that raises an exceeded limit.
fn with_advice(error: TraceError) -> String {
    let option = match error.problem {
        TraceProblem::TooMuchHeld { .. }
        | TraceProblem::Recording(HwmProblem::Events(BlockProblem::TooMuchHeld { .. })) => "--max-memory",
        TraceProblem::TooMuchInput { .. } | TraceProblem::Recording(HwmProblem::TooMuchInput { .. }) => {
            "--max-input"
        }
        TraceProblem::TooMany { what: "events", .. }
        | TraceProblem::Recording(HwmProblem::Events(BlockProblem::TooMany { what: "events", .. })) => {
            "--max-events"
        }
        TraceProblem::TooCompressed { .. } => "--max-ratio",
        _ => return error.to_string(),
    };
    format!("{error}; {option} allows more")
}

impl ReadArguments {
    fn options(&self) -> ReadOptions {
        let limits = TraceLimits {
            events: self.max_events,
            input_bytes: self.max_input.get(),
            held_bytes: self.max_memory.get(),
            ratio: self.max_ratio,
            ..TraceLimits::default()
        };
        ReadOptions { limits, device: self.device }
    }

    /// Reads a recording, or makes one of a trace or profile of another tool.
    pub(crate) fn recording(&self, path: &Path) -> Result<Recording, CommandError> {
        input::read(path, |source| read_recording(source, &self.options()).map_err(with_advice))
    }

    /// Reads a recording as [`recording`](Self::recording), and keeps PyTorch snapshots as snapshots.
    pub(crate) fn run(&self, path: &Path) -> Result<RunFile, CommandError> {
        input::read(path, |source| read_run(source, &self.options()).map_err(with_advice))
    }

    /// Reads the trace in a file of any format.
    pub(crate) fn trace(&self, path: &Path) -> Result<Trace, CommandError> {
        input::read(path, |source| Trace::read(source, &self.options()).map_err(with_advice))
    }
}

/// Reads the packing in a file, if there is one.
pub(crate) fn packing(path: Option<&Path>) -> Result<Option<Arc<Packing>>, CommandError> {
    let read = |path| input::read(path, |source| parse_packing(source, &PackingLimits::default()));
    Ok(path.map(read).transpose()?.map(Arc::new))
}

/// Describes where a damaged file ends: the results cover only its beginning.
pub(crate) fn cut_remark(cut: &Cut) -> String {
    format!("read up to byte {}: {}", cut.offset, cut.reason)
}

/// Describes the contents that a trace does not cover.
pub(crate) fn trace_remarks(trace: &Trace) -> impl Iterator<Item = String> {
    let skipped = trace.skipped().iter().map(|what| format!("skipped {what}"));
    skipped.chain(trace.cut().map(cut_remark))
}
