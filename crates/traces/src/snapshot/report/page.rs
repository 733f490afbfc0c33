//! The figures of a report on the HTML page of its recording.

use highwater_tracking::{AllocatorFacts, GapRow, KeeperRow, ReplayedSettings};

use super::{GapMoment, SegmentKeeper, SettingsRow, SnapshotReport};
use crate::trace::snapshot::{Snapshot, StreamName};

/// How to record a history.
const HOW_TO_RECORD: &str = "The file has no events, only the state at one moment. To see peaks, categories and the \
    effect of settings, call torch.cuda.memory._record_memory_history(max_entries=1_000_000) before some training steps, \
    and torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") after them.";

/// The most rows of the table of keepers.
const MAX_KEEPERS: usize = 100;

impl SnapshotReport {
    /// Returns the facts for the page of the snapshot's recording: the causes of the difference between reserved and
    /// requested bytes, and the settings that were tried. See
    /// [`write_page_with_allocator`](highwater_tracking::write_page_with_allocator).
    #[must_use]
    pub fn allocator_facts(&self, snapshot: &Snapshot) -> AllocatorFacts {
        let report = &self.pytorch;
        let mut facts = AllocatorFacts::new("PyTorch");
        if let Some(conf) = report.alloc_conf.as_ref().filter(|conf| !conf.is_empty()) {
            facts.settings.push(("PYTORCH_CUDA_ALLOC_CONF".to_owned(), conf.clone()));
        }
        facts.streams = snapshot.streams().iter().map(stream_name).collect();
        let moments = [
            ("largest difference", &report.largest_gap),
            ("peak of reserved", &report.peak_reserved),
            ("end", &report.end),
        ];
        for (number, (name, moment)) in moments.into_iter().enumerate() {
            let is_known = |(_, known): &(&str, &GapMoment)| known.level == moment.level;
            if !moments.iter().take(number).any(is_known) {
                facts.gaps.push(gap_row(name, moment));
            }
        }
        facts.keepers = report.largest_gap.keepers.iter().take(MAX_KEEPERS).map(keeper_row).collect();
        let advised = report.advice.as_ref().map(|advice| &advice.settings);
        facts.options =
            report.tried.iter().map(|row| replayed(row, advised == Some(&row.settings))).collect();
        facts.notes.push(if report.has_events { report.conclusion() } else { HOW_TO_RECORD.to_owned() });
        facts
    }
}

fn gap_row(name: &str, moment: &GapMoment) -> GapRow {
    let level = &moment.level;
    let row = GapRow::new(name, level.at_ns, level.reserved_bytes, level.requested_bytes);
    moment.causes.rows().into_iter().fold(row, |row, (cause, bytes)| row.with_cause(cause, bytes))
}

fn keeper_row(keeper: &SegmentKeeper) -> KeeperRow {
    let mut row = KeeperRow::new(&keeper.owner, &keeper.category);
    (row.regions, row.block_bytes, row.free_bytes) = (keeper.segments, keeper.block_bytes, keeper.free_bytes);
    row
}

fn replayed(tried: &SettingsRow, is_best: bool) -> ReplayedSettings {
    let mut row = ReplayedSettings::new(&tried.settings, tried.peak_reserved_bytes);
    row.end_reserved = tried.end_reserved_bytes;
    (row.peak_gap_removed, row.end_gap_removed) = (tried.peak_gap_removed, tried.end_gap_removed);
    row.note = tried.failure.clone().unwrap_or_default();
    (row.is_recorded, row.is_best) = (tried.is_recorded, is_best);
    row
}

fn stream_name(stream: &StreamName) -> String {
    let name = match stream.cuda_stream {
        0 => "default stream".to_owned(),
        number => format!("stream {number}"),
    };
    match stream.pool {
        (0, 0) => name,
        (first, second) => format!("private pool ({first}, {second}), {name}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::{ReadOptions, Snapshot, SnapshotReport};

    #[test]
    fn facts_are_the_figures_of_the_report() {
        let json = br#"{"device_traces": [[
            {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0},
            {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "frames": []},
            {"action": "segment_alloc", "addr": 4194304, "size": 2097152, "stream": 7},
            {"action": "alloc", "addr": 4194304, "size": 512, "stream": 7, "frames": []},
            {"action": "free_completed", "addr": 4194304, "size": 512, "stream": 7, "frames": []}]],
          "segments": [
            {"address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
             "blocks": [{"size": 1024, "requested_size": 1000, "state": "active_allocated"},
                        {"size": 2096128, "state": "inactive"}]},
            {"address": 4194304, "total_size": 2097152, "stream": 7, "segment_type": "small",
             "blocks": [{"size": 2097152, "state": "inactive"}]}]}"#;
        let snapshot = Snapshot::read(&json[..], &ReadOptions::default()).unwrap();
        let report = SnapshotReport::of(&snapshot);
        let facts = report.allocator_facts(&snapshot);
        assert_eq!(facts.streams, ["default stream", "stream 7"]);
        assert!(facts.gaps.iter().any(|gap| gap.moment == "largest difference"));
        for gap in &facts.gaps {
            let causes: u64 = gap.causes.iter().map(|cause| cause.bytes).sum();
            assert_eq!(causes, gap.reserved - gap.requested, "{gap:?}");
        }
        let tried: Vec<_> =
            report.pytorch.tried.iter().map(|row| (&row.settings, row.peak_reserved_bytes)).collect();
        let shown: Vec<_> = facts.options.iter().map(|row| (&row.settings, row.peak_reserved)).collect();
        assert_eq!(shown, tried);
        assert!(!shown.is_empty() && facts.options[0].is_recorded);
        assert_eq!(facts.notes, [report.pytorch.conclusion()]);
    }
}
