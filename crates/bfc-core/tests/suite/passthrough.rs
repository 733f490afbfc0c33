//! Every request goes to the source, and the accounts match those of a pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bfc_core::{
    AddressOnlyMemory, AllocError, AllocationAttributes, Allocator, Block, BlockError, Bytes, Category,
    DeviceMemory, ExpectedFrees, HostMemory, MemoryKind, OwnerId, PassthroughAllocator, PoolView, Request,
    SourceError, Tag, Verdict, sim::SimDevice,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::source::{Fails, FakeSource, Nature};

fn over(source: &Arc<FakeSource>) -> PassthroughAllocator {
    PassthroughAllocator::new("through", source.clone()).with_retry_timeout(Duration::ZERO)
}

fn allocate(allocator: &dyn Allocator, bytes: u64) -> Block {
    allocator.allocate(&Request::new(bytes)).unwrap()
}

fn free(allocator: &dyn Allocator, block: Block) -> Result<(), BlockError> {
    // SAFETY: these tests use no memory of freed blocks.
    unsafe { allocator.deallocate(block) }
}

#[test]
fn every_block_is_a_region_of_its_own() {
    let source = FakeSource::new(Nature::default());
    let allocator = over(&source);
    let blocks = [1, 100, 256, 1 << 20].map(|bytes| allocate(&allocator, bytes));
    assert_eq!(blocks.map(|block| block.bytes), [1, 100, 256, 1 << 20]);
    assert_eq!((source.calls(), source.frees()), (4, 0));
    for block in blocks {
        free(&allocator, block).unwrap();
    }
    assert_eq!((source.calls(), source.frees()), (4, 4));
    source.assert_all_returned();
}

#[test]
fn figures_and_ledger_are_exact() {
    let allocator = PassthroughAllocator::new("through", Arc::new(AddressOnlyMemory::new()));
    let owner = OwnerId::intern(OwnerId::ROOT, "passthrough-owner");
    let tag = Tag { owner, category: Category::Gradient };
    let first = allocator.allocate(&Request::new(100).with_tag(tag)).unwrap();
    let second = allocate(&allocator, 50);
    let stats = allocator.stats();
    assert_eq!((stats.bytes_in_use, stats.bytes_requested, stats.bytes_reserved), (150, 150, 150));
    assert_eq!((stats.num_allocs, stats.live_allocs, stats.regions, stats.bytes_limit), (2, 2, 2, None));
    assert_eq!((allocator.tag(&first), allocator.requested_bytes(&first)), (Ok(tag), Ok(100)));
    assert_eq!(allocator.ledger().owner(owner).own, 100);
    allocator.retag(&first, Tag::default()).unwrap();
    assert_eq!((allocator.ledger().owner(owner).own, allocator.ledger().total()), (0, 150));
    free(&allocator, first).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.bytes_in_use, stats.peak_bytes_in_use, stats.bytes_reserved), (50, 150, 50));
    assert_eq!(stats.peak_bytes_reserved, 150);
    assert!(allocator.clear_stats());
    assert_eq!((allocator.stats().peak_bytes_in_use, allocator.stats().num_allocs), (50, 0));
    free(&allocator, second).unwrap();
    assert_eq!(allocator.ledger().total(), 0);
}

#[test]
fn wrong_blocks_are_typed_errors_though_addresses_come_again() {
    let allocator = PassthroughAllocator::new("through", Arc::new(AddressOnlyMemory::new()));
    let other = PassthroughAllocator::new("other", Arc::new(AddressOnlyMemory::new()));
    let first = allocate(&allocator, 100);
    free(&allocator, first).unwrap();
    let second = allocate(&allocator, 100);
    assert_eq!((second.address, second.chunk), (first.address, first.chunk));
    assert_eq!(free(&allocator, first), Err(BlockError::Stale { block: first }));
    let foreign = allocate(&other, 100);
    assert_eq!(free(&allocator, foreign), Err(BlockError::Foreign { block: foreign }));
    for wrong in [Block { bytes: 99, ..second }, Block { id: 7, ..second }, Block { chunk: 9, ..second }] {
        assert_eq!(free(&allocator, wrong), Err(BlockError::Unknown { block: wrong }));
    }
    assert_eq!(allocator.block_at(second.address), Ok(second));
    let interior = second.address + 1;
    assert_eq!(allocator.block_at(interior), Err(BlockError::NoBlockAt { address: interior }));
    assert_eq!(free(&allocator, second), Ok(()));
    assert_eq!(free(&allocator, Block::EMPTY), Ok(()));
}

