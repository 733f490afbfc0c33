use bfc_core::{KIB, MIB};
use highwater_tracking::TextOptions;

use super::*;
use crate::trace::ReadOptions;

/// A snapshot of JSON parts: events, segments, annotations.
fn snapshot(events: &[String], segments: &[String], annotations: &[String]) -> Snapshot {
    let json = format!(
        "{{\"device_traces\": [[{}]], \"segments\": [{}], \"external_annotations\": [{}],
          \"allocator_settings\": {{\"expandable_segments\": false, \"max_split_size\": -1}}}}",
        events.join(","),
        segments.join(","),
        annotations.join(",")
    );
    Snapshot::read(json.as_bytes(), &ReadOptions::default()).unwrap()
}

fn event(action: &str, address: u64, bytes: u64, more: &str) -> String {
    format!(
        "{{\"action\": \"{action}\", \"addr\": {address}, \"size\": {bytes}, \"stream\": 0, \"frames\": []{more}}}"
    )
}

/// A segment of blocks: their sizes, requested sizes, and states.
fn segment(address: u64, blocks: &[(u64, u64, &str)], more: &str) -> String {
    let total: u64 = blocks.iter().map(|block| block.0).sum();
    let blocks: Vec<String> = blocks
        .iter()
        .map(|(size, requested, state)| {
            format!("{{\"size\": {size}, \"requested_size\": {requested}, \"state\": \"{state}\"}}")
        })
        .collect();
    let kind = if total == 2 * MIB { "small" } else { "large" };
    let blocks = blocks.join(",");
    format!(
        "{{\"address\": {address}, \"total_size\": {total}, \"segment_type\": \"{kind}\", \"blocks\": [{blocks}]{more}}}"
    )
}

const LIVE: &str = "active_allocated";
const PENDING: &str = "active_pending_free";
const FREE: &str = "inactive";

const fn at(number: u64) -> u64 {
    number << 30
}

fn freed(address: u64, bytes: u64) -> [String; 2] {
    ["free_requested", "free_completed"].map(|action| event(action, address, bytes, ""))
}

/// One segment of every kind, and every cause except `roundup_power2_divisions`.
fn all_causes() -> Snapshot {
    const HALF: u64 = MIB / 2;
    let (stream, pool) = (", \"stream\": 7", ", \"pool_id\": [0, 1]");
    let other = |action, bytes| event(action, at(3), bytes, "").replace("\"stream\": 0", "\"stream\": 7");
    let mut events = vec![
        event("segment_alloc", at(1), 2 * MIB, ""),
        event("alloc", at(1), 1000, ""),
        event("segment_alloc", at(2), 20 * MIB, ""),
        event("alloc", at(2), 5 * MIB, ""),
        event("alloc", at(2) + 5 * MIB, 3 * MIB, ""),
    ];
    events.extend(freed(at(2), 5 * MIB));
    events.extend(
        ["segment_alloc", "alloc", "free_requested", "free_completed"].map(|action| other(action, 30 * MIB)),
    );
    events.extend([
        event("segment_alloc", at(4), 20 * MIB, pool),
        event("alloc", at(4), 2 * MIB, pool),
        event("segment_alloc", at(5), 14 * MIB, ""),
        event("alloc", at(5), 13 * MIB + HALF, ""),
        event("alloc", at(2), 4 * MIB, ""),
        event("free_requested", at(2), 4 * MIB, ""),
        event("alloc", at(1) + 1024, 700, ""),
    ]);
    let segments = [
        segment(at(1), &[(1024, 1000, LIVE), (1024, 700, LIVE), (2 * MIB - 2048, 0, FREE)], ""),
        segment(
            at(2),
            &[(4 * MIB, 4 * MIB, PENDING), (MIB, 0, FREE), (3 * MIB, 3 * MIB, LIVE), (12 * MIB, 0, FREE)],
            "",
        ),
        segment(at(3), &[(30 * MIB, 0, FREE)], stream),
        segment(at(4), &[(2 * MIB, 2 * MIB, LIVE), (18 * MIB, 0, FREE)], ", \"segment_pool_id\": [0, 1]"),
        segment(at(5), &[(14 * MIB, 13 * MIB + HALF, LIVE)], ""),
    ];
    snapshot(&events, &segments, &[])
}

