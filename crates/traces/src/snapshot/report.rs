//! The report of a PyTorch snapshot: why reserved memory exceeds requested memory, and which settings would help.
//!
//! ```text
//! recording ─┬─ levels:       reserved, allocated, requested after each event
//!            ├─ units:        segments and pages at a moment ──┐
//!            ├─ causes:       parts of the difference       <──┘
//!            ├─ annotations:  peaks during `record_function`
//!            └─ settings:     replays through the policy `pytorch`
//! ```

mod annotations;
mod causes;
mod levels;
mod page;
mod settings;
mod text;
mod units;

use std::collections::HashMap;

use highwater_tracking::{EventKind, PoolRow, Recording, Report};
use serde::{Serialize, Serializer};

pub use annotations::AnnotationRow;
pub use causes::{FreeBytes, GapCauses, GapMoment, SegmentKeeper, SingleBlockSegments};
pub use levels::MemoryLevel;
pub use settings::{SettingsAdvice, SettingsRow};

use crate::trace::snapshot::{BlockState, Snapshot, StreamName};
use causes::Explainer;
use levels::Levels;
use units::Pieces;

/// The report of a PyTorch snapshot. Serializes as the [`Report`] of its recording with the additional key `pytorch`.
///
/// ```
/// use highwater_traces::{ReadOptions, Snapshot, SnapshotReport};
/// let json = br#"{"device_traces": [[
///     {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0},
///     {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "frames": []}]],
///   "segments": [{"address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
///     "blocks": [{"size": 1024, "requested_size": 1000, "state": "active_allocated"},
///                {"size": 2096128, "state": "inactive"}]}]}"#;
/// let snapshot = Snapshot::read(&json[..], &ReadOptions::default())?;
/// let end = SnapshotReport::of(&snapshot).pytorch.end;
/// assert_eq!((end.level.reserved_bytes, end.gap_bytes), (2_097_152, 2_096_152));
/// assert_eq!((end.causes.rounding_bytes, end.causes.kept_free.sum()), (24, 2_096_128));
/// # Ok::<(), highwater_traces::TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SnapshotReport {
    /// The figures that every recording has.
    #[serde(flatten)]
    pub report: Report,
    /// The figures of PyTorch's allocator.
    pub pytorch: AllocatorReport,
}

/// The figures of PyTorch's allocator in a snapshot. All sizes are bytes, and all times nanoseconds since the first
/// event.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AllocatorReport {
    /// The device.
    pub device: u32,
    /// The number of allocations, frees and changes of segments; 0 if the file has only the state at the end.
    pub events: u64,
    /// Whether the history was recorded.
    pub has_events: bool,
    /// Whether the beginning of the history is missing, because the buffer of PyTorch was full.
    pub lost_beginning: bool,
    /// The settings of the run in the syntax of `PYTORCH_CUDA_ALLOC_CONF`; `None` if the file has none.
    pub alloc_conf: Option<String>,
    /// The settings in the file, by PyTorch's names.
    #[serde(serialize_with = "as_map")]
    pub settings: Vec<(String, String)>,
    /// The moment with the most allocated bytes.
    pub peak_allocated: MemoryLevel,
    /// The moment with the most reserved bytes, and the causes of the difference.
    pub peak_reserved: GapMoment,
    /// The moment with the largest difference between reserved and requested bytes, and its causes.
    pub largest_gap: GapMoment,
    /// The end, and the causes of the difference.
    pub end: GapMoment,
    /// The memory over time: 64 parts of equal length, each with the moment of its largest difference.
    pub timeline: Vec<MemoryLevel>,
    /// The memory of each stream and private pool at the end; empty if there is only one.
    pub streams: Vec<StreamMemory>,
    /// The annotations of `record_function`, each before those inside of it.
    pub annotations: Vec<AnnotationRow>,
    /// The settings that were tried by replay, the recorded ones first. Empty without events.
    pub tried: Vec<SettingsRow>,
    /// Why the replay with the recorded settings may reserve other bytes than the recorded run. Empty if both are equal.
    pub deviations: Vec<String>,
    /// The settings that remove most of the difference, if they remove a real part.
    pub advice: Option<SettingsAdvice>,
}

/// The segments of a stream or private pool at the end. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamMemory {
    /// The CUDA stream; 0 for the default stream.
    pub cuda_stream: u64,
    /// The id of a private pool; `None` for the ordinary pools.
    pub private_pool: Option<(u64, u64)>,
    /// Bytes of its segments.
    pub reserved_bytes: u64,
    /// Bytes of live blocks in them.
    pub allocated_bytes: u64,
}

impl SnapshotReport {
    /// Makes the report of a snapshot. Replays it once for each setting of [`setting_variations`](crate::setting_variations).
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut report = Self::without_replays(snapshot);
        if snapshot.has_events() {
            settings::try_all(&mut report.pytorch, snapshot);
        }
        report
    }

    /// Makes the report without the table of settings, for comparisons of snapshots.
    #[must_use]
    pub fn without_replays(snapshot: &Snapshot) -> Self {
        let (recording, pending) = (snapshot.recording(), pending(snapshot));
        let mut report = Report::from_recording(recording);
        let levels = Levels::of(recording, &pending);
        let explained = explain(snapshot, &pending, &levels);
        let [largest_gap, peak_reserved, end] = explained;
        report.pools = vec![pool(snapshot, &levels, &end)];
        let pytorch = AllocatorReport {
            device: snapshot.device(),
            events: (recording.events().len() - recording.carried_events()) as u64,
            has_events: snapshot.has_events(),
            lost_beginning: snapshot.lost_beginning(),
            alloc_conf: snapshot.alloc_conf(),
            settings: snapshot.settings().to_vec(),
            peak_allocated: levels.peak_allocated,
            peak_reserved,
            largest_gap,
            end,
            timeline: levels.timeline,
            streams: streams(snapshot),
            annotations: annotations::annotation_rows(recording, snapshot.annotations()),
            ..AllocatorReport::default()
        };
        Self { report, pytorch }
    }
}

