//! Sources and visitors that panic or call back into the pool that is calling them. Every policy and every
//! entry point returns a typed error or an empty answer and never deadlocks. The pool continues after a panic
//! has poisoned its lock.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bfc_core::{
    AllocError, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, BlockError, Bytes,
    ChunkInfo, ConfiguredPolicy, PackedAllocator, PolicyAllocator, PoolConfig, PoolView, Request, Span, Tag,
    TimingCounter, VisitedMemory, Visitors,
};

use crate::common::scenario::{Chosen, LIMIT, policies};
use crate::common::source::{FakeSource, Nature};
use crate::common::{allocate, free, on_every_policy, try_free};

/// Checks the pool's answers to calls from within its own call into the source.
fn assert_answers_within<P: ConfiguredPolicy>(pool: &PolicyAllocator<P>, held: Block) {
    let refused = Err(AllocError::Reentrant { allocator: "called back".to_owned() });
    assert_eq!(pool.allocate(&Request::new(100)), refused);
    let before = || 0;
    let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
    assert_eq!(pool.allocate(&Request::new(100).with_attributes(attributes)), refused);
    assert_eq!(pool.allocate(&Request::new(u64::MAX)), refused);
    let misaligned = pool.allocate(&Request::new(100).with_alignment(3));
    assert!(matches!(misaligned, Err(AllocError::BadAlignment { .. })));
    assert_eq!(pool.allocate(&Request::new(0)), Ok(Block::EMPTY));

    let stale = Block { id: held.id + 1000, ..held };
    for block in [held, stale, Block { id: 0, ..held }] {
        assert_eq!(try_free(pool, block), Err(BlockError::Reentrant));
        assert_eq!(pool.retag(&block, Tag::default()), Err(BlockError::Reentrant));
        assert_eq!(pool.requested_bytes(&block), Err(BlockError::Reentrant));
        assert_eq!(pool.tag(&block), Err(BlockError::Reentrant));
    }
    assert_eq!(pool.block_at(held.address), Err(BlockError::Reentrant));
    assert_eq!(try_free(pool, Block::EMPTY), Ok(()));
    assert_eq!((pool.tag(&Block::EMPTY), pool.requested_bytes(&Block::EMPTY)), (Ok(Tag::default()), Ok(0)));

    let stats = pool.stats();
    let limit = pool.config().limit;
    assert_eq!((stats.bytes_requested, stats.bytes_limit), (300, Some(limit.0)), "as before the call");
    assert!(!pool.clear_stats());
    assert_eq!((pool.trim(Bytes(0)), pool.trim(Bytes(u64::MAX))), (0, 0));
    pool.set_safe_frontier(0);
    assert!(pool.policy().is_none());
    assert!(pool.chunks().is_empty() && pool.regions().is_empty());
    assert!(pool.bins().iter().all(|bin| bin.chunks == 0));
    assert_eq!((pool.ledger().total(), pool.id()), (0, bfc_core::PoolId::default()));
    assert_eq!(pool.name(), "called back");
    pool.check_invariants().unwrap();
}

/// A request that needs another region than a small one before: larger, and on another stream for policies that keep
/// streams apart.
fn far() -> Request<'static> {
    Request::new(60_000).with_stream(1)
}

/// Lets the source call back in both directions, then checks the pool.
fn source_calls_back<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) {
    let source = FakeSource::new(Nature::default());
    let config = config.with_allow_growth(true).with_first_region(Bytes(1024));
    let pool = Arc::new(PolicyAllocator::<P>::new("called back", source.clone(), config.with_retry(false)));
    let held = pool.allocate(&Request::new(300)).unwrap();
    let (inner, calls): (Weak<PolicyAllocator<P>>, _) = (Arc::downgrade(&pool), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&calls);
    source.set_hook(move || {
        let Some(pool) = inner.upgrade() else { return };
        assert_answers_within(&*pool, held);
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let large = pool.allocate(&far()).unwrap();
    let taken = calls.load(Ordering::Relaxed);
    assert!(taken > 0, "the source was called for more");
    try_free(&pool, large).unwrap();
    pool.trim(Bytes(0));
    assert!(calls.load(Ordering::Relaxed) > taken, "the source was called for what goes back");
    source.clear_hook();

    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().bytes_requested, 300);
    try_free(&pool, held).unwrap();
    pool.trim(Bytes(0));
    drop(pool);
    source.assert_all_returned();
}

/// The live blocks and the reserved bytes. The pool may divide free memory differently: a packing gives up its
/// range for a request.
fn held_by<P: ConfiguredPolicy>(pool: &PolicyAllocator<P>) -> (u64, Vec<Span>, Vec<ChunkInfo>) {
    let live = pool.chunks().into_iter().filter(ChunkInfo::in_use).collect();
    (pool.stats().bytes_reserved, pool.regions(), live)
}

/// Lets the source panic in both directions, then uses the pool, whose lock is poisoned by then.
fn source_panics<P: ConfiguredPolicy>(config: PoolConfig<P::Options>) {
    let source = FakeSource::new(Nature::default());
    let config = config.with_allow_growth(true).with_first_region(Bytes(1024));
    let pool = PolicyAllocator::<P>::new("panics", source.clone(), config.with_retry(false));
    let held = pool.allocate(&Request::new(300)).unwrap();
    let panics = || source.set_hook(|| resume_unwind(Box::new("source")));
    let caught = |work: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(work)).is_err();

    panics();
    let before = held_by(&pool);
    assert!(caught(&mut || drop(pool.allocate(&far()))));
    source.clear_hook();
    pool.check_invariants().unwrap();
    assert_eq!(held_by(&pool), before);

    let large = pool.allocate(&far()).unwrap();
    // The source that panics loses the returned memory; the pool does not return it again.
    panics();
    assert!(caught(&mut || {
        try_free(&pool, large).unwrap();
        pool.trim(Bytes(0));
    }));
    source.clear_hook();
    pool.check_invariants().unwrap();
    assert_eq!((pool.stats().bytes_requested, pool.stats().live_allocs), (300, 1));
    assert_eq!(try_free(&pool, large), Err(BlockError::Stale { block: large }));

    // Every entry point accepts the poisoned lock.
    let poisoned = pool.allocate(&Request::new(100)).unwrap();
    assert_eq!(pool.block_at(poisoned.address), Ok(poisoned));
    assert_eq!(pool.retag(&poisoned, Tag::default()), Ok(()));
    pool.set_safe_frontier(1);
    assert!(pool.policy().is_some() && pool.clear_stats());
    [poisoned, held].into_iter().for_each(|block| try_free(&pool, block).unwrap());
    pool.trim(Bytes(0));
    assert_eq!((pool.stats().bytes_reserved, pool.stats().live_allocs), (0, 0));
    pool.check_invariants().unwrap();
    drop(pool);
    source.assert_sound();
}

