//! The heap by scope, with `TrackedSystem` as the allocator of this program. Every test has scopes of its own.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::{Arc, mpsc};

use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, MIB, Request};
use highwater_tracking::{HeapFigures, Report, TrackedSystem, Tracker, module};

#[global_allocator]
static HEAP: TrackedSystem = TrackedSystem::new();

/// Live bytes, peak and calls of a scope.
fn figures(scope: &str) -> (u64, u64, u64) {
    let all = TrackedSystem::by_scope();
    let found = all.iter().find(|(owner, _)| owner.path() == scope).map(|(_, figures)| *figures);
    let HeapFigures { live_bytes, peak_bytes, calls, .. } = found.unwrap_or_default();
    (live_bytes, peak_bytes, calls)
}

/// Runs `work` in a scope.
fn within<R>(scope: &str, work: impl FnOnce() -> R) -> R {
    let _scope = module(scope);
    work()
}

#[test]
fn memory_belongs_to_the_scope_that_allocated_it() {
    let first = within("heap-first", || Vec::<u8>::with_capacity(1000));
    let second = within("heap-second", || vec![0_u8; 300]);
    assert_eq!((figures("heap-first"), figures("heap-second")), ((1000, 1000, 1), (300, 300, 1)));
    assert!(second.iter().all(|byte| *byte == 0));
    within("heap-second", || drop(first));
    std::thread::spawn(move || drop(second)).join().unwrap();
    assert_eq!((figures("heap-first"), figures("heap-second")), ((0, 1000, 1), (0, 300, 1)));
}

#[test]
fn a_reallocation_stays_with_its_scope_and_is_no_peak() {
    let mut values = within("heap-realloc", || vec![7_u8; 1000]);
    within("heap-other", || values.reserve_exact(2000));
    assert_eq!((figures("heap-realloc"), figures("heap-other")), ((3000, 3000, 2), (0, 0, 0)));
    assert!(values.iter().all(|byte| *byte == 7) && values.len() == 1000);
    values.shrink_to(1500);
    assert_eq!(figures("heap-realloc"), (1500, 3000, 3));
    drop(values);
    assert_eq!(figures("heap-realloc"), (0, 3000, 3));
}

#[test]
fn any_alignment_and_odd_sizes_are_exact() {
    for (index, shift) in (0..=14).enumerate() {
        let layout = Layout::from_size_align(3 + index, 1 << shift).unwrap();
        let (pointer, larger) = within("heap-aligned", || {
            // SAFETY: the layout is not empty.
            let pointer = unsafe { HEAP.alloc_zeroed(layout) };
            // SAFETY: the block has these bytes.
            unsafe { pointer.write_bytes(0xA5, layout.size()) };
            // SAFETY: the block has this layout, and the size is not 0.
            let larger = unsafe { HEAP.realloc(pointer, layout, 5000) };
            (larger, Layout::from_size_align(5000, layout.align()).unwrap())
        });
        assert_eq!((pointer.addr() % layout.align(), figures("heap-aligned").0), (0, 5000));
        // SAFETY: the first bytes of the block are initialized.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
        assert!(bytes.iter().all(|byte| *byte == 0xA5));
        // SAFETY: the block has this layout.
        unsafe { HEAP.dealloc(pointer, larger) };
    }
    assert_eq!(figures("heap-aligned"), (0, 5000, 30));
}

#[test]
fn a_failed_request_counts_nothing() {
    within("heap-failed", || {
        let mut values = Vec::<u8>::new();
        assert!(values.try_reserve_exact(isize::MAX as usize).is_err());
        assert!(values.try_reserve_exact(isize::MAX as usize - 64).is_err());
    });
    assert_eq!(figures("heap-failed"), (0, 0, 0));
}

