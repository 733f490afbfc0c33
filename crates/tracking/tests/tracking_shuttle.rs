//! Reference counting under the `shuttle` checker, which explores the orders in which threads may run:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p highwater-tracking --test tracking_shuttle`.
#![cfg(shuttle)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bfc_core::sync::{Mutex, lock, thread};
use bfc_core::{
    AddressOnlyMemory, AddressSpace, AllocError, Allocation, Allocator, BfcAllocator, BfcConfig, Block,
    BlockError, Bytes, Category, MemoryKind, PoolId, Request, Stats, ThreadCache,
};
use highwater_tracking::{AccountedPool, EventKind, Report, Tracker, capture};
use shuttle::{check_pct, check_random};

/// A pool of one address: the next allocation gets the block that was freed last, which provokes an ABA problem.
#[derive(Debug)]
struct OneSlot {
    id: PoolId,
    state: Mutex<LiveBlocks>,
}

#[derive(Debug, Default)]
struct LiveBlocks {
    last_id: u64,
    /// Blocks in use by address, with their sizes.
    live: BTreeMap<u64, (u64, u64)>,
}

impl OneSlot {
    fn new() -> Arc<Self> {
        Arc::new(Self { id: PoolId::next(), state: Mutex::new(LiveBlocks::default()) })
    }

    fn live_bytes(&self) -> u64 {
        lock(&self.state).live.values().map(|(_, bytes)| bytes).sum()
    }
}