#[test]
fn every_entry_point_answers_a_source_that_calls_back() {
    on_every_policy!(source_calls_back);
}

#[test]
fn a_pool_goes_on_after_a_panic_of_its_source() {
    on_every_policy!(source_panics);
}

#[test]
fn every_entry_point_answers_a_visitor_that_calls_back() {
    let slot: Arc<OnceLock<(Weak<BfcAllocator>, Block)>> = Arc::default();
    let calls = Arc::new(AtomicU64::new(0));
    let visitor = || {
        let (slot, calls) = (Arc::clone(&slot), Arc::clone(&calls));
        move |_, _| {
            let Some((pool, held)) = slot.get() else { return };
            let Some(pool) = pool.upgrade() else { return };
            assert_answers_within(&pool, *held);
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut visitors = Visitors::new();
    visitors.on_alloc(visitor());
    visitors.on_free(visitor());
    let memory = VisitedMemory::new(FakeSource::new(Nature::default()), 0, visitors);
    let config = BfcConfig::new(LIMIT).with_first_region(Bytes(1024));
    let pool = Arc::new(BfcAllocator::new("called back", Arc::new(memory), config));
    let held = allocate(&pool, 300);
    slot.set((Arc::downgrade(&pool), held)).unwrap();
    let large = allocate(&pool, 60_000);
    free(&pool, large);
    assert!(pool.trim(Bytes(0)) > 0);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    pool.check_invariants().unwrap();
}

#[test]
fn a_visitor_that_panics_leaves_a_pool_that_works() {
    let panics = Arc::new(AtomicU64::new(0));
    let visitor = || {
        let panics = Arc::clone(&panics);
        move |_, _| {
            if panics.load(Ordering::Relaxed) == 1 {
                resume_unwind(Box::new("visitor"));
            }
        }
    };
    let mut visitors = Visitors::new();
    visitors.on_alloc(visitor());
    visitors.on_free(visitor());
    let memory = VisitedMemory::new(FakeSource::new(Nature::default()), 0, visitors);
    let pool = BfcAllocator::new("visited", Arc::new(memory), BfcConfig::new(LIMIT));
    for _ in 0..2 {
        panics.store(1, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| allocate(&pool, 100))).is_err());
        assert!(pool.regions().is_empty());
        panics.store(0, Ordering::Relaxed);
        let block = allocate(&pool, 100);
        free(&pool, block);
        panics.store(1, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| pool.trim(Bytes(0)))).is_err());
        pool.check_invariants().unwrap();
        assert_eq!(pool.stats().bytes_reserved, 0);
    }
    panics.store(0, Ordering::Relaxed);
}

/// The frontier lies outside the lock: a source that learns that work has ended may raise it at once, and the
/// pool sees it.
#[test]
fn a_frontier_that_is_raised_from_within_the_source_counts() {
    let source = FakeSource::new(Nature::default());
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(LIMIT).with_first_region(Bytes(1024)).with_timing_counter(counter);
    let pool = Arc::new(BfcAllocator::new("frontier", source.clone(), config));
    let block = allocate(&pool, 300);
    free(&pool, block);
    assert_eq!(pool.trim(Bytes(0)), 0, "the free waits for the frontier");
    let inner = Arc::downgrade(&pool);
    source.set_hook(move || {
        if let Some(pool) = inner.upgrade() {
            pool.set_safe_frontier(2);
        }
    });
    let large = allocate(&pool, 10_000);
    source.clear_hook();
    free(&pool, large);
    assert!(pool.trim(Bytes(0)) > 0);
    pool.check_invariants().unwrap();
}

#[test]
fn a_packing_is_not_reached_from_within_the_source() {
    let chosen = policies().into_iter().find_map(|(_, chosen)| match chosen {
        Chosen::Packed(config) => Some(config),
        _ => None,
    });
    let source = FakeSource::new(Nature::default());
    let pool = Arc::new(PackedAllocator::new("packed", source.clone(), chosen.unwrap()));
    let held = pool.allocate(&Request::new(256)).unwrap();
    let before = pool.counts();
    assert!(before.packed + before.unexpected + before.left + before.refused > 0);
    let inner = Arc::downgrade(&pool);
    source.set_hook(move || {
        if let Some(pool) = inner.upgrade() {
            pool.begin_step();
            assert_eq!(pool.counts(), bfc_core::PackingCounts::default());
        }
    });
    let large = pool.allocate(&far()).unwrap();
    source.clear_hook();
    [held, large].into_iter().for_each(|block| try_free(&pool, block).unwrap());
    pool.check_invariants().unwrap();
}
