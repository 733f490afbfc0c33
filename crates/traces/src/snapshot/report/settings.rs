//! Settings of PyTorch's allocator, tried by replay of the recorded requests through the policy `pytorch`.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bfc_core::{AddressOnlyMemory, Bytes, PolicyAllocator, PoolConfig, Pytorch, PytorchOptions, printable};
use highwater_tracking::Recording;
use serde::Serialize;

use super::AllocatorReport;
use crate::replay::{ReservedBytes, replay_recording};
use crate::snapshot::variations::setting_variations;
use crate::trace::snapshot::Snapshot;

/// The limit of a pool without one: more than any device has, without overflow in sums.
const WITHOUT_LIMIT: Bytes = Bytes(1 << 56);

/// The smallest part of the difference, and of the reserved bytes, that a setting removes if it is advised.
const LEAST_OF_GAP: f64 = 0.1;
const LEAST_OF_RESERVED: f64 = 0.01;

/// Settings with the reserved bytes of their replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SettingsRow {
    /// The settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`; empty for the defaults.
    pub settings: String,
    /// Whether these are the settings of the run.
    pub is_recorded: bool,
    /// The most reserved bytes; `None` if the replay failed.
    pub peak_reserved_bytes: Option<u64>,
    /// Reserved bytes at the end.
    pub end_reserved_bytes: Option<u64>,
    /// The part of the difference between reserved and requested bytes at the peak of reserved bytes that the settings
    /// remove, compared with the replay of the recorded settings. Negative if they add to it.
    pub peak_gap_removed: Option<f64>,
    /// The same part at the end.
    pub end_gap_removed: Option<f64>,
    /// Why the replay failed.
    pub failure: Option<String>,
}

/// The settings that remove most of the difference.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SettingsAdvice {
    /// The settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`; empty for the defaults.
    pub settings: String,
    /// Whether the advice concerns the reserved bytes at the end, because no settings lower the peak.
    pub is_about_end: bool,
    /// Reserved bytes of the replay with the recorded settings: the most, or those at the end.
    pub before_bytes: u64,
    /// Reserved bytes of the replay with the advised settings.
    pub after_bytes: u64,
    /// The part of the difference between reserved and requested bytes that they remove, 0 to 1.
    pub gap_removed: f64,
}

/// Replays a snapshot with each variation of its settings.
pub(super) fn try_all(report: &mut AllocatorReport, snapshot: &Snapshot) {
    let mut tried = Vec::new();
    let mut rows = Vec::new();
    for settings in setting_variations(report.alloc_conf.as_deref(), false) {
        let is_recorded = rows.is_empty();
        match settings.parse::<PytorchOptions>() {
            // Texts that differ may mean the same.
            Ok(options) if tried.contains(&Some(options)) => {}
            Ok(options) => {
                tried.push(Some(options));
                rows.push(SettingsRow { settings, is_recorded, ..SettingsRow::default() });
            }
            Err(error) => {
                let failure = Some(printable(error).to_string());
                tried.push(None);
                rows.push(SettingsRow { settings, is_recorded, failure, ..SettingsRow::default() });
            }
        }
    }
    for (row, outcome) in rows.iter_mut().zip(replay_each(snapshot.recording(), &tried)) {
        match outcome {
            Some(Ok(reserved)) => {
                row.peak_reserved_bytes = Some(reserved.peak);
                row.end_reserved_bytes = Some(reserved.end);
            }
            Some(Err(error)) => row.failure = Some(error),
            None => {}
        }
    }
    let (peak, end) = (&report.peak_reserved.level, &report.end.level);
    let requested = [peak.requested_bytes, end.requested_bytes];
    let base = rows.first().map(|row| [row.peak_reserved_bytes, row.end_reserved_bytes]).unwrap_or_default();
    for row in &mut rows {
        row.peak_gap_removed = removed(base[0], row.peak_reserved_bytes, requested[0]);
        row.end_gap_removed = removed(base[1], row.end_reserved_bytes, requested[1]);
    }
    let differs = base != [Some(peak.reserved_bytes), Some(end.reserved_bytes)];
    report.deviations = if differs { deviations(report, snapshot) } else { Vec::new() };
    report.advice = advice(&rows);
    report.tried = rows;
}

