use std::sync::Weak;

use super::*;
use crate::test_pool::TestPool;
use bfc_core::{AddressSpace, Allocation, Category, PoolId, Tag};

fn sizes(total_bytes: u64, high_water_bytes: u64, live_bytes: u64) -> Sizes {
    Sizes { total_bytes, high_water_bytes, live_bytes }
}

fn recorded_bytes(tracking: &TrackingAllocator) -> Vec<i64> {
    tracking.records().iter().map(|record| record.bytes).collect()
}

fn allocate(tracking: &TrackingAllocator, bytes: u64) -> Block {
    tracking.allocate(&Request::new(bytes)).unwrap()
}

fn free(tracking: &TrackingAllocator, block: Block) -> Result<(), BlockError> {
    // SAFETY: the memory of test pools is never touched.
    unsafe { tracking.deallocate(block) }
}

/// Upstream's `SimpleNoTracking`, first half.
#[test]
fn without_any_tracking_only_the_total_is_counted() {
    let tracking = TrackingAllocator::with_records(TestPool::not_tracking(), false);
    assert!(!tracking.tracks_sizes());
    let first = allocate(&tracking, 4);
    free(&tracking, first).unwrap();
    let second = allocate(&tracking, 12);
    assert_eq!(tracking.sizes(), sizes(16, 0, 0));
    assert_eq!(recorded_bytes(&tracking), [4, 12]);
    free(&tracking, second).unwrap();
    assert_eq!(tracking.sizes(), sizes(16, 0, 0));
}

/// Upstream's `SimpleNoTracking`, second half.
#[test]
fn sizes_are_tracked_locally_if_the_inner_allocator_does_not() {
    let tracking = TrackingAllocator::with_records(TestPool::not_tracking(), true);
    assert!(tracking.tracks_sizes());
    let first = allocate(&tracking, 4);
    assert_eq!((tracking.requested_bytes(&first), first.bytes, first.id), (Ok(4), 4, 1));
    free(&tracking, first).unwrap();
    let second = allocate(&tracking, 12);
    assert_eq!((tracking.requested_bytes(&second), second.bytes, second.id), (Ok(12), 12, 2));
    assert_eq!(tracking.block_at(second.address), Ok(second));
    assert_eq!(tracking.sizes(), sizes(16, 12, 12));
    assert_eq!(recorded_bytes(&tracking), [4, -4, 12]);
    free(&tracking, second).unwrap();
    assert_eq!(recorded_bytes(&tracking), [4, -4, 12, -12]);
    assert_eq!(tracking.sizes(), sizes(16, 12, 0));
}

/// Upstream's `SimpleTracking`.
#[test]
fn sizes_of_an_inner_allocator_that_tracks_them_are_used() {
    for track_sizes in [false, true] {
        let tracking = TrackingAllocator::with_records(TestPool::tracking(), track_sizes);
        assert!(tracking.tracks_sizes());
        let first = allocate(&tracking, 12);
        free(&tracking, first).unwrap();
        let second = allocate(&tracking, 4);
        assert_eq!(tracking.requested_bytes(&second), Ok(4));
        assert_eq!(tracking.sizes(), sizes(16, 12, 4));
        free(&tracking, second).unwrap();
        assert_eq!(tracking.sizes(), sizes(16, 12, 0));
        assert_eq!(recorded_bytes(&tracking), [12, -12, 4, -4]);
    }
}

/// Upstream's `OutOfMemory`.
#[test]
fn a_failed_allocation_passes_through_uncounted() {
    let tracking = TrackingAllocator::with_records(TestPool::build(true, 0), true);
    assert!(tracking.allocate(&Request::new(12)).is_err());
    assert_eq!(tracking.sizes(), Sizes::default());
    assert!(tracking.records().is_empty());
}