// SAFETY: the memory is address-only; live blocks differ in address.
unsafe impl Allocator for OneSlot {
    fn name(&self) -> &str {
        "one slot"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let mut state = lock(&self.state);
        state.last_id += 1;
        let id = state.last_id;
        let mut address = 4096;
        while state.live.contains_key(&address) {
            address += 4096;
        }
        state.live.insert(address, (id, request.bytes));
        Ok(Block { address, bytes: request.bytes, id, chunk: 0, pool: self.id })
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        let mut state = lock(&self.state);
        match state.live.get(&block.address) {
            Some((id, _)) if *id == block.id => {
                state.live.remove(&block.address);
                Ok(())
            }
            _ => Err(BlockError::Stale { block }),
        }
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn tracks_sizes(&self) -> bool {
        true
    }
}

fn take(allocator: &Arc<dyn Allocator>, bytes: u64) -> Allocation {
    Allocation::new(allocator, &Request::new(bytes).with_category(Category::Output)).expect("room")
}

/// Results of one op are dropped on other threads while the op returns and the next ones begin.
fn results_are_dropped_while_ops_come_and_go() {
    let (tracker, pool) = (Tracker::new(), OneSlot::new());
    let memory = AccountedPool::new(pool.clone());
    let run = tracker.begin_over("first", memory.pool(), Some(&memory));
    let results = [10, 20].map(|bytes| take(run.allocator().expect("marks"), bytes));
    let droppers = results.map(|result| thread::spawn(move || drop(result)));
    drop(run);
    for op in ["second", "third"] {
        let run = tracker.begin_over(op, memory.pool(), Some(&memory));
        drop(take(run.allocator().expect("marks"), 7));
    }
    for dropper in droppers {
        dropper.join().expect("no panic");
    }
    let rows = tracker.op_totals();
    let figures: Vec<_> = rows
        .iter()
        .map(|row| row.totals)
        .map(|row| (row.calls, row.total_bytes(), row.high_water_bytes))
        .collect();
    assert_eq!(figures, [(1, 30, 30), (1, 7, 7), (1, 7, 7)]);
    assert!(rows[0].totals.outliving_bytes <= 30);
    assert!(rows[1..].iter().all(|row| row.totals.outliving_bytes == 0));
    assert_eq!(pool.live_bytes(), 0);
    assert_eq!(bfc_core::failed_drops(), 0);
    drop(memory);
    assert_eq!(Arc::strong_count(&pool), 1, "something keeps the pool alive");
}

/// Workers allocate for an op that may return before they do.
fn workers_and_the_op_finish_in_any_order() {
    let (tracker, pool) = (Tracker::new(), OneSlot::new());
    let memory = Arc::new(AccountedPool::new(pool.clone()));
    let run = tracker.begin_over("op", memory.pool(), Some(&memory));
    let context = capture();
    let worker = {
        let (tracker, memory) = (Arc::clone(&tracker), Arc::clone(&memory));
        thread::spawn(move || {
            let _context = context.enter();
            let part = tracker.begin_over("part", memory.pool(), Some(&memory));
            drop(take(part.allocator().expect("marks"), 5));
            part.is_nested()
        })
    };
    drop(take(run.allocator().expect("marks"), 3));
    drop(run);
    // Takes the account of the first op, unless the worker still refers to it.
    drop(take(tracker.begin_over("next", memory.pool(), Some(&memory)).allocator().expect("marks"), 7));
    let nested = worker.join().expect("no panic");

    let rows = tracker.op_totals();
    let figures = |op| {
        let row = rows.iter().find(|row| row.op == op)?.totals;
        Some((row.calls, row.total_bytes(), row.high_water_bytes))
    };
    let of_op = [(1, 3, 3), (1, 8, 3), (1, 8, 5), (1, 8, 8)];
    assert!(figures("op").is_some_and(|found| of_op.contains(&found)), "{rows:?}");
    assert_eq!(figures("next"), Some((1, 7, 7)));
    assert_eq!(figures("part"), (!nested).then_some((1, 5, 5)));
    assert_eq!(pool.live_bytes(), 0);
    assert_eq!(bfc_core::failed_drops(), 0);
}

/// Many threads run ops over one pool that reuses addresses immediately.
fn concurrent_ops_keep_their_figures_apart() {
    let (tracker, pool) = (Tracker::new(), OneSlot::new());
    let memory = Arc::new(AccountedPool::new(pool.clone()));
    tracker.start_log(Bytes::mib(1));
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (tracker, memory) = (Arc::clone(&tracker), Arc::clone(&memory));
            thread::spawn(move || {
                for _ in 0..2 {
                    let run = tracker.begin_over("op", memory.pool(), Some(&memory));
                    let allocator = run.allocator().expect("marks");
                    let first = take(allocator, 10);
                    drop(take(allocator, 1));
                    drop(first);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no panic");
    }
    let row = tracker.op_totals()[0].totals;
    assert_eq!((row.calls, row.total_bytes(), row.high_water_bytes, row.outliving_bytes), (6, 66, 11, 0));

    let log = tracker.take_log();
    assert_eq!((log.blocks().len(), log.skipped_events()), (12, 0));
    let mut live = BTreeSet::new();
    for event in log.events() {
        match event.kind {
            EventKind::Alloc(block) => {
                assert!(live.insert(log.block(block).address), "an address is live twice in the recording");
            }
            EventKind::Free(block) => assert!(live.remove(&log.block(block).address)),
            _ => {}
        }
    }
    assert!(live.is_empty());
    assert!(log.executions().iter().all(|execution| execution.high_water == 11));
    assert_eq!(pool.live_bytes(), 0);
    assert_eq!(bfc_core::failed_drops(), 0);
}

/// Reports are taken while threads run ops over a pool, with thread caches or without.
fn reports_balance(config: BfcConfig) {
    let tracker = Tracker::new();
    let pool = BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config);
    let pool: Arc<dyn Allocator> = Arc::new(pool);
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let (tracker, pool) = (Arc::clone(&tracker), Arc::clone(&pool));
            thread::spawn(move || {
                let run = tracker.begin("op");
                let allocator = run.track(&pool);
                drop(take(&allocator, 1000 + worker));
                take(&allocator, 300)
            })
        })
        .collect();
    for _ in 0..2 {
        let report = Report::new(&tracker, std::slice::from_ref(&pool));
        assert_eq!((report.live_bytes(), report.unowned_bytes), (report.pools[0].in_use, 0), "{report}");
    }
    for worker in workers {
        drop(worker.join().expect("no panic"));
    }
    assert_eq!(pool.stats().bytes_in_use, 0);
}

fn reports_of_a_pool_balance() {
    reports_balance(BfcConfig::new(Bytes::mib(1)));
}

fn reports_of_a_pool_with_caches_balance() {
    reports_balance(BfcConfig::new(Bytes::mib(1)).with_thread_cache(ThreadCache::new()));
}

#[test]
fn reports_balance_in_every_order_of_threads() {
    check_random(reports_of_a_pool_balance, 1000);
    check_pct(reports_of_a_pool_with_caches_balance, 1000, 3);
}

#[test]
fn late_frees_do_not_change_other_ops() {
    check_random(results_are_dropped_while_ops_come_and_go, 3000);
    check_pct(results_are_dropped_while_ops_come_and_go, 3000, 3);
}

#[test]
fn late_workers_do_not_change_a_finished_op() {
    check_random(workers_and_the_op_finish_in_any_order, 3000);
    check_pct(workers_and_the_op_finish_in_any_order, 3000, 3);
}

#[test]
fn ops_of_several_threads_do_not_mix() {
    check_random(concurrent_ops_keep_their_figures_apart, 1000);
    check_pct(concurrent_ops_keep_their_figures_apart, 1000, 3);
}