#[test]
fn every_cause_has_its_bytes_and_they_sum_up() {
    let report = SnapshotReport::of(&all_causes());
    let end = &report.pytorch.end;
    let causes = GapCauses {
        rounding_bytes: 24 + 324,
        power2_rounding_bytes: 0,
        unsplit_bytes: MIB / 2,
        pending_bytes: 4 * MIB,
        kept_free: FreeBytes {
            same_stream_bytes: 2 * MIB - 2048 + 13 * MIB,
            other_streams_bytes: 0,
            private_pools_bytes: 18 * MIB,
        },
        idle: FreeBytes { same_stream_bytes: 0, other_streams_bytes: 30 * MIB, private_pools_bytes: 0 },
    };
    assert_eq!(end.causes, causes);
    assert_eq!(end.level.reserved_bytes, 86 * MIB);
    assert_eq!(end.level.requested_bytes, 1700 + 18 * MIB + MIB / 2);
    assert_eq!(end.gap_bytes, causes.sum());
    assert_eq!((end.segments, end.idle_segments, end.outside_bytes), (5, 1, 0));
    // The private pool's segment has one block.
    let single = end.single_block_segments;
    assert_eq!((single.segments, single.block_bytes, single.free_bytes), (1, 2 * MIB, 18 * MIB));
    assert_eq!(end.keepers[0].free_bytes, causes.kept_free.sum());
    assert_eq!((end.keepers[0].segments, end.keepers[0].single_block_segments), (3, 1));
    let reserved: Vec<u64> = report.pytorch.streams.iter().map(|stream| stream.reserved_bytes).collect();
    assert_eq!(reserved, [36 * MIB, 30 * MIB, 20 * MIB]);
    assert_eq!(report.pytorch.streams[2].private_pool, Some((0, 1)));
    assert_eq!(report.report.pools[0].peak_reserved, 86 * MIB);
    assert_eq!(report.report.pools[0].largest_free_block, 30 * MIB);
}

#[test]
fn the_replay_of_the_recorded_settings_has_the_peak_of_the_run() {
    let report = SnapshotReport::of(&all_causes()).pytorch;
    let recorded = &report.tried[0];
    assert!(recorded.is_recorded && recorded.settings.is_empty());
    assert_eq!(recorded.peak_reserved_bytes, Some(86 * MIB));
    assert_eq!((recorded.end_reserved_bytes, recorded.peak_gap_removed), (Some(86 * MIB), Some(0.0)));
    assert!(report.tried.iter().all(|row| row.failure.is_none()));
    assert_eq!(report.deviations, [] as [&str; 0]);
    assert!(report.tried.iter().any(|row| row.settings == "expandable_segments:True"));
}

#[test]
fn moments_are_those_of_blocks_not_of_segments() {
    let events = [
        event("segment_alloc", at(1), 20 * MIB, ""),
        event("alloc", at(1), 4 * MIB, ""),
        event("segment_alloc", at(2), 32 * MIB, ""),
        event("alloc", at(2), 32 * MIB, ""),
        event("free", at(1), 4 * MIB, ""),
        event("free", at(2), 32 * MIB, ""),
        event("segment_free", at(2), 32 * MIB, ""),
        event("alloc", at(1), 5 * MIB, ""),
    ];
    let segments = [segment(at(1), &[(5 * MIB, 5 * MIB, LIVE), (15 * MIB, 0, FREE)], "")];
    let report = SnapshotReport::of(&snapshot(&events, &segments, &[])).pytorch;
    let level = |moment: &GapMoment| (moment.level.event, moment.level.reserved_bytes, moment.gap_bytes);
    assert_eq!(level(&report.peak_reserved), (3, 52 * MIB, 16 * MIB));
    assert_eq!(level(&report.largest_gap), (5, 52 * MIB, 52 * MIB));
    assert_eq!(level(&report.end), (7, 20 * MIB, 15 * MIB));
    assert_eq!(report.largest_gap.causes.idle.same_stream_bytes, 52 * MIB);
    assert_eq!(report.peak_allocated.allocated_bytes, 36 * MIB);
    // `empty_cache` is repeated.
    assert_eq!(report.tried[0].end_reserved_bytes, Some(20 * MIB));
    // Without times, the timeline has a part for each event.
    assert_eq!(report.timeline.last().map(MemoryLevel::gap_bytes), Some(15 * MIB));
}

