use std::io::{self, Read, Write};
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request, Tag,
};
use flate2::read::GzDecoder;
use highwater_tracking::{Phase, Recording, Tracker, module, phase};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{ExportError, ExportFormat, export};
use crate::trace::{ReadOptions, Trace, TraceEvent};

fn pool(name: &str) -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new(name, Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(64))))
}

fn bytes(recording: &Recording, format: ExportFormat) -> Vec<u8> {
    let mut out = Vec::new();
    let count = export(recording, format, &mut out).unwrap();
    assert_eq!(count, out.len() as u64);
    out
}

fn text(recording: &Recording, format: ExportFormat) -> String {
    String::from_utf8(bytes(recording, format)).unwrap()
}

fn json(recording: &Recording, format: ExportFormat) -> Value {
    serde_json::from_slice(&bytes(recording, format)).unwrap()
}

/// Two ops: one leaves a block that is then kept for backward, one takes scratch above it.
fn two_ops() -> Recording {
    let (tracker, pool) = (Tracker::new(), pool("cpu:0"));
    tracker.start_log(Bytes::mib(1));
    let kept = {
        let _scope = module("export-net.fc1");
        let run = tracker.begin("matmul");
        let request = Request::new(1000).with_category(Category::Output);
        let kept = Allocation::new(&run.track(&pool), &request).unwrap();
        let tag = Tag { owner: run.owner(), category: Category::Activation };
        kept.allocator().retag(&kept.block(), tag).unwrap();
        kept
    };
    {
        let _backward = phase(Phase::Backward);
        let run = tracker.begin("relu");
        drop(Allocation::new(&run.track(&pool), &Request::new(300)).unwrap());
    }
    let recording = tracker.take_log();
    drop(kept);
    recording
}

#[test]
fn a_format_is_found_by_its_name_and_no_other() {
    for format in ExportFormat::ALL {
        assert_eq!(ExportFormat::named(format.name()), Some(format));
    }
    assert_eq!(ExportFormat::named("png"), None);
}

