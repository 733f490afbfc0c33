//! Sources that fail, deliver too much or too little, break alignment, panic or call back. The pool loses no
//! memory, returns nothing twice, and serves later requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bfc_core::{
    AllocError, Allocator, BfcAllocator, BfcConfig, Block, BlockError, Bytes, GrowthRule, KIB, PoolView,
    Request, SourceError, Tag,
};

use crate::common::interpreter::{Interpreter, Op};
use crate::common::source::{Fails, FakeSource, Nature};
use crate::common::{Random, allocate, free, out_of_memory, try_free};

fn pool_over(nature: Nature, config: BfcConfig) -> (BfcAllocator, Arc<FakeSource>) {
    let source = FakeSource::new(nature);
    (BfcAllocator::new("test", source.clone(), config), source)
}

fn small_regions(limit: Bytes) -> BfcConfig {
    BfcConfig::new(limit).with_first_region(Bytes(1024)).with_growth(GrowthRule::DOUBLING)
}

#[test]
fn a_source_that_fails_at_its_kth_call_loses_nothing_whatever_k() {
    let mut random = Random(5);
    let ops: Vec<Op> = (0..300)
        .map(|_| match random.below(10) {
            0..=5 => Op::Allocate {
                bytes: 1 + random.below(9000),
                alignment_log2: random.below(13) as u8,
                owner: 1,
            },
            6 => Op::ReleaseIdle,
            7 => Op::Resize { pick: random.next() as usize, bytes: 1 + random.below(9000) },
            _ => Op::Free { pick: random.next() as usize },
        })
        .collect();
    for k in 1..25 {
        for fails in [Fails::Only(k), Fails::Every(k)] {
            for broken in [false, true] {
                for coalescing in [false, true] {
                    let nature = Nature { fails, broken, coalescing, ..Nature::default() };
                    Interpreter::new(small_regions(Bytes::kib(128)), nature, true, None).run(&ops);
                }
            }
        }
    }
}

#[test]
fn after_the_source_recovers_so_does_the_pool() {
    for broken in [false, true] {
        let nature = Nature { fails: Fails::Always, broken, ..Nature::default() };
        let (pool, source) = pool_over(nature, BfcConfig::new(Bytes::mib(1)));
        let fresh = pool.stats();
        for _ in 0..3 {
            assert!(pool.allocate(&Request::new(1000)).is_err());
        }
        assert_eq!(pool.stats(), fresh);
        source.set_fails(Fails::Never);
        let block = allocate(&pool, 1000);
        free(&pool, block);
        pool.check_invariants().unwrap();
        drop(pool);
        source.assert_all_returned();
    }
}