#[test]
fn pages_of_expandable_segments_are_idle_alone() {
    let events = [
        event("segment_map", at(1), 20 * MIB, ""),
        event("segment_map", at(1) + 20 * MIB, 20 * MIB, ""),
        event("alloc", at(1), 22 * MIB, ""),
        event("alloc", at(1) + 22 * MIB, 3 * MIB, ""),
        event("segment_map", at(1) + 40 * MIB, 40 * MIB, ""),
        event("alloc", at(1) + 25 * MIB, 55 * MIB, ""),
        event("free", at(1), 22 * MIB, ""),
        event("free", at(1) + 25 * MIB, 55 * MIB, ""),
    ];
    let blocks = [(22 * MIB, 0, FREE), (3 * MIB, 3 * MIB, LIVE), (55 * MIB, 0, FREE)];
    let segments = [segment(at(1), &blocks, ", \"is_expandable\": true")];
    let end = SnapshotReport::of(&snapshot(&events, &segments, &[])).pytorch.end;
    assert_eq!((end.segments, end.idle_segments), (4, 3));
    assert_eq!(end.causes.idle.same_stream_bytes, 60 * MIB);
    assert_eq!(end.causes.kept_free.same_stream_bytes, 17 * MIB);
    assert_eq!(end.gap_bytes, 77 * MIB);
}

#[test]
fn a_snapshot_without_events_explains_its_end() {
    let segments = [
        segment(at(1), &[(1024, 1000, LIVE), (2 * MIB - 1024, 0, FREE)], ""),
        segment(at(2), &[(20 * MIB, 0, FREE)], ""),
    ];
    let report = SnapshotReport::of(&snapshot(&[], &segments, &[]));
    let pytorch = &report.pytorch;
    assert!(!pytorch.has_events && pytorch.tried.is_empty() && pytorch.advice.is_none());
    assert_eq!((pytorch.end.gap_bytes, pytorch.end.causes.rounding_bytes), (22 * MIB - 1000, 24));
    assert_eq!(pytorch.end.causes.idle.sum(), 20 * MIB);
    let text = report.text(TextOptions::default());
    assert!(text.contains("_record_memory_history(max_entries=1_000_000)"), "{text}");
    assert!(text.contains("reserved: 22.0 MiB, of which 1.00 KiB are allocated"), "{text}");
}

#[test]
fn blocks_outside_of_all_segments_count_as_reserved() {
    let events = [event("alloc", at(1), 1000, ""), event("alloc", at(2), 2048, "")];
    let end = SnapshotReport::of(&snapshot(&events, &[], &[])).pytorch.end;
    assert_eq!(end.outside_bytes, end.level.allocated_bytes);
    assert_eq!(end.gap_bytes, end.causes.sum());
    assert_eq!(end.level.requested_bytes, 3048);
}

