use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Request, Tag};

use super::*;
use crate::account::Tracker;
use crate::record::{EventKind, Recording};
use crate::scope::{Phase, module, phase};

fn pool() -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(1))))
}

fn take(allocator: &Arc<dyn Allocator>, bytes: u64, category: Category) -> Allocation {
    Allocation::new(allocator, &Request::new(bytes).with_category(category)).unwrap()
}

/// Two layers forward, whose results are kept, and a backward of each.
fn sample() -> Recording {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    let _net = module("tally-net");
    let forward = |layer: &str, bytes| {
        let _layer = module(layer);
        let run = tracker.begin("matmul");
        let allocator = run.track(&pool);
        let _scratch = take(&allocator, 512, Category::Workspace);
        let out = take(&allocator, bytes, Category::Output);
        let tag = Tag { owner: run.owner(), category: Category::Activation };
        allocator.retag(&out.block(), tag).unwrap();
        out
    };
    let backward = |layer: &str, bytes| {
        let (_layer, _phase) = (module(layer), phase(Phase::Backward));
        let run = tracker.begin("matmul");
        take(&run.track(&pool), bytes, Category::Gradient)
    };
    let (first, second) = (forward("fc1", 1024), forward("fc2", 2048));
    drop(backward("fc2", 256));
    drop(second);
    drop(backward("fc1", 256));
    drop(first);
    tracker.take_log()
}