/// Upstream's `FreeNullPtr`.
#[test]
fn the_empty_block_is_not_counted() {
    let tracking = TrackingAllocator::with_records(TestPool::not_tracking(), true);
    let empty = allocate(&tracking, 0);
    assert!(empty.is_empty());
    free(&tracking, empty).unwrap();
    assert_eq!(tracking.sizes(), Sizes::default());
    assert!(tracking.records().is_empty());
}

#[test]
fn records_are_kept_only_on_request() {
    let tracking = TrackingAllocator::new(TestPool::tracking(), true);
    allocate(&tracking, 4);
    assert!(tracking.records().is_empty());
}

#[test]
fn each_live_allocation_holds_one_reference() {
    let pool = TestPool::tracking();
    let tracking = TrackingAllocator::new(Arc::clone(&pool), true);
    let (op, weak): (Arc<dyn Allocator>, _) = (tracking.clone(), Arc::downgrade(&tracking));
    drop(tracking);
    let [a, b] = [4, 4].map(|bytes| Allocation::new(&op, &Request::new(bytes)).unwrap());
    assert_eq!(weak.strong_count(), 3);
    drop(a);
    drop(op);
    assert_eq!(weak.strong_count(), 1);
    drop(b);
    assert_eq!((weak.strong_count(), Arc::strong_count(&pool)), (0, 1));
}

#[test]
fn a_wrongly_freed_block_changes_no_count() {
    for pool in [TestPool::tracking(), TestPool::not_tracking()] {
        let tracking = TrackingAllocator::new(Arc::clone(&pool), true);
        let (first, second) = (allocate(&tracking, 64), allocate(&tracking, 64));
        free(&tracking, first).unwrap();
        // The second block keeps 64 bytes live, so the count alone does not give the double free away.
        assert_eq!(free(&tracking, first), Err(BlockError::Stale { block: first }));
        let larger = allocate(&TrackingAllocator::new(pool, true), 1000);
        assert!(free(&tracking, larger).is_err());
        let made_up = Block { address: 1, bytes: 8, id: 99, chunk: 0, pool: PoolId::next() };
        assert!(free(&tracking, made_up).is_err());
        assert_eq!(tracking.sizes(), sizes(128, 128, 64));
        free(&tracking, second).unwrap();
        assert_eq!(tracking.sizes(), sizes(128, 128, 0));
    }
}

#[test]
fn only_requests_without_an_owner_are_charged_to_the_op() {
    let pool = TestPool::tracking();
    let (op, other) =
        (OwnerId::intern(OwnerId::ROOT, "tracking-op"), OwnerId::intern(OwnerId::ROOT, "tracking-other"));
    let tracking = TrackingAllocator::build(Arc::clone(&pool), true, op);
    tracking.allocate(&Request::new(10).with_category(Category::Output)).unwrap();
    tracking.allocate(&Request::new(5).with_tag(Tag { owner: other, category: Category::Output })).unwrap();
    assert_eq!((pool.ledger().owner(op).own, pool.ledger().owner(other).own), (10, 5));
    assert_eq!(tracking.sizes().total_bytes, 15);
}

#[test]
fn bytes_are_classed_by_their_requested_category() {
    let tracking = TrackingAllocator::new(TestPool::tracking(), true);
    for (index, category) in Category::ALL.into_iter().enumerate() {
        tracking.allocate(&Request::new(1 << index).with_category(category)).unwrap();
    }
    let bit = |category: Category| 1_u64 << category.index();
    let all = Category::ALL.map(bit).iter().sum::<u64>();
    let temporary =
        [Category::Temporary, Category::Workspace, Category::Communication].map(bit).iter().sum::<u64>();
    let persistent =
        [Category::Parameter, Category::OptimizerState, Category::Mapped].map(bit).iter().sum::<u64>();
    assert_eq!(tracking.held().counts.classes, [temporary, all - temporary - persistent, persistent]);
    assert_eq!(tracking.sizes().total_bytes, all);
}