#[test]
fn annotations_nest_and_repeated_ones_share_a_row() {
    let timed = |time: u64| format!(", \"time_us\": {time}");
    let mark = |name: &str, stage: &str, time: u64| {
        format!("{{\"name\": \"{name}\", \"stage\": \"{stage}\", \"device\": 0, \"time_us\": {time}}}")
    };
    let mut events = vec![event("segment_alloc", at(1), 40 * MIB, &timed(1))];
    let mut annotations = Vec::new();
    for step in 0..2 {
        let (start, bytes) = (100 * (step + 1), (step + 4) * MIB);
        annotations.extend([
            mark(&format!("ProfilerStep#{step}"), "START", start),
            mark("forward", "START", start + 10),
            mark("forward", "END", start + 30),
            mark(&format!("ProfilerStep#{step}"), "END", start + 60),
            mark("nothing", "START", start + 70),
            mark("nothing", "END", start + 70),
        ]);
        events.extend([
            event("alloc", at(1) + 32 * MIB + 2 * step * MIB, 2 * MIB, &timed(start + 5)),
            event("alloc", at(1), bytes, &timed(start + 20)),
            event("free", at(1), bytes, &timed(start + 40)),
            event("alloc", at(1), MIB, &timed(start + 80)),
            event("free", at(1), MIB, &timed(start + 90)),
        ]);
    }
    let blocks =
        [(32 * MIB, 0, FREE), (2 * MIB, 2 * MIB, LIVE), (2 * MIB, 2 * MIB, LIVE), (4 * MIB, 0, FREE)];
    let report =
        SnapshotReport::without_replays(&snapshot(&events, &[segment(at(1), &blocks, "")], &annotations));
    let rows: Vec<_> = report
        .pytorch
        .annotations
        .iter()
        .map(|row| {
            (
                row.name.as_str(),
                row.depth,
                row.times,
                row.high_water_bytes / MIB,
                row.peak_allocated_bytes / MIB,
            )
        })
        .collect();
    assert_eq!(rows, [("ProfilerStep#*", 0, 2, 7, 9), ("forward", 1, 2, 5, 9), ("nothing", 0, 2, 0, 4)]);
    assert_eq!(report.pytorch.annotations[0].highest, "ProfilerStep#1");
    assert_eq!(report.pytorch.annotations[0].peak_reserved_bytes, 40 * MIB);
}

/// Random numbers below a bound, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A block of a simulated large segment: its address, its bytes, and its requested bytes if it is live.
type Part = (u64, u64, Option<u64>);

/// Allocates first fit in large segments, as PyTorch splits blocks.
#[derive(Default)]
struct Simulated {
    segments: Vec<Vec<Part>>,
    next: u64,
    events: Vec<String>,
    reserved: u64,
    requested: u64,
    largest_gap: u64,
}

impl Simulated {
    fn alloc(&mut self, requested: u64) {
        let rounded = requested.next_multiple_of(512);
        let is_fit = |part: &Part| part.2.is_none() && part.1 >= rounded;
        let found = self.segments.iter().position(|parts| parts.iter().any(is_fit));
        let segment = found.unwrap_or_else(|| {
            let bytes = if rounded < 10 * MIB { 20 * MIB } else { rounded.next_multiple_of(2 * MIB) };
            self.next += 1;
            self.events.push(event("segment_alloc", at(self.next), bytes, ""));
            self.segments.push(vec![(at(self.next), bytes, None)]);
            self.reserved += bytes;
            self.segments.len() - 1
        });
        let parts = &mut self.segments[segment];
        let part = parts.iter().position(is_fit).unwrap();
        let (address, bytes, _) = parts[part];
        let granted = if bytes - rounded > MIB { rounded } else { bytes };
        parts[part] = (address, granted, Some(requested));
        if granted < bytes {
            parts.insert(part + 1, (address + granted, bytes - granted, None));
        }
        self.events.push(event("alloc", address, requested, ""));
        self.requested += requested;
        self.note();
    }

    fn free(&mut self, choice: u64) {
        let live = |parts: &[Part]| parts.iter().filter(|part| part.2.is_some()).count() as u64;
        let count: u64 = self.segments.iter().map(|parts| live(parts)).sum();
        if count == 0 {
            return;
        }
        let mut left = choice % count;
        for parts in &mut self.segments {
            for index in 0..parts.len() {
                let (address, _, Some(requested)) = parts[index] else { continue };
                if left > 0 {
                    left -= 1;
                    continue;
                }
                parts[index].2 = None;
                self.requested -= requested;
                self.events.extend(freed(address, requested));
                // Joins free neighbors.
                for pair in [index, index.saturating_sub(1)] {
                    if pair + 1 < parts.len() && parts[pair].2.is_none() && parts[pair + 1].2.is_none() {
                        parts[pair].1 += parts[pair + 1].1;
                        parts.remove(pair + 1);
                    }
                }
                self.note();
                return;
            }
        }
    }

