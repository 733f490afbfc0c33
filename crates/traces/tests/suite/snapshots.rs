//! PyTorch snapshots as data: each form of the file, and what the recording knows of the allocator.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Bytes, Category, PytorchAllocator, PytorchConfig, PytorchOptions};
use highwater_traces::{BlockState, ReadOptions, RunFile, Snapshot, StreamName, Trace, read_run, replay};
use highwater_tracking::{EventKind, Recording};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn snapshot(name: &str) -> Snapshot {
    Snapshot::read(&fs::read(data(name)).unwrap()[..], &ReadOptions::default()).unwrap()
}

/// Recorded by PyTorch.
const RECORDED: &[&str] = &[
    "pytorch-2.15/annotations.pickle",
    "pytorch-2.15/expandable.pickle.gz",
    "pytorch-2.15/mempool.pickle",
    "pytorch-2.15/oom.pickle",
    "pytorch-2.15/ring.pickle",
    "pytorch-2.15/state.pickle",
    "pytorch-2.15/streams.pickle",
    "pytorch-2.15/without-events.pickle",
];

/// Written by `make_snapshots.py`.
const GENERATED: &[&str] = &[
    "pytorch-early.pickle",
    "pytorch-expandable.pickle",
    "pytorch-latest.pickle",
    "pytorch-timed.pickle",
    "pytorch-without-events.pickle",
];

/// The live blocks and the regions of a recording.
#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, u64>,
}

impl State {
    /// Follows a recording. Blocks never overlap, and lie in regions.
    fn at_end(recording: &Recording) -> Self {
        let mut state = Self::default();
        for event in recording.events() {
            match event.kind {
                EventKind::Alloc(block) => {
                    let block = recording.block(block);
                    let end = block.address + block.granted;
                    let before = state.blocks.range(..end).next_back();
                    assert!(
                        before.is_none_or(|(&start, &bytes)| start + bytes <= block.address),
                        "{block:?}"
                    );
                    let (&region, &bytes) = state.regions.range(..=block.address).next_back().unwrap();
                    assert!(end <= region + bytes, "{block:?} in {region:#x} + {bytes}");
                    state.blocks.insert(block.address, block.granted);
                }
                EventKind::Free(block) => {
                    state.blocks.remove(&recording.block(block).address).unwrap();
                }
                EventKind::Region(region) => state.change(recording.regions()[region as usize]),
                _ => {}
            }
        }
        state
    }

    /// Takes or returns a region. Neighbors join, because blocks of expandable segments cross them.
    fn change(&mut self, region: highwater_tracking::Region) {
        let (start, end) = (region.address, region.address + region.bytes);
        if region.taken {
            assert!(
                self.regions.range(..end).next_back().is_none_or(|(&before, &bytes)| before + bytes <= start)
            );
            let before = self.regions.range(..start).next_back().map(|(&before, &bytes)| (before, bytes));
            match before.filter(|(before, bytes)| before + bytes == start) {
                Some((before, bytes)) => self.regions.insert(before, bytes + region.bytes),
                None => self.regions.insert(start, region.bytes),
            };
        } else {
            let (&found, &bytes) = self.regions.range(..=start).next_back().unwrap();
            assert!(end <= found + bytes, "{region:?}");
            self.regions.remove(&found);
            for (start, end) in [(found, start), (end, found + bytes)] {
                if start < end {
                    self.regions.insert(start, end - start);
                }
            }
        }
    }
}

#[test]
fn the_recording_ends_with_the_blocks_and_segments_of_the_file() {
    for name in RECORDED.iter().chain(GENERATED) {
        let snapshot = snapshot(name);
        // No block that is live at the end contradicts the rules by which the others are granted their bytes.
        let skipped: Vec<_> = snapshot.skipped().iter().filter(|what| what.contains("rules")).collect();
        assert_eq!(skipped, [""; 0], "{name}");
        let state = State::at_end(snapshot.recording());
        let blocks = snapshot.segments().iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.state != BlockState::Free);
        let live: Vec<_> = live.map(|block| (block.address, block.bytes)).collect();
        assert_eq!(state.blocks.into_iter().collect::<Vec<_>>(), live, "{name}");
        let reserved: u64 = snapshot.segments().iter().map(|segment| segment.bytes).sum();
        assert_eq!(state.regions.values().sum::<u64>(), reserved, "{name}");
    }
}