#[test]
fn the_limit_holds_and_the_refusal_says_why() {
    let allocator =
        PassthroughAllocator::new("through", Arc::new(AddressOnlyMemory::new())).with_limit(Bytes(1000));
    let owner = OwnerId::intern(OwnerId::ROOT, "passthrough-holder");
    let held = allocator.allocate(&Request::new(600).with_tag(Tag { owner, ..Tag::default() })).unwrap();
    let error = allocator.allocate(&Request::new(401)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.verdict, report.limit, report.in_use), (Verdict::Exhausted, Some(1000), 600));
    assert_eq!(report.holders, [(owner, 600)]);
    let error = allocator.allocate(&Request::new(1001)).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().verdict, Verdict::OverLimit);
    let rest = allocate(&allocator, 400);
    free(&allocator, held).unwrap();
    free(&allocator, rest).unwrap();
    assert!(allocator.allocate(&Request::new(1000)).is_ok());
}

#[test]
fn impossible_requests_never_reach_the_source() {
    let source = FakeSource::new(Nature::default());
    let allocator = over(&source);
    assert_eq!(allocator.allocate(&Request::new(0)), Ok(Block::EMPTY));
    let three = allocator.allocate(&Request::new(8).with_alignment(3));
    assert_eq!(three, Err(AllocError::BadAlignment { allocator: "through".to_owned(), alignment: 3 }));
    let too_large = AllocError::TooLarge { allocator: "through".to_owned(), bytes: u64::MAX, alignment: 64 };
    assert_eq!(allocator.allocate(&Request::new(u64::MAX)), Err(too_large));
    assert_eq!(source.calls(), 0);
}

#[test]
fn a_source_that_fails_or_breaks_its_contract_leaves_no_trace() {
    let natures = [
        Nature { fails: Fails::Always, ..Nature::default() },
        Nature { fails: Fails::Always, broken: true, ..Nature::default() },
        Nature { missing: 8, ..Nature::default() },
    ];
    for nature in natures {
        let source = FakeSource::new(nature);
        let allocator = over(&source);
        let error = allocator.allocate(&Request::new(100)).unwrap_err();
        match error {
            AllocError::OutOfMemory(report) => assert_eq!(report.verdict, Verdict::Exhausted),
            AllocError::Source { error, .. } => assert!(!matches!(error, SourceError::Exhausted { .. })),
            other => panic!("{other}"),
        }
        assert_eq!((allocator.stats().bytes_reserved, allocator.stats().live_allocs), (0, 0));
        drop(allocator);
        source.assert_all_returned();
    }
}

#[test]
fn an_alignment_that_the_source_refuses_is_made_by_hand() {
    let device = Arc::new(SimDevice::new(Bytes::mib(64)));
    let allocator = PassthroughAllocator::new("sim", Arc::new(DeviceMemory::new(device.clone())));
    let blocks: Vec<Block> = (0..8)
        .map(|_| allocator.allocate(&Request::new(1000).with_alignment(1 << 16)).unwrap())
        .inspect(|block| assert_eq!((block.address % (1 << 16), block.bytes), (0, 1000)))
        .collect();
    for block in blocks {
        free(&allocator, block).unwrap();
    }
    assert_eq!(device.live(MemoryKind::Device), []);
}

#[test]
fn a_block_that_is_larger_than_asked_for_may_be_used_in_full() {
    let source = FakeSource::new(Nature { extra: 24, ..Nature::default() });
    let allocator = over(&source);
    let block = allocate(&allocator, 100);
    assert_eq!((block.bytes, allocator.requested_bytes(&block)), (124, Ok(100)));
    assert_eq!((allocator.stats().bytes_in_use, allocator.stats().bytes_requested), (124, 100));
    free(&allocator, block).unwrap();
    source.assert_all_returned();
}

#[test]
fn what_is_still_out_goes_back_when_the_allocator_is_dropped() {
    let memory = Arc::new(HostMemory::new());
    let allocator = PassthroughAllocator::new("cpu", memory.clone());
    let [first, _, _] = [(); 3].map(|()| allocate(&allocator, 1000));
    free(&allocator, first).unwrap();
    assert_eq!(memory.live_regions(), 2);
    drop(allocator);
    assert_eq!(memory.live_regions(), 0);
}

#[test]
fn a_request_waits_only_if_another_thread_holds_memory() {
    let allocator = PassthroughAllocator::new("through", Arc::new(AddressOnlyMemory::new()))
        .with_limit(Bytes(1000))
        .with_retry_timeout(Duration::from_secs(60));
    let first = allocate(&allocator, 1000);
    // No other thread could free: the request does not wait for a minute.
    assert!(allocator.allocate(&Request::new(1)).is_err());
    assert_eq!(allocator.stats().retry.waits, 0);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| allocate(&allocator, 500));
        while allocator.stats().retry.waiting == 0 {
            std::thread::yield_now();
        }
        free(&allocator, first).unwrap();
        assert_eq!(second.join().unwrap().bytes, 500);
    });
    let at_once = Request::new(1000).with_attributes(AllocationAttributes::no_retry());
    assert!(allocator.allocate(&at_once).is_err());
}

