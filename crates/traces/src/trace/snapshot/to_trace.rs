//! The trace of a snapshot: requested bytes, labels, streams and times.

use highwater_tracking::EventKind;

use super::Snapshot;
use crate::trace::builder::Builder;
use crate::trace::{Trace, TraceLimits, TraceProblem};

/// Converts a snapshot to a trace.
pub(super) fn trace_of(snapshot: &Snapshot, limits: TraceLimits) -> Result<Trace, TraceProblem> {
    let recording = snapshot.recording();
    let mut builder = Builder::new(limits);
    for event in recording.events() {
        builder.at(event.at_ns);
        match event.kind {
            EventKind::Alloc(number) => {
                let block = recording.block(number);
                let label = &recording.owner(block.owner).name;
                builder.alloc(number.into(), block.requested, 1, label)?;
                builder.set_stream(block.stream)?;
            }
            EventKind::Free(number) => builder.free(number.into())?,
            EventKind::Mark(mark) => builder.mark(&recording.marks()[mark as usize]),
            _ => {}
        }
    }
    for what in snapshot.skipped() {
        builder.skip(what.clone());
    }
    let mut trace = builder.finish();
    trace.has_phases = snapshot.is_exported;
    Ok(trace)
}
