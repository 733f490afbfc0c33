//! Visitors see each region exactly once: in order on allocation, in reverse order on release.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bfc_core::{AddressOnlyMemory, Bytes, Span, SubAllocator, VisitedMemory, Visitors};

use crate::common::source::{FakeSource, Nature};

/// Visits in order: the visitor's name, the region's size, the index.
type Log = Arc<Mutex<Vec<(&'static str, u64, usize)>>>;

fn note(log: &Log, name: &'static str) -> impl Fn(Span, usize) + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |region, index| log.lock().unwrap().push((name, region.bytes, index))
}

fn taken(log: &Log) -> Vec<(&'static str, u64, usize)> {
    std::mem::take(&mut log.lock().unwrap())
}

fn free(memory: &impl SubAllocator, region: Span) {
    // SAFETY: the tests free each block once, and the addresses have no memory behind them.
    unsafe { memory.free(region) };
}

/// A source with two visitors of each kind, at index 3.
fn visited(source: AddressOnlyMemory, log: &Log) -> VisitedMemory {
    let mut visitors = Visitors::new();
    visitors.on_alloc(note(log, "first taken"));
    visitors.on_alloc(note(log, "second taken"));
    visitors.on_free(note(log, "first freed"));
    visitors.on_free(note(log, "second freed"));
    VisitedMemory::new(Arc::new(source), 3, visitors)
}

#[test]
fn visitors_run_once_per_region_in_the_right_order() {
    let log = Log::default();
    let memory = visited(AddressOnlyMemory::new(), &log);
    let region = memory.allocate(256, 512).unwrap();
    assert_eq!(taken(&log), [("first taken", 512, 3), ("second taken", 512, 3)]);
    free(&memory, region);
    assert_eq!(taken(&log), [("second freed", 512, 3), ("first freed", 512, 3)]);
}

#[test]
fn a_refused_region_is_not_shown() {
    let log = Log::default();
    let memory = visited(AddressOnlyMemory::new().with_limit(Bytes(1000)), &log);
    assert!(memory.allocate(256, 1001).is_err());
    assert_eq!(taken(&log), []);
    memory.allocate(256, 1000).unwrap();
    assert_eq!(taken(&log).len(), 2);
}

#[test]
fn visitors_see_merged_regions_one_by_one() {
    let log = Log::default();
    let memory = visited(AddressOnlyMemory::new().with_coalescing(true), &log);
    let first = memory.allocate(256, 256).unwrap();
    memory.allocate(256, 512).unwrap();
    let third = memory.allocate(256, 1024).unwrap();
    taken(&log);

    free(&memory, Span { address: first.address, bytes: 768 });
    let freed = |bytes| [("second freed", bytes, 3), ("first freed", bytes, 3)];
    assert_eq!(taken(&log), [freed(256), freed(512)].concat());
    free(&memory, third);
    assert_eq!(taken(&log), freed(1024));
}

/// Only `VisitedMemory` knows the region: after a visitor's panic, it returns the region to the source.
#[test]
fn a_panic_of_a_visitor_loses_no_region() {
    let source = FakeSource::new(Nature::default());
    let (log, panics) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let panic_if = |panics: &Arc<AtomicBool>| {
        let panics = Arc::clone(panics);
        move |_, _| {
            if panics.load(Ordering::Relaxed) {
                resume_unwind(Box::new("visitor"));
            }
        }
    };
    let mut visitors = Visitors::new();
    visitors.on_alloc(note(&log, "taken"));
    visitors.on_alloc(panic_if(&panics));
    visitors.on_free(note(&log, "freed"));
    let memory = VisitedMemory::new(source.clone(), 3, visitors);
    assert!(catch_unwind(AssertUnwindSafe(|| memory.allocate(256, 512))).is_err());
    assert_eq!(taken(&log), [("taken", 512, 3), ("freed", 512, 3)], "who saw it come sees it go");
    source.assert_all_returned();

    panics.store(false, Ordering::Relaxed);
    let mut visitors = Visitors::new();
    visitors.on_free(panic_if(&panics));
    let memory = VisitedMemory::new(source.clone(), 3, visitors);
    let region = memory.allocate(256, 512).unwrap();
    panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| free(&memory, region))).is_err());
    source.assert_all_returned();
    assert_eq!(source.calls(), source.frees());
}