#[test]
fn calls_back_from_the_source_are_errors_and_no_deadlock() {
    let source = FakeSource::new(Nature::default());
    let allocator = Arc::new(over(&source));
    let held = allocate(&*allocator, 8);
    let inside = Arc::downgrade(&allocator);
    source.set_hook(move || {
        let allocator = inside.upgrade().unwrap();
        let reentrant = AllocError::Reentrant { allocator: "through".to_owned() };
        assert_eq!(allocator.allocate(&Request::new(8)), Err(reentrant));
        assert_eq!(free(&*allocator, held), Err(BlockError::Reentrant));
        assert_eq!(allocator.block_at(held.address), Err(BlockError::Reentrant));
        assert_eq!(allocator.tag(&held), Err(BlockError::Reentrant));
        assert_eq!(allocator.ledger().total(), 0);
        assert!(!allocator.clear_stats());
        assert!(allocator.stats().live_allocs > 0);
    });
    let block = allocate(&*allocator, 100);
    assert_eq!(free(&*allocator, block), Ok(()));
    source.clear_hook();
    assert_eq!(free(&*allocator, held), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_sequence_leaves_exactly_its_live_blocks(
        limit in prop_oneof![Just(None), Just(Some(20_000_u64))],
        ops in vec((any::<bool>(), 1..5000_u64, 0..10_u32, any::<usize>()), 1..200),
    ) {
        let source = FakeSource::new(Nature::default());
        let mut allocator = over(&source);
        if let Some(limit) = limit {
            allocator = allocator.with_limit(Bytes(limit));
        }
        let mut live: BTreeMap<u64, Block> = BTreeMap::new();
        for (take, bytes, alignment_log2, pick) in ops {
            let in_use: u64 = live.values().map(|block| block.bytes).sum();
            if take {
                let request = Request::new(bytes).with_alignment(1 << alignment_log2);
                match allocator.allocate(&request) {
                    Ok(block) => prop_assert!(live.insert(block.address, block).is_none()),
                    Err(_) => prop_assert!(limit.is_some_and(|limit| in_use + bytes > limit)),
                }
            } else if let Some(index) = pick.checked_rem(live.len()) {
                let address = *live.keys().nth(index).unwrap();
                let block = live.remove(&address).unwrap();
                prop_assert_eq!(free(&allocator, block), Ok(()));
            }
            let in_use: u64 = live.values().map(|block| block.bytes).sum();
            let stats = allocator.stats();
            prop_assert_eq!((stats.bytes_in_use, stats.bytes_reserved, allocator.ledger().total()), (in_use, in_use, in_use));
            prop_assert_eq!(stats.live_allocs, live.len() as u64);
            for block in live.values() {
                prop_assert_eq!(allocator.block_at(block.address), Ok(*block));
            }
        }
        drop(allocator);
        source.assert_all_returned();
    }
}

/// Waiters of equal size cost one failed attempt per free, not one each, and none if the free is too small.
#[test]
fn a_crowd_of_waiters_does_not_stampede() {
    let allocator = PassthroughAllocator::new("through", Arc::new(AddressOnlyMemory::new()));
    let allocator = allocator.with_limit(Bytes(1000)).with_retry_timeout(Duration::from_secs(60));
    let held = [allocate(&allocator, 100), allocate(&allocator, 900)];
    std::thread::scope(|scope| {
        let taker = |_| scope.spawn(|| free(&allocator, allocate(&allocator, 200)).unwrap());
        let takers: Vec<_> = (0..100).map(taker).collect();
        while allocator.stats().retry.waiting < 100 {
            std::thread::yield_now();
        }
        free(&allocator, held[0]).unwrap();
        assert_eq!(allocator.stats().retry.wakeups, 0, "100 bytes serve nobody");
        free(&allocator, held[1]).unwrap();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
    let retry = allocator.stats().retry;
    assert_eq!((retry.waits, retry.timeouts), (100, 0));
    assert!(retry.wakeups <= 300, "{retry:?}");
}

/// A consumer that has not called yet: see `ExpectedFrees`.
#[test]
fn a_request_waits_for_expected_frees_too() {
    let allocator = PassthroughAllocator::new("through", Arc::new(AddressOnlyMemory::new()));
    let allocator: Arc<dyn Allocator> = Arc::new(allocator.with_limit(Bytes(1000)));
    let held = allocate(&*allocator, 1000);
    let fails = |allocator: &Arc<dyn Allocator>| allocator.allocate(&Request::new(1)).is_err();
    assert!(fails(&allocator), "at once: nobody else is known");
    let expected = ExpectedFrees::new(&allocator);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while allocator.stats().retry.waiting == 0 {
                std::thread::yield_now();
            }
            free(&*allocator, held).unwrap();
        });
        assert_eq!(allocate(&*allocator, 1000).bytes, 1000);
    });
    drop(expected);
}