#[test]
fn a_source_that_is_broken_is_named_as_the_cause() {
    let nature = Nature { fails: Fails::Always, broken: true, ..Nature::default() };
    let (pool, source) = pool_over(nature, BfcConfig::new(Bytes::mib(1)));
    match pool.allocate(&Request::new(1000)) {
        Err(AllocError::Source { allocator, error: SourceError::Driver { call, .. } }) => {
            assert_eq!((allocator.as_str(), call), ("test", "fake"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(source.calls(), 1, "a broken source is not asked for less and less");
}

#[test]
fn a_misaligned_or_short_region_is_given_back_and_named() {
    let misaligned = Nature { offset: 128, ..Nature::default() };
    let short = Nature { missing: 256, ..Nature::default() };
    for nature in [misaligned, short] {
        let (pool, source) = pool_over(nature, BfcConfig::new(Bytes::mib(1)));
        match pool.allocate(&Request::new(1000)) {
            Err(AllocError::Source { error: SourceError::BadRegion { .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!((source.calls(), source.frees()), (1, 1));
        assert_eq!(pool.stats().bytes_reserved, 0);
        drop(pool);
        source.assert_all_returned();
    }
}

#[test]
fn a_region_larger_than_requested_counts_against_the_limit() {
    let nature = Nature { extra: 64 * KIB, ..Nature::default() };
    let (pool, source) = pool_over(nature, BfcConfig::new(Bytes::kib(128)).with_allow_growth(false));
    let blocks: Vec<Block> = (0..8).map(|_| allocate(&pool, 16 * KIB)).collect();
    // The first region exceeds the limit and returns; the second request leaves space for the excess.
    assert_eq!((pool.stats().bytes_reserved, source.calls(), source.frees()), (128 * KIB, 2, 1));
    pool.check_invariants().unwrap();
    out_of_memory(&pool, 16 * KIB);
    assert_eq!(source.calls(), 2, "upstream's limit wraps around here and it takes more and more");
    for block in blocks {
        free(&pool, block);
    }
    pool.check_invariants().unwrap();

    let (pool, source) = pool_over(nature, BfcConfig::new(Bytes::kib(16)).with_allow_growth(false));
    out_of_memory(&pool, 16 * KIB);
    assert_eq!((pool.stats().peak_bytes_reserved, source.bytes_out()), (0, 0));
}

#[test]
fn an_odd_tail_of_a_region_is_kept_for_the_source_alone() {
    let nature = Nature { extra: 100, coalescing: true, gap: 156, ..Nature::default() };
    let (pool, source) = pool_over(nature, small_regions(Bytes::kib(64)));
    let blocks = [allocate(&pool, 1024), allocate(&pool, 1024)];
    assert_eq!(pool.regions().iter().map(|region| region.bytes).collect::<Vec<u64>>(), [1124, 2148]);
    for block in blocks {
        free(&pool, block);
    }
    pool.check_invariants().unwrap();
    assert_eq!(pool.trim(Bytes(0)), 1124 + 2148);
    source.assert_all_returned();
}

/// Upstream reserves the first region and then finds no room for the block in it.
#[test]
fn over_alignment_works_with_a_source_that_ignores_it() {
    let nature = Nature { fixed_alignment: Some(256), offset: 256, ..Nature::default() };
    let (pool, source) = pool_over(nature, small_regions(Bytes::kib(64)));
    let block = pool.allocate(&Request::new(8 * KIB).with_alignment(4096)).unwrap();
    assert!(block.address % 4096 == 0);
    assert_eq!((source.calls(), source.frees()), (2, 1), "the region out of line goes back at once");
    assert_eq!(pool.regions().len(), 1);
    free(&pool, block);
    pool.check_invariants().unwrap();
    drop(pool);
    source.assert_all_returned();
}

#[test]
fn a_source_that_honours_alignment_is_asked_for_no_padding() {
    let (pool, source) = pool_over(Nature::default(), small_regions(Bytes::kib(8)));
    let block = pool.allocate(&Request::new(8 * KIB).with_alignment(4096)).unwrap();
    assert_eq!((block.bytes, pool.stats().bytes_reserved, source.calls()), (8 * KIB, 8 * KIB, 1));
}

#[test]
fn regions_that_touch_are_joined_below_above_and_on_both_sides() {
    for downward in [false, true] {
        let nature = Nature { coalescing: true, downward, ..Nature::default() };
        let (pool, source) = pool_over(nature, small_regions(Bytes::kib(64)));
        let blocks: Vec<Block> = (0..12).map(|_| allocate(&pool, 1024)).collect();
        assert_eq!(pool.regions().len(), 1);
        for block in blocks {
            free(&pool, block);
        }
        assert_eq!(pool.chunks().len(), 1, "free chunks join across the seams");
        pool.check_invariants().unwrap();
        drop(pool);
        source.assert_all_returned();
    }
}

#[test]
fn bad_requests_are_typed_errors_and_take_nothing() {
    let (pool, source) = pool_over(Nature::default(), BfcConfig::new(Bytes(u64::MAX)));
    let before = pool.stats();
    for alignment in [0, 3, 768, u64::MAX] {
        let error = pool.allocate(&Request::new(1).with_alignment(alignment)).unwrap_err();
        assert_eq!(error, AllocError::BadAlignment { allocator: "test".to_owned(), alignment });
    }
    for (bytes, alignment) in [(u64::MAX, 64), (u64::MAX - 255, 64), (1 << 63, 1 << 63)] {
        let error = pool.allocate(&Request::new(bytes).with_alignment(alignment)).unwrap_err();
        assert_eq!(error, AllocError::TooLarge { allocator: "test".to_owned(), bytes, alignment });
    }
    assert_eq!((pool.stats(), source.calls()), (before, 0));
}

#[test]
fn a_limit_of_nothing_refuses_everything_but_nothing() {
    let (pool, source) = pool_over(Nature::default(), BfcConfig::new(Bytes(0)));
    assert_eq!(allocate(&pool, 0), Block::EMPTY);
    out_of_memory(&pool, 1);
    assert_eq!(source.calls(), 0);
}

/// A source whose every call calls the pool that owns it.
fn reentrant_pool() -> (Arc<BfcAllocator>, Arc<FakeSource>, Arc<Mutex<Vec<String>>>) {
    let source = FakeSource::new(Nature::default());
    let pool = Arc::new(BfcAllocator::new("reentrant", source.clone(), BfcConfig::new(Bytes::mib(8))));
    let said = Arc::new(Mutex::new(Vec::new()));
    let (inner, notes): (Weak<BfcAllocator>, _) = (Arc::downgrade(&pool), Arc::clone(&said));
    let held = OnceLock::new();
    held.set(allocate(&pool, 300)).unwrap();
    source.set_hook(move || {
        let Some(pool) = inner.upgrade() else { return };
        let block: Block = *held.get().unwrap();
        let mut notes = notes.lock().unwrap();
        notes.push(pool.allocate(&Request::new(100)).unwrap_err().to_string());
        assert_eq!(try_free(&pool, block), Err(BlockError::Reentrant));
        assert_eq!(pool.retag(&block, Tag::default()), Err(BlockError::Reentrant));
        assert_eq!(pool.requested_bytes(&block), Err(BlockError::Reentrant));
        assert_eq!(pool.block_at(block.address), Err(BlockError::Reentrant));
        assert_eq!(pool.stats().bytes_requested, 300, "the figures before the call");
        assert!(!pool.clear_stats());
        assert_eq!(pool.trim(Bytes(0)), 0);
        assert!(pool.chunks().is_empty() && pool.regions().is_empty());
        assert_eq!(pool.ledger().total(), 0);
        assert_eq!(pool.allocate(&Request::new(0)), Ok(Block::EMPTY));
        pool.check_invariants().unwrap();
    });
    (pool, source, said)
}

#[test]
fn a_source_that_calls_back_gets_an_error_not_a_deadlock() {
    let (pool, source, said) = reentrant_pool();
    let large = allocate(&pool, 3 << 20);
    free(&pool, large);
    assert!(pool.trim(Bytes(0)) > 0);
    let expected = "reentrant: called back from its own sub-allocator or visitor";
    assert_eq!(*said.lock().unwrap(), [expected, expected]);
    source.clear_hook();
    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().bytes_requested, 300);
}

#[test]
fn while_one_thread_is_in_the_source_another_waits_its_turn() {
    let source = FakeSource::new(Nature::default());
    let pool = Arc::new(BfcAllocator::new("test", source.clone(), small_regions(Bytes::mib(64))));
    source.set_hook(|| std::thread::sleep(std::time::Duration::from_millis(1)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    allocate(&pool, 64 * KIB);
                }
            });
        }
    });
    assert_eq!(pool.stats().live_allocs, 16);
    pool.check_invariants().unwrap();
}

#[test]
fn a_source_that_panics_leaves_a_pool_that_works() {
    let (pool, source) = pool_over(Nature::default(), small_regions(Bytes::mib(1)));
    let kept = allocate(&pool, 1000);
    source.set_hook(|| std::panic::resume_unwind(Box::new("source")));
    assert!(catch_unwind(AssertUnwindSafe(|| allocate(&pool, 64 * KIB))).is_err());
    source.clear_hook();
    pool.check_invariants().unwrap();
    let block = allocate(&pool, 64 * KIB);
    free(&pool, block);
    free(&pool, kept);
    pool.check_invariants().unwrap();
    drop(pool);
    source.assert_all_returned();
}

#[test]
fn a_pool_that_goes_gives_back_what_is_still_in_use_too() {
    let (pool, source) = pool_over(Nature::default(), small_regions(Bytes::mib(1)));
    for _ in 0..20 {
        allocate(&pool, 5000);
    }
    let regions = pool.regions().len() as u64;
    drop(pool);
    assert_eq!(source.frees(), regions);
    source.assert_all_returned();
}

#[test]
fn a_block_of_another_pool_is_foreign_even_if_its_fields_fit() {
    let (first, _) = pool_over(Nature::default(), BfcConfig::new(Bytes::mib(1)));
    let (second, _) = pool_over(Nature::default(), BfcConfig::new(Bytes::mib(1)));
    let (mine, other) = (allocate(&first, 100), allocate(&second, 100));
    assert_eq!(
        (mine.address, mine.bytes, mine.id, mine.chunk),
        (other.address, other.bytes, other.id, other.chunk)
    );
    assert_eq!(try_free(&first, other), Err(BlockError::Foreign { block: other }));
    free(&first, mine);
    free(&second, other);
}

#[test]
fn a_stale_block_never_frees_the_one_that_took_its_place() {
    let (pool, _) = pool_over(Nature::default(), BfcConfig::new(Bytes::mib(1)));
    let old = allocate(&pool, 100);
    free(&pool, old);
    let new = allocate(&pool, 100);
    assert_eq!((old.address, old.chunk), (new.address, new.chunk));
    assert_eq!(try_free(&pool, old), Err(BlockError::Stale { block: old }));
    assert_eq!(pool.stats().live_allocs, 1);
    free(&pool, new);
}
