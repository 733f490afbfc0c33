//! Recordings: every allocation, free and change of category of a tracker's ops, and the time of each op.
//!
//! While a recorder is on, each event becomes about six bytes ([`wire`]). Blocks of bytes stay in memory ([`ring`]) or
//! go to a file ([`hwm`]). Reading either yields a [`Recording`]: tables and events that are consistent with each other,
//! whatever the file contains. [`recount`] counts its events for a [`Report`](crate::report::Report); a [`Follower`] does
//! the same for a file that still grows. A [`Composer`] makes a recording of the events of another tool.

mod builder;
mod composer;
mod follow;
pub(crate) mod hwm;
mod parts;
mod path;
mod peak;
mod recorder;
mod recording;
mod recount;
mod regions;
mod report;
mod ring;
mod steps;
mod summary;
mod timeline;
mod trace_text;
mod wire;

use builder::MAX_REPORTS;
pub use builder::{BlockProblem, RecordingLimits};
pub use composer::{Composer, NewBlock, OwnerName, PlacedBlock};
pub use follow::Follower;
pub use hwm::{HwmError, HwmProblem, Written};
pub use peak::{LiveBlock, Peak};
pub(crate) use recorder::{Allocated, Recorder};
pub use recording::{
    BlockLife, Event, EventKind, Execution, Failure, Owner, PoolName, Recording, Region, Retag,
};
pub(crate) use steps::StepPart;
pub use summary::RunSummary;
pub use timeline::{Moment, Timeline};
pub use trace_text::write_trace;
pub use wire::EventProblem;

/// Decodes the events of one block, for the fuzz targets.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn recording_of_events(
    block: &[u8],
    limits: &RecordingLimits,
) -> Result<Recording, (usize, BlockProblem)> {
    let mut builder =
        builder::Builder::new(*limits, highwater_files::lean::HeldMemory::new(limits.held_bytes));
    builder.add(block)?;
    Ok(builder.finish())
}

/// The size of a block of events.
const BLOCK_BYTES: usize = 1 << 16;

#[cfg(test)]
mod tests;