/// Upstream's rule for temporaries that an op sets as its output.
#[test]
fn scratch_that_becomes_a_result_is_counted_as_a_result() {
    let tracking = TrackingAllocator::new(TestPool::tracking(), true);
    let scratch = allocate(&tracking, 10);
    let result = allocate(&tracking, 32);
    assert_eq!(tracking.held().counts.classes, [42, 0, 0]);
    for category in [Category::Output, Category::Activation] {
        tracking.retag(&result, Tag { category, ..Tag::default() }).unwrap();
        assert_eq!(tracking.held().counts.classes, [10, 32, 0]);
    }
    free(&tracking, scratch).unwrap();
    assert!(tracking.retag(&scratch, Tag { category: Category::Output, ..Tag::default() }).is_err());
    assert_eq!(tracking.held().counts.classes, [10, 32, 0]);
    assert_eq!(tracking.sizes(), sizes(42, 42, 32));
}

#[test]
fn tags_and_the_ledger_are_those_of_the_inner_allocator() {
    for inner in [TestPool::tracking(), TestPool::not_tracking()] {
        let tracking = TrackingAllocator::new(Arc::clone(&inner), true);
        let tag = Tag { owner: OwnerId::ROOT, category: Category::Gradient };
        let block = tracking.allocate(&Request::new(7).with_tag(tag)).unwrap();
        assert_eq!(tracking.tag(&block), Ok(tag));
        assert_eq!(tracking.ledger().category(Category::Gradient), 7);
        assert_eq!((tracking.name(), tracking.memory_kind()), (inner.name(), inner.memory_kind()));
        assert_eq!(tracking.stats(), inner.stats());
    }
}

#[test]
fn tracking_allocators_nest() {
    let pool = TestPool::tracking();
    let outer = TrackingAllocator::new(Arc::clone(&pool), true);
    let inner: Arc<dyn Allocator> = TrackingAllocator::new(outer.clone(), true);
    let allocation = Allocation::new(&inner, &Request::new(100)).unwrap();
    assert_eq!(outer.sizes(), sizes(100, 100, 100));
    drop(allocation);
    assert_eq!(outer.sizes(), sizes(100, 100, 0));
    assert_eq!(pool.stats().live_allocs, 0);
}

/// A pool that looks at the account of the allocator above it whenever it is called.
#[derive(Debug)]
struct Spy {
    pool: Arc<dyn Allocator>,
    above: Mutex<Weak<TrackingAllocator>>,
    /// Live bytes in the account, and in the pool without the block that comes or goes.
    seen: Mutex<Vec<(u64, u64)>>,
}

impl Spy {
    fn look(&self, others: u64) {
        let above = lock(&self.above).upgrade().unwrap();
        lock(&self.seen).push((above.sizes().live_bytes, others));
    }
}

// SAFETY: blocks are those of the inner pool.
unsafe impl Allocator for Spy {
    fn name(&self) -> &str {
        "spy"
    }

    fn memory_kind(&self) -> MemoryKind {
        self.pool.memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let block = self.pool.allocate(request)?;
        self.look(self.pool.stats().bytes_in_use - block.bytes);
        Ok(block)
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        self.look(self.pool.stats().bytes_in_use - block.bytes);
        // SAFETY: the caller keeps the contract.
        unsafe { self.pool.deallocate(block) }
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }

    fn tracks_sizes(&self) -> bool {
        true
    }
}

/// So the sum of all accounts never exceeds what the pool has in use, at whatever moment another thread looks.
#[test]
fn the_tracker_counts_a_block_while_it_is_allocated() {
    let spy = Arc::new(Spy {
        pool: TestPool::tracking(),
        above: Mutex::new(Weak::new()),
        seen: Mutex::new(Vec::new()),
    });
    let tracking = TrackingAllocator::new(spy.clone(), true);
    *lock(&spy.above) = Arc::downgrade(&tracking);
    let first = allocate(&tracking, 30);
    let second = allocate(&tracking, 12);
    free(&tracking, first).unwrap();
    free(&tracking, second).unwrap();
    assert_eq!(*lock(&spy.seen), [(0, 0), (30, 30), (12, 12), (0, 0)]);
}

