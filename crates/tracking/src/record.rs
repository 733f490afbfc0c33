//! Recordings: every allocation, free and change of category that passes through a tracker's ops, and when each op ran.
//!
//! While a recorder is on, events become a few bytes each ([`wire`]), in blocks that stay in memory ([`ring`]) or go to
//! a file ([`hwm`]). What is read from either is a [`Recording`]: tables and events that hold together, from which
//! reports, timelines and exports are made.
//!
//! What it costs, by `cargo bench -p highwater-tracking --bench recording` on 21 November 2026, on two shared and busy cores of an
//! Intel Xeon at 2.8 GHz, fastest of 500 short rounds: 24 ns an event in memory or into a file, 40 ns once a ring is full and its
//! oldest events are read again, nothing that can be measured while off. Events
//! take 6 bytes each: 904,240 bytes for the 145,968 events of `train_digits --record run.hwm --threads 1`.

mod builder;
mod follow;
pub(crate) mod hwm;
mod parts;
mod peak;
mod recorder;
mod recording;
mod regions;
mod report;
mod ring;
mod summary;
mod tally;
mod timeline;
mod varint;
mod wire;

pub use builder::{BlockProblem, RecordingLimits};
use builder::{MAX_DEPTH, MAX_REPORTS};
pub use follow::Follower;
pub use hwm::{HwmError, HwmProblem, Written};
pub use peak::{LiveBlock, Peak};
pub(crate) use recorder::Recorder;
pub use recording::{
    BlockLife, Event, EventKind, Execution, Failure, Owner, PoolName, Recording, Region, Retag,
};
pub use summary::RunSummary;
pub use timeline::{Moment, Timeline};
pub use wire::EventProblem;

/// A recording of the events of one block alone: for the fuzz targets.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn recording_of_events(
    block: &[u8],
    limits: &RecordingLimits,
) -> Result<Recording, (usize, BlockProblem)> {
    let mut builder = builder::Builder::new(*limits);
    builder.add(block)?;
    Ok(builder.finish())
}

/// How many bytes of events make a block.
const BLOCK_BYTES: usize = 1 << 16;

#[cfg(test)]
mod tests;