#[test]
fn blocks_of_each_stream_and_private_pool_are_known() {
    let names = |name: &str| snapshot(name).streams().to_vec();
    let stream = |cuda_stream, pool| StreamName { cuda_stream, pool };
    let default = StreamName::default();
    assert_eq!(names("pytorch-2.15/streams.pickle"), [default, stream(2_097_152, (0, 0))]);
    assert_eq!(names("pytorch-2.15/mempool.pickle"), [default, stream(0, (0, 1))]);
    assert_eq!(names("pytorch-latest.pickle"), [default, stream(0, (0, 1)), stream(7, (0, 0))]);
    // Events without pools have the pools of their segments.
    assert_eq!(names("pytorch-timed.pickle"), [default, stream(0, (0, 1))]);

    let file = fs::read(data("pytorch-2.15/streams.pickle")).unwrap();
    let (snapshot, trace) =
        (snapshot("pytorch-2.15/streams.pickle"), Trace::read(&file[..], &ReadOptions::default()));
    let of_blocks: Vec<u32> = snapshot.recording().blocks().iter().map(|block| block.stream).collect();
    assert_eq!(of_blocks, [0, 1, 1, 0, 0]);
    let trace = trace.unwrap();
    let events = trace.events().iter().enumerate();
    let allocs = events.filter(|(_, event)| matches!(event, highwater_traces::TraceEvent::Alloc { .. }));
    assert_eq!(allocs.map(|(index, _)| trace.stream(index)).collect::<Vec<_>>(), of_blocks);
    let segments: Vec<u32> = snapshot.segments().iter().map(|segment| segment.stream).collect();
    assert_eq!(segments, [0, 1, 1, 0]);
}

#[test]
fn annotations_have_their_events() {
    let snapshot = snapshot("pytorch-2.15/annotations.pickle");
    let names: Vec<&str> = snapshot.annotations().iter().map(|annotation| &*annotation.name).collect();
    assert_eq!(names[..4], ["ProfilerStep#0", "forward", "backward", "ProfilerStep#1"]);
    let recording = snapshot.recording();
    let allocated = |index: usize| -> Vec<u64> {
        let annotation = &snapshot.annotations()[index];
        let events = &recording.events()[annotation.begin as usize..annotation.end as usize];
        events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Alloc(block) => Some(recording.block(block).requested >> 20),
                _ => None,
            })
            .collect()
    };
    assert_eq!([allocated(0), allocated(1), allocated(2)], [vec![8, 3, 20, 1], vec![8, 3], vec![20]]);
    assert!(snapshot.annotations().iter().all(|annotation| annotation.time_us.1.is_some()));
}

#[test]
fn settings_are_those_of_pytorch() {
    let conf = |name: &str| snapshot(name).alloc_conf();
    assert_eq!(conf("pytorch-2.15/expandable.pickle.gz").unwrap(), "expandable_segments:True");
    assert_eq!(conf("pytorch-timed.pickle").unwrap(), "max_split_size_mb:200,roundup_power2_divisions:4");
    assert_eq!(conf("pytorch-latest.pickle").unwrap(), "");
    assert_eq!(conf("pytorch-early.pickle"), None);
    let settings = snapshot("pytorch-2.15/ring.pickle").settings().to_vec();
    assert!(settings.contains(&("garbage_collection_threshold".to_owned(), "0".to_owned())), "{settings:?}");
    let facts = snapshot("pytorch-timed.pickle").recording().facts().more.clone();
    assert!(facts.contains(&("allocator".to_owned(), "pytorch".to_owned())), "{facts:?}");
}

#[test]
fn a_lost_beginning_is_noticed() {
    for (name, lost) in [
        ("pytorch-2.15/ring.pickle", true),
        ("pytorch-2.15/streams.pickle", false),
        ("pytorch-timed.pickle", true),
        ("pytorch-early.pickle", false),
        ("pytorch-2.15/without-events.pickle", true),
    ] {
        assert_eq!(snapshot(name).lost_beginning(), lost, "{name}");
    }
    let ring = snapshot("pytorch-2.15/ring.pickle");
    let recording = ring.recording();
    assert_eq!(recording.carried_events(), 6, "two regions and four blocks");
    assert!(recording.events()[..6].iter().all(|event| event.at_ns == 0));
}

#[test]
fn snapshots_without_events_say_how_to_record() {
    for name in ["pytorch-2.15/without-events.pickle", "pytorch-without-events.pickle"] {
        let snapshot = snapshot(name);
        assert!(!snapshot.has_events() && snapshot.recording().peak().is_some(), "{name}");
        assert!(snapshot.skipped()[0].contains("torch.cuda.memory._record_memory_history()"), "{name}");
    }
}