/// Serializes pairs as an object.
fn as_map<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// The blocks that waited for other streams after their free.
fn pending(snapshot: &Snapshot) -> HashMap<u32, u32> {
    snapshot.pending().iter().map(|pending| (pending.block, pending.event)).collect()
}

/// Explains the moments with the largest gap and with the most reserved bytes, and the end.
fn explain(snapshot: &Snapshot, pending: &HashMap<u32, u32>, levels: &Levels) -> [GapMoment; 3] {
    let recording = snapshot.recording();
    let private: Vec<bool> = snapshot.streams().iter().map(|stream| stream.pool != (0, 0)).collect();
    let explainer = Explainer { recording, pending, private: &private, rounding: snapshot.rounding() };
    let moments = [levels.largest_gap, levels.peak_reserved, levels.end];
    let mut explained: [Option<GapMoment>; 3] = [const { None }; 3];
    let mut pieces = Pieces::new(snapshot.segments(), is_expandable(snapshot));
    let last = moments.iter().map(|level| level.event).max().unwrap_or(0);
    for (index, event) in (0_u32..).zip(recording.events()) {
        if index > last {
            break;
        }
        match event.kind {
            EventKind::Region(region) => pieces.change(&recording.regions()[region as usize]),
            EventKind::Alloc(block) => pieces.note(recording.block(block)),
            _ => {}
        }
        for (number, level) in moments.iter().enumerate().filter(|(_, level)| level.event == index) {
            // Moments that coincide are explained once.
            let known = moments[..number].iter().position(|other| other.event == index);
            explained[number] = match known {
                Some(other) => explained[other].clone(),
                None => Some(explainer.explain(*level, &pieces, allocating(recording, index))),
            };
        }
    }
    explained.map(Option::unwrap_or_default)
}

/// Returns whether the run used expandable segments.
fn is_expandable(snapshot: &Snapshot) -> bool {
    let setting = snapshot.settings().iter().find(|(name, _)| name == "expandable_segments");
    setting.is_some_and(|(_, value)| value == "True")
}

/// The stream that allocates at an event: that of the next allocation, otherwise of the last one.
fn allocating(recording: &Recording, event: u32) -> u32 {
    let blocks = recording.blocks();
    let next = blocks.partition_point(|block| block.born < event);
    blocks.get(next).or(blocks.last()).map_or(0, |block| block.stream)
}

/// The figures of the pool, as other reports have them.
fn pool(snapshot: &Snapshot, levels: &Levels, end: &GapMoment) -> PoolRow {
    let (recording, mut row) = (snapshot.recording(), PoolRow::default());
    if let Some(pool) = recording.pools().first() {
        (row.name, row.memory) = (pool.name.clone(), pool.memory.clone());
    }
    (row.reserved, row.in_use, row.requested) =
        (end.level.reserved_bytes, end.level.allocated_bytes, end.level.requested_bytes);
    (row.peak_in_use, row.peak_reserved) =
        (levels.peak_allocated.allocated_bytes, levels.peak_reserved.reserved_bytes);
    let blocks = snapshot.segments().iter().flat_map(|segment| &segment.blocks);
    let free = blocks.filter(|block| block.state == BlockState::Free).map(|block| block.bytes);
    let (free, largest) =
        free.fold((0_u64, 0), |(sum, most), bytes| (sum.saturating_add(bytes), most.max(bytes)));
    row.largest_free_block = largest;
    row.fragmentation = if free == 0 { 0.0 } else { 1.0 - largest as f64 / free as f64 };
    row.allocations = recording.blocks().len() as u64;
    row.live_allocations = recording.blocks().iter().filter(|block| block.freed.is_none()).count() as u64;
    row
}

/// The memory of each stream at the end, if there are several.
fn streams(snapshot: &Snapshot) -> Vec<StreamMemory> {
    let names = snapshot.streams();
    if names.len() < 2 {
        return Vec::new();
    }
    let row = |name: &StreamName| StreamMemory {
        cuda_stream: name.cuda_stream,
        private_pool: Some(name.pool).filter(|pool| *pool != (0, 0)),
        ..StreamMemory::default()
    };
    let mut rows: Vec<StreamMemory> = names.iter().map(row).collect();
    for segment in snapshot.segments() {
        let Some(row) = rows.get_mut(segment.stream as usize) else { continue };
        row.reserved_bytes = row.reserved_bytes.saturating_add(segment.bytes);
        let live = segment.blocks.iter().filter(|block| block.state != BlockState::Free);
        row.allocated_bytes = live.fold(row.allocated_bytes, |sum, block| sum.saturating_add(block.bytes));
    }
    rows
}

#[cfg(test)]
mod tests;