#[test]
fn a_snapshot_has_a_map_and_the_events_that_lead_to_it() {
    let snapshot = json(&two_ops(), ExportFormat::MemoryVizJson);
    let segments = snapshot["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 1);
    let start = segments[0]["address"].as_u64().unwrap();
    let total = segments[0]["total_size"].as_u64().unwrap();
    let blocks = segments[0]["blocks"].as_array().unwrap();
    let block = |block: &Value| {
        let number = |key: &str| block[key].as_u64().unwrap();
        (number("address") - start, number("size"), number("requested_size"), block["state"].clone())
    };
    assert_eq!(
        blocks.iter().map(block).collect::<Vec<_>>(),
        [(0, 1024, 1000, json!("active_allocated")), (1024, total - 1024, 0, json!("inactive"))]
    );

    let events = snapshot["device_traces"][0].as_array().unwrap();
    let told = |event: &Value| {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let address = event["addr"].as_u64().unwrap() - start;
        (text("action"), address, event["size"].as_u64().unwrap(), text("category"), text("user_metadata"))
    };
    let event = |action: &str, address, size, category: &str, metadata: &str| {
        (action.to_owned(), address, size, category.to_owned(), metadata.to_owned())
    };
    assert_eq!(
        events.iter().map(told).collect::<Vec<_>>(),
        [
            event("segment_alloc", 0, total, "unknown", ""),
            event("alloc", 0, 1000, "activation", "allocated as output"),
            event("alloc", 1024, 300, "temporary", ""),
            event("free_requested", 1024, 300, "temporary", ""),
            event("free_completed", 1024, 300, "temporary", ""),
        ]
    );
    let frame = |kind: &str, name: &str| json!({"filename": kind, "line": 0, "name": name});
    assert_eq!(
        events[1]["frames"],
        json!([
            frame("op", "matmul"),
            frame("module", "fc1"),
            frame("module", "export-net"),
            frame("program", "program")
        ])
    );
}

#[test]
fn a_chrome_trace_has_ops_with_their_peaks_and_every_block() {
    let trace = json(&two_ops(), ExportFormat::Chrome);
    let events = trace["traceEvents"].as_array().unwrap();
    let all = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
    let ops: Vec<_> =
        all("X").iter().map(|op| (op["name"].clone(), op["cat"].clone(), op["args"].clone())).collect();
    assert_eq!(
        ops,
        [
            (
                json!("matmul"),
                json!("forward"),
                json!({"scope": "export-net.fc1", "peak_bytes": 1024, "net_bytes": 1024, "live_before": 0, "live_peak": 1024})
            ),
            (
                json!("relu:backward"),
                json!("backward"),
                json!({"scope": "", "peak_bytes": 512, "net_bytes": 0, "live_before": 1024, "live_peak": 1536})
            ),
        ]
    );
    let instants: Vec<_> = all("i").iter().map(|event| event["args"]["Bytes"].as_i64().unwrap()).collect();
    assert_eq!(instants, [1024, 512, -512]);
    let parts: Vec<_> = all("C")
        .iter()
        .filter(|event| event["name"] == "cpu:0 by category")
        .map(|event| {
            [&event["args"]["output"], &event["args"]["activation"], &event["args"]["temporary"]]
                .map(|n| n.as_u64().unwrap())
        })
        .collect();
    assert_eq!(parts, [[1024, 0, 0], [0, 1024, 0], [0, 1024, 512], [0, 1024, 0]]);
}

#[test]
fn folded_stacks_and_profiles_hold_what_was_live_at_the_peak() {
    let recording = two_ops();
    assert_eq!(
        text(&recording, ExportFormat::Folded),
        "export-net;fc1;matmul;[activation] 1024\nrelu:backward;[temporary] 512\n"
    );
    let mut profile = Vec::new();
    GzDecoder::new(bytes(&recording, ExportFormat::Pprof).as_slice()).read_to_end(&mut profile).unwrap();
    // The types of the values: blocks in count, space in bytes.
    assert_eq!(profile[..12], *b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04");
    for name in ["matmul", "export-net.fc1", "relu:backward", "activation", "cpu:0"] {
        assert!(profile.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }
}

#[test]
fn a_picture_shows_each_category_that_was_live() {
    let picture = text(&two_ops(), ExportFormat::Svg);
    assert!(picture.contains("Live bytes: peak 1.50 KiB"));
    for (name, shown) in [("activation", true), ("temporary", true), ("parameter", false)] {
        assert_eq!(picture.contains(&format!("<title>{name}</title>")), shown, "{name}");
    }
}

#[test]
fn a_recording_without_events_has_an_export_in_every_format() {
    let empty = Recording::default();
    assert_eq!(json(&empty, ExportFormat::MemoryVizJson)["segments"], json!([]));
    assert_eq!(json(&empty, ExportFormat::Chrome)["traceEvents"].as_array().unwrap().len(), 1);
    assert_eq!(text(&empty, ExportFormat::Folded), "");
    assert!(text(&empty, ExportFormat::Svg).ends_with("</svg>\n"));
    assert!(
        !bytes(&empty, ExportFormat::Pprof).is_empty() && !bytes(&empty, ExportFormat::MemoryViz).is_empty()
    );
}

#[test]
fn write_errors_are_returned() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for format in ExportFormat::ALL {
        let error = export(&two_ops(), format, Full).unwrap_err();
        assert!(matches!(error, ExportError::Io(error) if error.kind() == io::ErrorKind::StorageFull));
    }
}

/// The events as sizes of allocations (true) and frees.
fn sizes(trace: &Trace) -> Vec<(bool, u64)> {
    let mut blocks = Vec::new();
    let size = |event: &TraceEvent| match *event {
        TraceEvent::Alloc { bytes, .. } => {
            blocks.push(bytes);
            (true, bytes)
        }
        TraceEvent::Free { block } => (false, blocks[block as usize]),
        TraceEvent::Occupy { .. } => panic!("a recording has no such events"),
    };
    trace.events().iter().map(size).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_snapshot_is_read_back_as_the_trace_that_it_was(steps in prop::collection::vec((any::<bool>(), 1_u64..3_000_000), 1..80)) {
        let (tracker, pool) = (Tracker::new(), pool("cpu:0"));
        tracker.start_log(Bytes::mib(1));
        let mut held = Vec::new();
        for (take, bytes) in steps {
            if take || held.is_empty() {
                let run = tracker.begin("op");
                // The pool may be full.
                held.extend(Allocation::new(&run.track(&pool), &Request::new(bytes)));
            } else {
                drop(held.swap_remove(bytes as usize % held.len()));
            }
        }
        let recording = tracker.take_log();
        for format in [ExportFormat::MemoryViz, ExportFormat::MemoryVizJson] {
            if recording.blocks().is_empty() {
                continue;
            }
            let snapshot = bytes(&recording, format);
            let read = Trace::read(snapshot.as_slice(), &ReadOptions::default()).unwrap();
            let written = Trace::from_recording(&recording).unwrap();
            prop_assert_eq!(sizes(&read), sizes(&written));
            prop_assert_eq!(read.peak_live_bytes(), recording.timeline().map(|moment| moment.requested).max().unwrap());
        }
        // The blocks cover every segment without a gap and include the live ones.
        let snapshot = json(&recording, ExportFormat::MemoryVizJson);
        let mut live = 0;
        for segment in snapshot["segments"].as_array().unwrap() {
            let mut address = segment["address"].as_u64().unwrap();
            let end = address + segment["total_size"].as_u64().unwrap();
            for block in segment["blocks"].as_array().unwrap() {
                prop_assert_eq!(block["address"].as_u64().unwrap(), address);
                address += block["size"].as_u64().unwrap();
                live += u64::from(block["state"] == "active_allocated");
            }
            prop_assert_eq!(address, end);
        }
        prop_assert_eq!(live, held.len() as u64);
    }

    #[test]
    fn any_recording_is_exported_or_refused(
        events in prop::collection::vec(prop_oneof![4 => 0_u8..16, 2 => any::<u8>(), 1 => Just(0_u8)], 0..120),
    ) {
        // Names first, so that events are not all refused for want of them.
        let names = [10, 1, 0, 0, 0, 10, 2, 1, 1, 0, 11, 0, 0, 0, 11, 1, 0, 0];
        let block = [&names[..], &events].concat();
        crate::fuzz::hwm_exported(&block);
    }
}