/// The part of the difference to `requested` that another number of reserved bytes removes.
fn removed(before: Option<u64>, after: Option<u64>, requested: u64) -> Option<f64> {
    let (before, after) = (before?, after?);
    let gap = before.checked_sub(requested).filter(|&gap| gap > 0)?;
    Some((before as f64 - after as f64) / gap as f64)
}

type Outcome = Result<ReservedBytes, String>;

/// Replays a recording with each of the options, on several threads.
fn replay_each(recording: &Recording, tried: &[Option<PytorchOptions>]) -> Vec<Option<Outcome>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(options) = tried.get(number) else { return outcomes };
            outcomes.push((number, options.map(|options| replay(recording, options))));
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(tried.len());
    let mut all: Vec<Option<Outcome>> = tried.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        // A thread that panics is a fault of the policy, and its rows stay empty.
        others.into_iter().filter_map(|thread| thread.join().ok()).for_each(|more| done.extend(more));
        for (number, outcome) in done {
            all[number] = outcome;
        }
    });
    all
}

/// Replays a recording through a new pool.
fn replay(recording: &Recording, options: PytorchOptions) -> Outcome {
    let config = PoolConfig::with_options(WITHOUT_LIMIT, options);
    let pool = PolicyAllocator::<Pytorch>::new("pytorch", Arc::new(AddressOnlyMemory::new()), config);
    replay_recording(recording, &pool).map_err(|error| printable(error).to_string())
}

/// Possible reasons why the replay of the recorded settings differs from the run.
fn deviations(report: &AllocatorReport, snapshot: &Snapshot) -> Vec<String> {
    let recording = snapshot.recording();
    let has_returned = recording.regions().iter().any(|region| !region.taken);
    let is_private = snapshot.streams().iter().any(|stream| stream.pool != (0, 0));
    [
        (
            report.lost_beginning,
            "the beginning of the history is lost, and with it the order of earlier blocks",
        ),
        (report.alloc_conf.is_none(), "the file has no settings, so the replay uses the defaults"),
        (
            has_returned,
            "PyTorch returned segments before it ran out of memory, which the replay only approximates",
        ),
        (is_private, "private pools keep segments that the replay shares"),
        (report.peak_reserved.outside_bytes > 0, "some blocks are outside of all recorded segments"),
    ]
    .into_iter()
    .filter(|(applies, _)| *applies)
    .map(|(_, reason)| reason.to_owned())
    .collect()
}

/// The settings with the lowest peak, or else with the fewest bytes at the end, if they remove a real part.
fn advice(rows: &[SettingsRow]) -> Option<SettingsAdvice> {
    let best = |is_about_end: bool| {
        let figures = |row: &SettingsRow| {
            let figures = (row.peak_reserved_bytes, row.end_reserved_bytes, row.peak_gap_removed);
            let (peak, end, removed) = figures;
            if is_about_end { (end, peak, row.end_gap_removed) } else { (peak, end, removed) }
        };
        let (before, ..) = figures(rows.first()?);
        let row = rows.iter().filter(|row| row.failure.is_none()).min_by_key(|row| {
            let (first, second, _) = figures(row);
            (first.unwrap_or(u64::MAX), second.unwrap_or(u64::MAX))
        })?;
        let (after, _, removed) = figures(row);
        let (before_bytes, after_bytes, gap_removed) = (before?, after?, removed?);
        let of_reserved = (before_bytes as f64 - after_bytes as f64) / before_bytes.max(1) as f64;
        let is_real = !row.is_recorded && gap_removed >= LEAST_OF_GAP && of_reserved >= LEAST_OF_RESERVED;
        let settings = row.settings.clone();
        is_real.then_some(SettingsAdvice { settings, is_about_end, before_bytes, after_bytes, gap_removed })
    };
    best(false).or_else(|| best(true))
}
