//! A live run and its recording have the same accounts.

use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request, Tag,
};
use highwater_tracking::{
    OpRun, Phase, Recording, RecordingLimits, Report, RunFacts, Tracker, capture, module, phase, write_page,
};

use crate::same_report;

fn pool(name: &str) -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new(name, Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(1))))
}

fn take(allocator: &Arc<dyn Allocator>, bytes: u64, category: Category) -> Allocation {
    Allocation::new(allocator, &Request::new(bytes).with_category(category)).unwrap()
}

/// A layer with scratch memory of a worker thread and in a second pool, whose temporary result becomes an activation.
fn forward(run: &OpRun<'_>, pools: &[Arc<dyn Allocator>; 2], bytes: u64) -> Allocation {
    let allocator = run.track(&pools[0]);
    let staging = take(&run.track(&pools[1]), 500, Category::Communication);
    let context = capture();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _context = context.enter();
            drop(take(&allocator, 700, Category::Workspace));
        });
    });
    drop(staging);
    let out = take(&allocator, bytes, Category::Temporary);
    let tag = Tag { owner: run.owner(), category: Category::Activation };
    allocator.retag(&out.block(), tag).unwrap();
    out
}

/// Runs steps of two layers. Another thread runs ops of its own meanwhile.
fn program(tracker: &Tracker, pools: &[Arc<dyn Allocator>; 2]) -> Vec<Allocation> {
    let init = |name: &str, bytes| {
        let _scope = module(name);
        let run = tracker.begin("init");
        take(&run.track(&pools[0]), bytes, Category::Parameter)
    };
    let mut kept = vec![init("accounts.fc1", 4000), init("accounts.fc2", 8000)];
    for step in 1..=6_u64 {
        let mut saved = Vec::new();
        for (layer, bytes) in [("accounts.fc1", 1000), ("accounts.fc2", 3000)] {
            let _scope = module(layer);
            saved.push(forward(&tracker.begin_over("matmul", &pools[0], None), pools, bytes));
        }
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _scope = module("accounts-data");
                let run = tracker.begin_over("load", &pools[1], None);
                drop(take(&run.track(&pools[1]), 100 * step, Category::Input));
            });
        });
        // The optimizer keeps one activation for itself.
        let (run, last) = (tracker.begin("keep"), saved.last().unwrap());
        let tag = Tag { owner: run.owner(), category: Category::Activation };
        last.allocator().retag(&last.block(), tag).unwrap();
        drop(run);
        for layer in ["accounts.fc2", "accounts.fc1"] {
            let (_scope, _phase) = (module(layer), phase(Phase::Backward));
            let run = tracker.begin_over("matmul", &pools[0], None);
            drop(take(&run.track(&pools[0]), 2000, Category::Gradient));
            saved.pop();
        }
        let _phase = phase(Phase::Optimizer);
        let run = tracker.begin_over("sgd", &pools[0], None);
        kept.push(take(&run.track(&pools[0]), 100, Category::OptimizerState));
    }
    kept
}

fn recorded(file: &[u8]) -> Recording {
    Recording::read(file, &RecordingLimits::default()).unwrap()
}

#[test]
fn a_live_report_equals_the_report_of_its_recording() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("run.hwm");
    let (tracker, pools) = (Tracker::new(), [pool("first"), pool("second")]);
    tracker.start_recording(std::fs::File::create(&path).unwrap(), &RunFacts::new("accounts")).unwrap();
    let kept = program(&tracker, &pools);
    tracker.finish_recording(&pools).unwrap();
    let recording = recorded(&std::fs::read(path).unwrap());
    same_report::check(&recording);

    // Equal reports could both be wrong, so these figures come from the program above.
    let report = Report::from_recording(&recording);
    let row = |path: &str| report.places.iter().find(|row| row.path() == path).unwrap();
    let layer = row("accounts.fc2.matmul");
    assert_eq!((layer.calls, layer.allocations, layer.requested_bytes), (6, 18, 6 * (500 + 700 + 3000)));
    assert_eq!((layer.temporary_bytes, layer.output_bytes), (6 * (512 + 768), 6 * 3072));
    assert_eq!((layer.saved_bytes, layer.saved_peak_bytes, layer.high_water_bytes), (6 * 3072, 3072, 3584));
    assert_eq!((row("keep").saved_bytes, row("keep").saved_peak_bytes), (6 * 3072, 3072));
    assert_eq!(layer.live_before_bytes, 4096 + 8192 + 1024 + 5 * 256);
    let threads: Vec<_> = report.threads.iter().map(|row| (row.calls, row.requested_bytes)).collect();
    assert!(threads.contains(&(2 + 6 * 6, 12000 + 6 * (2200 + 4200 + 4000 + 100))), "{threads:?}");
    let peaks = [&report.peak, &report.total_peak].map(|peak| peak.as_ref().unwrap());
    assert_eq!(peaks.map(|peak| (peak.pool.as_str(), peak.bytes)), [("first", 19_712), ("", 19_712)]);
    drop(kept);
}

/// A file that version 0.1.0 wrote, with several pools, threads and phases, marks, a failed request and a summary.
#[test]
fn a_recording_of_an_earlier_version_opens() {
    let recording = recorded(include_bytes!("../data/version1.hwm"));
    assert_eq!((recording.events().len(), recording.skipped_events()), (197, 0));
    let report = Report::from_recording(&recording);
    let layer = report.places.iter().find(|row| row.path() == "net.fc2.matmul").unwrap();
    assert_eq!((layer.calls, layer.high_water_bytes, layer.saved_bytes), (6, 3584, 6 * 3072));
    assert_eq!((report.completed_steps, report.marks.len(), report.failures.len()), (6, 6, 1));
    assert_eq!((report.peak.as_ref().unwrap().bytes, report.outside[0].bytes), (18_432, 12 << 20));
    assert!(report.total_peak.is_some());
    let mut page = Vec::new();
    write_page(&recording, None, &mut page).unwrap();
    assert!(page.ends_with(b"</html>\n"));
}