    /// Returns the idle segments, as `empty_cache`.
    fn release(&mut self) {
        let (events, reserved) = (&mut self.events, &mut self.reserved);
        self.segments.retain(|parts| {
            let is_idle = parts.len() == 1 && parts[0].2.is_none();
            if is_idle {
                events.push(event("segment_free", parts[0].0, parts[0].1, ""));
                *reserved -= parts[0].1;
            }
            !is_idle
        });
    }

    fn note(&mut self) {
        self.largest_gap = self.largest_gap.max(self.reserved - self.requested);
    }

    fn snapshot(&self) -> Snapshot {
        let part = |part: &Part| match part.2 {
            Some(requested) => (part.1, requested, LIVE),
            None => (part.1, 0, FREE),
        };
        let segments = self
            .segments
            .iter()
            .map(|parts| segment(parts[0].0, &parts.iter().map(part).collect::<Vec<_>>(), ""));
        snapshot(&self.events, &segments.collect::<Vec<_>>(), &[])
    }
}

#[test]
fn causes_sum_up_in_random_runs() {
    for seed in 0..40 {
        let (mut random, mut run) = (Random(seed), Simulated::default());
        for _ in 0..200 {
            match random.below(20) {
                0..11 => run.alloc(MIB + random.below(14 * MIB)),
                11..19 => run.free(random.below(1 << 20)),
                _ => run.release(),
            }
        }
        let report = SnapshotReport::without_replays(&run.snapshot()).pytorch;
        for moment in [&report.largest_gap, &report.peak_reserved, &report.end] {
            assert_eq!(moment.gap_bytes, moment.causes.sum(), "seed {seed}");
            assert_eq!(moment.outside_bytes, 0);
            let kept: u64 = moment.keepers.iter().map(|keeper| keeper.free_bytes).sum();
            assert_eq!(kept, moment.causes.kept_free.sum());
        }
        assert_eq!(report.largest_gap.gap_bytes, run.largest_gap, "seed {seed}");
        assert_eq!(report.end.level.reserved_bytes, run.reserved);
        assert_eq!(report.end.level.requested_bytes, run.requested);
        let free = run.segments.iter().flatten().filter(|part| part.2.is_none()).map(|part| part.1);
        assert_eq!(report.end.causes.kept_free.sum() + report.end.causes.idle.sum(), free.sum::<u64>());
        let rest =
            run.segments.iter().flatten().filter_map(|part| Some(part.1 - part.2?.next_multiple_of(512)));
        assert_eq!(report.end.causes.unsplit_bytes, rest.sum::<u64>());
    }
}

#[test]
fn power2_rounding_is_a_cause_of_its_own() {
    // 1200 KiB in steps of a quarter of a power of two are 1280 KiB.
    let json = format!(
        "{{\"device_traces\": [[{},{}]], \"segments\": [],
          \"allocator_settings\": {{\"roundup_power2_divisions\": {{\"1\": 4}}}}}}",
        event("segment_alloc", at(1), 20 * MIB, ""),
        event("alloc", at(1), 1200 * KIB - 100, "")
    );
    let snapshot = Snapshot::read(json.as_bytes(), &ReadOptions::default()).unwrap();
    let causes = SnapshotReport::without_replays(&snapshot).pytorch.end.causes;
    assert_eq!((causes.rounding_bytes, causes.power2_rounding_bytes), (100, 80 * KIB));
}

#[test]
fn text_fits_and_json_keeps_the_keys_of_reports() {
    let report = SnapshotReport::of(&all_causes());
    let text = report.text(TextOptions::default());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    assert_eq!(line("PyTorch's memory"), "PyTorch's memory on device 0: 15 events");
    assert!(line("idle segments, other streams").ends_with("30.0 MiB"), "{text}");
    assert!(line("peak reserved: 86.0 MiB, ").ends_with(" more than requested"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    for key in ["run", "peak", "ops", "places", "categories", "pools", "live"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    let end = &json["pytorch"]["end"];
    assert_eq!(
        (&end["gap_bytes"], &end["reserved_bytes"]),
        (&(67 * MIB + MIB / 2 - 1700).into(), &(86 * MIB).into())
    );
    assert_eq!(end["causes"]["idle"]["other_streams_bytes"], 30 * MIB);
    assert_eq!(json["pytorch"]["tried"][0]["is_recorded"], true);
}