#[test]
fn threads_count_in_one_scope_and_in_their_own() {
    const ROUNDS: u64 = 2000;
    let (sender, receiver) = mpsc::channel::<Vec<Box<[u8; 64]>>>();
    std::thread::scope(|threads| {
        for _ in 0..3 {
            let sender = sender.clone();
            threads.spawn(move || {
                let blocks = |_| within("heap-threads", || Box::new([1_u8; 64]));
                sender.send((0..ROUNDS).map(blocks).collect()).unwrap();
            });
        }
        drop(sender);
        // Frees the memory of other threads while they allocate.
        threads.spawn(move || receiver.into_iter().for_each(drop));
    });
    let (live, peak, calls) = figures("heap-threads");
    assert_eq!((live, calls), (0, 3 * ROUNDS));
    assert!((64 * ROUNDS..=3 * 64 * ROUNDS).contains(&peak) && peak & 63 == 0, "{peak}");
}

/// Allocates and frees in the destructor of a thread-local.
struct Late(Vec<u8>);

impl Drop for Late {
    fn drop(&mut self) {
        let copy = within("heap-late", || self.0.clone());
        assert_eq!(copy.len(), 100);
    }
}

thread_local! {
    static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_frees_its_locals_correctly() {
    std::thread::spawn(|| {
        let late = within("heap-local", || Late(vec![1; 100]));
        LATE.set(Some(late));
    })
    .join()
    .unwrap();
    assert_eq!(figures("heap-local"), (0, 100, 1));
    assert_eq!(figures("heap-late").0, 0);
}

#[test]
fn more_scopes_than_a_segment_are_exact() {
    let blocks: Vec<Box<[u8; 24]>> = (0..700)
        .map(|index| {
            let name = format!("heap-many-{index}");
            within(&name, || Box::new([0; 24]))
        })
        .collect();
    let held = || {
        let all = TrackedSystem::by_scope();
        let many = all.iter().filter(|(scope, _)| scope.path().starts_with("heap-many-"));
        let rows: Vec<_> = many.map(|(_, figures)| figures.live_bytes).collect();
        (rows.len(), rows.iter().sum::<u64>(), rows.iter().all(|live| [0, 24].contains(live)))
    };
    assert_eq!(held(), (700, 700 * 24, true));
    drop(blocks);
    assert_eq!(held(), (700, 0, true));
}

#[test]
fn the_regions_of_pools_are_not_part_of_the_heap() {
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::mib(64))));
    let block = within("heap-pool", || Allocation::new(&pool, &Request::new(16 * MIB)).unwrap());
    let (live, peak, _) = figures("heap-pool");
    // The tables of the pool are.
    assert!(pool.stats().bytes_reserved >= 16 * MIB && 0 < live && peak < MIB, "{live} live, {peak} peak");
    drop(block);
}

#[test]
fn a_report_lists_the_scopes_of_the_heap() {
    let tracker = Tracker::new();
    tracker.set_outside("NCCL", Bytes(5));
    let held = within("heap-report", || Vec::<u8>::with_capacity(100 << 20));
    let report = Report::new(&tracker, &[]);
    let row = report.outside.iter().find(|row| row.name == "heap heap-report").unwrap();
    assert_eq!((row.bytes, row.peak_bytes, row.calls), (100 << 20, Some(100 << 20), Some(1)));
    // The root has a row, and a library has no peak.
    assert!(report.outside.iter().any(|row| row.name == "heap (outside of modules)"));
    assert_eq!((report.outside[0].name.as_str(), report.outside[0].peak_bytes), ("NCCL", None));
    let text = report.to_string();
    let line = text.lines().find(|line| line.starts_with("heap heap-report")).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["heap", "heap-report", "100", "MiB", "100", "MiB", "1"]
    );
    let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(read.outside, report.outside);
    drop(held);
}

#[test]
fn another_allocator_can_be_counted() {
    let heap = TrackedSystem::over(System);
    let layout = Layout::new::<[u64; 9]>();
    // SAFETY: the layout is not empty.
    let pointer = within("heap-other-allocator", || unsafe { heap.alloc(layout) });
    assert_eq!(figures("heap-other-allocator"), (72, 72, 1));
    // SAFETY: the block has this layout.
    unsafe { heap.dealloc(pointer, layout) };
    assert_eq!(figures("heap-other-allocator"), (0, 72, 1));
}