#[test]
fn an_op_in_a_place_has_its_marks_and_its_part_of_the_peak() {
    let report = Report::from_recording(&sample());
    assert_eq!(report.peak.as_ref().unwrap().bytes, 1024 + 2048 + 512);
    assert_eq!(report.peak.as_ref().unwrap().owner(), "tally-net.fc2.matmul");
    let place = &report.places[0];
    assert_eq!((place.scope.as_deref(), place.op.as_str()), (Some("tally-net.fc2"), "matmul"));
    assert_eq!((place.calls, place.allocations, place.total_bytes), (1, 2, 2560));
    assert_eq!((place.high_water_bytes, place.outliving_bytes, place.self_peak_bytes), (2560, 2048, 2560));
    assert_eq!((place.live_before_bytes, place.live_peak_bytes), (1024, 3584));
    assert_eq!((place.peak_bytes, place.saved_bytes), (2560, 2048));
    assert_eq!((place.temporary_bytes, place.output_bytes, place.persistent_bytes), (512, 2048, 0));
    assert_eq!(place.live_bytes, 0);
    assert!((report.places.iter().map(|place| place.peak_share).sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn rows_are_summed_by_op_by_phase_and_by_category() {
    let report = Report::from_recording(&sample());
    let ops: Vec<_> =
        report.ops.iter().map(|op| (op.phase, op.calls, op.high_water_bytes, op.peak_bytes)).collect();
    assert_eq!(ops, [(Phase::Forward, 2, 2560, 3584), (Phase::Backward, 2, 256, 0)]);
    let phases: Vec<_> = report.phases.iter().map(|phase| (phase.phase, phase.live_peak_bytes)).collect();
    assert_eq!(phases, [(Phase::Forward, 3584), (Phase::Backward, 3328)]);
    let row = |name| report.categories.iter().find(|row| row.category == name).unwrap();
    assert_eq!((row("output").total_bytes, row("output").peak_bytes), (3072, 2048));
    assert_eq!((row("activation").total_bytes, row("activation").high_water_bytes), (0, 3072));
    assert_eq!((row("activation").peak_bytes, row("activation").live_bytes), (1024, 0));
    assert_eq!(report.categories.iter().map(|row| row.peak_bytes).sum::<u64>(), 3584);
    assert_eq!((report.threads.len(), report.threads[0].allocations, report.threads[0].frees), (1, 6, 6));
}

#[test]
fn a_scope_counts_everything_below_it_and_stands_before_it() {
    let report = Report::from_recording(&sample());
    let scopes: Vec<_> = report
        .scopes
        .iter()
        .map(|row| (row.scope.as_str(), row.calls, row.high_water_bytes, row.peak_bytes))
        .collect();
    assert_eq!(
        scopes,
        [
            ("", 4, 3584, 3584),
            ("tally-net", 4, 3584, 3584),
            ("tally-net.fc1", 2, 1536, 1024),
            ("tally-net.fc2", 2, 2560, 2560)
        ]
    );
}

#[test]
fn a_name_without_charged_memory_is_not_a_module() {
    let (tracker, pool) = (Tracker::new(), pool());
    tracker.start_log(Bytes::mib(1));
    let weight = tracker.begin("init").track(&pool);
    let weight = take(&weight, 1024, Category::Parameter);
    // As where a layer is made inside of a block, and the block gets its place in a network.
    let charge = || {
        let _layer = module("tally-layer");
        let tag = Tag { owner: tracker.owner_here("init"), category: Category::Parameter };
        weight.allocator().retag(&weight.block(), tag).unwrap();
    };
    charge();
    {
        let _block = module("tally-block");
        charge();
    }
    let run = tracker.begin("matmul");
    drop(take(&run.track(&pool), 256, Category::Output));
    drop((run, weight));
    let report = Report::from_recording(&tracker.take_log());
    let scopes: Vec<_> = report.scopes.iter().map(|row| (row.scope.as_str(), row.peak_bytes)).collect();
    assert_eq!(
        scopes,
        [("", 1280), ("tally-block", 1024), ("tally-block.tally-layer", 1024)],
        "without tally-layer alone"
    );
}

#[test]
fn saved_tensors_are_counted_once_while_they_live() {
    let recording = sample();
    let saved = Report::from_recording(&recording).saved;
    assert_eq!((saved.blocks, saved.bytes, saved.high_water_bytes), (2, 3072, 3072));
    let held: Vec<u64> = recording
        .retags()
        .iter()
        .zip([EventKind::Retag(0), EventKind::Retag(1)])
        .map(|(retag, kind)| {
            let at = recording.events().iter().find(|event| event.kind == kind).unwrap().at_ns;
            recording.life_ns(recording.block(retag.block)).1 - at
        })
        .collect();
    assert_eq!(saved.longest_held_ns, held[0].max(held[1]));
    assert_eq!(saved.mean_held_ns, (held[0] * 1024 + held[1] * 2048) / 3072);
}

#[test]
fn pools_of_several_streams_are_distinguished() {
    use bfc_core::sim::SimDevice;
    use bfc_core::{Stream, StreamAllocator};

    let device = Arc::new(SimDevice::new(Bytes::mib(64)));
    let on_stream = |name: &str| -> Arc<dyn Allocator> {
        let source = Arc::new(AddressOnlyMemory::new());
        let pool = Arc::new(BfcAllocator::new(name, source, BfcConfig::new(Bytes::mib(1))));
        Arc::new(StreamAllocator::new(pool, Stream::new(device.clone()).unwrap()))
    };
    let (tracker, pools) = (Tracker::new(), [on_stream("sim:0"), on_stream("sim:1")]);
    let before = take(&pools[0], 256, Category::Input);
    tracker.start_log(Bytes::mib(1));
    {
        let run = tracker.begin("both");
        let _first = take(&run.track(&pools[0]), 1000, Category::Output);
        let _second = take(&run.track(&pools[1]), 3000, Category::Output);
    }
    let recording = tracker.take_log();
    let rows: Vec<_> = Report::from_recording(&recording)
        .streams
        .into_iter()
        .map(|row| (row.pool, row.stream, row.requested_bytes, row.peak_bytes, row.live_bytes))
        .collect();
    assert_eq!(rows, [("sim:0".to_owned(), 1, 1000, 1024, 0), ("sim:1".to_owned(), 2, 3000, 3072, 0)]);
    // The region of the first pool is older than the recording.
    let regions: Vec<_> = recording.regions().iter().map(|region| (region.pool, region.taken)).collect();
    assert_eq!(regions, [(0, true), (1, true)]);
    for block in recording.blocks() {
        let region = recording.regions().iter().find(|region| region.pool == block.pool).unwrap();
        assert!(region.address <= block.address);
        assert!(block.address + block.granted <= region.address + region.bytes);
    }
    let rows: Vec<_> = Report::new(&tracker, &pools).pools.iter().map(|row| row.stream).collect();
    assert_eq!(rows, [Some(1), Some(2)]);
    drop(before);
}

#[test]
fn hashes_of_paths_stay_the_same_in_all_versions() {
    let owner = |name: &str, parent: &Owner| Owner::new(name, 0, None).below(parent);
    let module = Owner { path_hash: 0xe8a0_0cdb_8527_8938, ..owner("net", &Owner::default()) };
    assert_eq!(owner("net", &Owner::default()), module);
    assert_eq!(owner("fc1", &module).path_hash, 0x2c1b_37e2_544b_08f9);
}