mod model {
    //! Random sequences against the plainest account there is.

    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u64),
        Free(prop::sample::Index),
        FreeTwice(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0u64..5000).prop_map(Step::Allocate),
            2 => any::<prop::sample::Index>().prop_map(Step::Free),
            1 => any::<prop::sample::Index>().prop_map(Step::FreeTwice),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn the_account_is_that_of_a_simple_model(
            steps in steps(), inner_tracks in any::<bool>(), track_sizes in any::<bool>(),
        ) {
            let pool = TestPool::build(inner_tracks, 40_000);
            let tracking = TrackingAllocator::with_records(pool.clone(), track_sizes);
            let sized = inner_tracks || track_sizes;
            let mut live: Vec<Block> = Vec::new();
            let mut expected = Sizes::default();
            let mut records = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(bytes) => {
                        let Ok(block) = tracking.allocate(&Request::new(bytes)) else { continue };
                        if bytes == 0 { continue }
                        live.push(block);
                        expected.total_bytes += bytes;
                        records.push(bytes as i64);
                    }
                    Step::Free(index) | Step::FreeTwice(index) if !live.is_empty() => {
                        let block = live.swap_remove(index.index(live.len()));
                        free(&tracking, block).unwrap();
                        if sized { records.push(-(block.bytes as i64)) }
                        if matches!(step, Step::FreeTwice(_)) {
                            prop_assert!(free(&tracking, block).is_err());
                        }
                    }
                    _ => {}
                }
                if sized {
                    expected.live_bytes = live.iter().map(|block| block.bytes).sum();
                    expected.high_water_bytes = expected.high_water_bytes.max(expected.live_bytes);
                }
                prop_assert_eq!(tracking.sizes(), expected);
                prop_assert_eq!(pool.stats().live_allocs, live.len() as u64);
            }
            // A double free that the count alone does not betray is counted and taken back.
            let sum = |records: &[i64]| records.iter().sum::<i64>();
            prop_assert_eq!(sum(&recorded_bytes(&tracking)), sum(&records));
        }
    }
}

/// Tracking forwards the pool's knowledge of streams.
#[test]
fn memory_used_on_other_streams_passes_through() {
    use bfc_core::sim::{MemoryUse, Pace, SimDevice};
    use bfc_core::{BfcAllocator, BfcConfig, Bytes, DeviceMemory, MIB, Stream, StreamAllocator};

    let device = Arc::new(SimDevice::new(Bytes::mib(64)).with_pace(Pace::OnDemand));
    let [compute, copies] = [(); 2].map(|()| Stream::new(device.clone()).unwrap());
    let source = Arc::new(DeviceMemory::new(device.clone()));
    let pool = BfcAllocator::new("sim", source, BfcConfig::new(Bytes::mib(8)));
    let pool = Arc::new(StreamAllocator::new(Arc::new(pool), compute));
    let tracking = TrackingAllocator::with_records(pool.clone(), true);
    let wrapper: &dyn Allocator = &*tracking;
    let block = allocate(&tracking, MIB);
    wrapper.record_stream(&block, &copies).unwrap();
    device.launch(copies.handle(), &[MemoryUse::of(&block)]).unwrap();
    assert_eq!(wrapper.would_fit(&Request::new(8 * MIB), &[]), Some(false));
    assert_eq!(wrapper.would_fit(&Request::new(8 * MIB), &[block]), Some(true));
    free(&tracking, block).unwrap();
    assert_eq!((tracking.sizes().live_bytes, pool.pending_frees().bytes), (0, MIB));
    assert_eq!(wrapper.trim(Bytes(0)), 0, "the stream is not done");
    device.finish(copies.handle());
    assert_eq!(wrapper.trim(Bytes(0)), pool.stats().peak_bytes_reserved);
}
