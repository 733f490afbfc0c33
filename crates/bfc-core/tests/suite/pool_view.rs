//! The answers of allocators as pools, and those of allocators without a view.

use std::sync::Arc;

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, AddressSpace, AllocError, Allocator, BfcAllocator, BfcConfig, Block, BlockError,
    Bytes, Category, GuardAllocator, GuardConfig, HostMemory, Lifetime, MIB, MemoryKind, PackedAllocator,
    PackedConfig, Packing, PackingOptions, PassthroughAllocator, RecordError, Request, Stats, Stream, Tag,
    TimingCounter, Verdict,
};

/// The least that an allocator implements.
#[derive(Debug)]
struct Plain;

// SAFETY: no block has memory.
unsafe impl Allocator for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    fn allocate(&self, _request: &Request<'_>) -> Result<Block, AllocError> {
        Ok(Block::EMPTY)
    }

    unsafe fn deallocate(&self, _block: Block) -> Result<(), BlockError> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        (stats.bytes_in_use, stats.bytes_limit) = (7, Some(10));
        stats
    }

    fn tracks_sizes(&self) -> bool {
        false
    }
}

#[test]
fn an_allocator_without_a_view_says_what_it_does_not_support() {
    let plain: &dyn Allocator = &Plain;
    assert!(plain.as_pool().is_none());
    let (block, request) = (Block::EMPTY, Request::new(5));
    assert_eq!(plain.requested_bytes(&block), Err(BlockError::Untracked));
    assert_eq!(plain.block_at(0), Err(BlockError::Untracked));
    assert_eq!(plain.tag(&block), Err(BlockError::Untracked));
    assert_eq!(plain.recategorize(&block, &[], Category::Output), Err(BlockError::Untracked));
    assert_eq!(plain.retag(&block, Tag::default()), Ok(()));
    let snapshot = plain.snapshot();
    assert_eq!((snapshot.stats.bytes_in_use, snapshot.ledger.total()), (7, 0));
    assert_eq!(
        (plain.would_fit(&request, &[]), plain.packing_counts(), plain.find_damage()),
        (None, None, None)
    );
    let report = plain.refusal(&request, Verdict::Exhausted);
    assert_eq!((report.allocator.as_str(), report.in_use, report.limit), ("plain", 7, Some(10)));
    assert_eq!((plain.max_satisfiable_bytes(), plain.wait_key(&request).class), (u64::MAX, None));
    assert!(plain.has_orphaned_blocks(&[]));
    assert!(plain.stream().is_none());
    let stream = Stream::new(Arc::new(SimDevice::new(Bytes::mib(1)))).unwrap();
    let unordered = RecordError::Unordered { allocator: "plain".to_owned() };
    assert_eq!(plain.record_stream(&block, &stream), Err(unordered));
    assert!(!plain.clear_stats() && !plain.supports_resize());
    // SAFETY: the block has no memory.
    assert_eq!(unsafe { plain.resize(&block, 8) }, Ok(None));
}

fn guard(inner: Arc<dyn Allocator>) -> Arc<dyn Allocator> {
    Arc::new(GuardAllocator::new(inner, GuardConfig::default()).unwrap())
}

fn host_pool(bytes: Bytes) -> Arc<dyn Allocator> {
    let config = BfcConfig::new(bytes).with_allow_growth(false);
    Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config))
}

#[test]
fn a_guard_asks_the_pool_about_its_own_blocks() {
    let pool = host_pool(Bytes::mib(4));
    let guarded = guard(pool.clone());
    assert_eq!(guarded.regions(), pool.regions());
    let take = |bytes| guarded.allocate(&Request::new(bytes)).unwrap();
    let [first, second] = [take(3 * MIB), take(MIB / 2)];
    assert_eq!(guarded.would_fit(&Request::new(2 * MIB), &[]), Some(false));
    assert_eq!(guarded.would_fit(&Request::new(2 * MIB), &[second]), Some(false));
    assert_eq!(guarded.would_fit(&Request::new(2 * MIB), &[first]), Some(true));
    // The canaries need memory too.
    assert_eq!(guarded.would_fit(&Request::new(4 * MIB), &[first, second]), Some(false));
    assert!(guarded.max_satisfiable_bytes() < MIB);
    guarded.check_invariants().unwrap();
    // SAFETY: no code uses the block.
    unsafe { guarded.deallocate(first) }.unwrap();
    // The block is in the quarantine, which a request empties.
    assert_eq!(guarded.would_fit(&Request::new(2 * MIB), &[]), Some(true));
    assert_eq!(guarded.max_satisfiable_bytes(), u64::MAX);
    // SAFETY: as above.
    unsafe { guarded.deallocate(second) }.unwrap();
}

#[test]
fn some_pools_alone_resize_blocks_in_place() {
    let source = || Arc::new(AddressOnlyMemory::new());
    let resizes = |allocator: &dyn Allocator| allocator.supports_resize();
    assert!(resizes(&*host_pool(Bytes::mib(1))));
    // A guard has a canary behind each block, and a direct block is a region of its source.
    assert!(!resizes(&*guard(host_pool(Bytes::mib(1)))));
    assert!(!resizes(&PassthroughAllocator::new("direct", source())));
    let config = BfcConfig::new(Bytes::mib(1)).with_timing_counter(Arc::new(TimingCounter::default()));
    assert!(!resizes(&BfcAllocator::new("counted", source(), config)));
    let packing =
        Packing::solve(&[Lifetime { bytes: 1024, start: 0, end: 1 }], &PackingOptions::default()).unwrap();
    let config = PackedConfig::packed(Bytes::mib(1), Arc::new(packing));
    assert!(!resizes(&PackedAllocator::new("packed", source(), config)));
}
