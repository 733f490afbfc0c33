//! Heap allocations on the path of every op, the most fragile cost of tracking.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocation, BfcAllocator, BfcConfig, Bytes, Category, Request};
use highwater_tracking::{AccountedPool, Phase, Tracker, capture, here, module, phase};

/// The system allocator with a count of allocations per thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // A thread that is ending has no count any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `realloc`, and the memory came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn heap_allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// One op in a module: scratch memory, a nested op, a captured context, and a result that outlives it.
fn step(tracker: &Arc<Tracker>, memory: &AccountedPool, finished: Option<&AccountedPool>) {
    let pool = memory.pool();
    let _net = module("net");
    let _layer = module("block0.attention");
    let (result, place) = {
        let run = tracker.begin_over("matmul", pool, finished);
        let allocator = run.track(pool);
        let _scratch = Allocation::new(&allocator, &Request::new(5000)).expect("room");
        let context = capture();
        let _context = context.enter();
        let nested = tracker.begin_over("reduce", pool, finished);
        drop(Allocation::new(&nested.track(pool), &Request::new(300)).expect("room"));
        let request = Request::new(1000).with_category(Category::Activation);
        (Allocation::new(&allocator, &request).expect("room"), here())
    };
    let _place = place.enter();
    let _phase = phase(Phase::Backward);
    let run = tracker.begin_over("matmul", pool, finished);
    drop(Allocation::new(&run.track(pool), &Request::new(1000)).expect("room"));
    drop(result);
}

#[test]
fn a_warm_op_with_a_free_list_allocates_nothing() {
    let config = BfcConfig::new(Bytes::mib(64));
    let memory =
        AccountedPool::new(Arc::new(BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config)));
    let tracker = Tracker::new();
    let count = |finished| {
        (0..3).for_each(|_| step(&tracker, &memory, finished));
        heap_allocations(|| (0..100).for_each(|_| step(&tracker, &memory, finished)))
    };
    assert_eq!(count(Some(&memory)), 0);
    // Otherwise each of the two ops allocates an execution and a tracking allocator.
    assert_eq!(count(None), 400);
    assert_eq!(memory.pool().stats().live_allocs, 0);
}