#[test]
fn a_request_without_memory_is_a_failure_and_a_mark() {
    let snapshot = snapshot("pytorch-2.15/oom.pickle");
    let recording = snapshot.recording();
    assert_eq!(recording.failures()[0].requested, 1 << 50);
    assert_eq!(recording.marks(), ["out of memory, 1125899906842624 bytes requested"]);
}

#[test]
fn frees_that_wait_for_a_stream_are_known() {
    let latest = snapshot("pytorch-latest.pickle");
    assert_eq!(latest.device(), 1);
    let pending = latest.pending();
    assert!(!pending.is_empty());
    for free in pending {
        let block = latest.recording().block(free.block);
        assert!(free.event > block.born && block.freed.is_none_or(|freed| free.event < freed), "{free:?}");
    }
    let states = latest.segments().iter().flat_map(|segment| &segment.blocks).map(|block| block.state);
    assert_eq!(states.filter(|&state| state == BlockState::Pending).count(), 1);
}

#[test]
fn truncated_snapshots_say_what_to_do() {
    let file = fs::read(data("pytorch-2.15/streams.pickle")).unwrap();
    let refusal = |file: &[u8]| Snapshot::read(file, &ReadOptions::default()).unwrap_err().to_string();
    let message = refusal(&file[..1000]);
    assert!(message.starts_with("byte ") && message.contains("the file ends too early"), "{message}");
    assert!(message.contains("torch.cuda.memory._dump_snapshot()"), "{message}");
    let message = refusal(br#"{"device_traces": [[{"action": "alloc", "#);
    assert!(message.starts_with("byte 40: the file ends too early"), "{message}");
    assert!(refusal(b"").starts_with("byte 0: the file is empty"));
    assert_eq!(refusal(b"a 0 10 x\n"), "byte 0: an allocation trace, where a PyTorch snapshot is expected");
}

#[test]
fn a_run_is_a_snapshot_or_a_recording() {
    let run = |name: &str| read_run(&fs::read(data(name)).unwrap()[..], &ReadOptions::default()).unwrap();
    assert!(matches!(run("pytorch-early.pickle"), RunFile::Snapshot(_)));
    assert!(matches!(run("rmm.csv"), RunFile::Recording(_)));
}

#[test]
fn categories_and_sizes_in_the_file_are_kept() {
    let file =
        br#"{"device_traces":[[{"action":"alloc","addr":512,"size":9,"category":"optimizer_state"}]]}"#;
    let snapshot = Snapshot::read(&file[..], &ReadOptions::default()).unwrap();
    assert_eq!(snapshot.recording().block(0).category, Category::OptimizerState);
    assert_eq!(snapshot.recording().block(0).granted, 512);
    // Addresses of PyTorch's allocator are multiples of 512.
    let file = br#"{"device_traces":[[{"action":"alloc","addr":64,"size":9}]]}"#;
    let snapshot = Snapshot::read(&file[..], &ReadOptions::default()).unwrap();
    assert_eq!(snapshot.recording().block(0).granted, 9);
}

/// Returns the most bytes of regions at a time.
fn peak_reserved(recording: &Recording) -> u64 {
    let (mut reserved, mut peak) = (0, 0);
    for event in recording.events() {
        let EventKind::Region(region) = event.kind else { continue };
        let region = recording.regions()[region as usize];
        reserved = if region.taken { reserved + region.bytes } else { reserved - region.bytes };
        peak = peak.max(reserved);
    }
    peak
}

#[test]
fn a_replay_with_the_recorded_settings_reserves_what_pytorch_reserved() {
    for name in ["annotations.pickle", "expandable.pickle.gz", "mempool.pickle", "streams.pickle"] {
        let snapshot = snapshot(&format!("pytorch-2.15/{name}"));
        let options: PytorchOptions = snapshot.alloc_conf().unwrap().parse().unwrap();
        let config = PytorchConfig::pytorch(Bytes::gib(80), options);
        let pool = PytorchAllocator::new("what-if", Arc::new(AddressOnlyMemory::new()), config);
        let trace = snapshot.to_trace(&ReadOptions::default()).unwrap();
        let replayed = replay(&trace, &pool).unwrap();
        assert_eq!(replayed.peak_reserved, peak_reserved(snapshot.recording()), "{name}");
        let granted = snapshot.recording().peak().unwrap().bytes;
        assert_eq!(replayed.peak_in_use, granted, "{name}");
    }
}
