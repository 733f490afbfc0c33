//! Collections of `hashbrown` and `allocator-api2` in host pools.

use std::alloc::Layout;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use allocator_api2::alloc::{AllocError, Allocator as _};
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec as PoolVec;
use bfc_core::{
    AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, Category, GuardAllocator, GuardConfig,
    HostMemory, KIB, MemoryKind, OwnerId, PoolAllocator, PoolAllocatorError, PoolView, SourceError, Span,
    SubAllocator, ThreadCache,
};

use crate::common::Random;

/// Host memory of which every `step`th request fails.
#[derive(Debug)]
struct FaultyHost {
    memory: HostMemory,
    calls: AtomicU64,
    step: u64,
}

// SAFETY: all regions come from host memory unchanged.
unsafe impl SubAllocator for FaultyHost {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) % self.step == self.step - 1 {
            return Err(SourceError::Exhausted { bytes });
        }
        self.memory.allocate(alignment, bytes)
    }

    unsafe fn free(&self, region: Span) {
        // SAFETY: the caller guarantees the contract.
        unsafe { self.memory.free(region) };
    }
}

fn host_pool(config: BfcConfig) -> (Arc<BfcAllocator>, PoolAllocator) {
    let pool = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
    let in_pool = PoolAllocator::new(pool.clone()).unwrap();
    (pool, in_pool)
}

/// One region whose requests do not wait.
fn fixed(limit: Bytes) -> BfcConfig {
    BfcConfig::new(limit).with_allow_growth(false).with_retry(false)
}

fn empty(pool: &BfcAllocator) {
    assert_eq!((pool.stats().live_allocs, pool.stats().bytes_in_use), (0, 0));
    pool.check_invariants().unwrap();
}

#[test]
fn a_map_a_vector_and_a_box_share_a_pool_and_leave_nothing() {
    let (pool, in_pool) = host_pool(BfcConfig::new(Bytes::mib(64)));
    let owner = OwnerId::intern(OwnerId::ROOT, "collections");
    let tagged = in_pool.clone().with_owner(owner).with_category(Category::Input);
    let mut map = hashbrown::HashMap::new_in(tagged.clone());
    let mut values = PoolVec::new_in(tagged.clone());
    let mut expected = HashMap::new();
    for (index, number) in (0..20_000_u64).map(|number| number.wrapping_mul(0x9E37_79B9)).enumerate() {
        map.insert(number, index);
        expected.insert(number, index);
        values.push(number);
        if index % 3 == 0 {
            assert_eq!(map.remove(&values[index / 2]), expected.remove(&values[index / 2]));
        }
    }
    let boxed = Box::new_in([7_u8; 300], in_pool);
    assert!(map.len() == expected.len() && map.iter().all(|(key, value)| expected[key] == *value));
    assert!(
        values.iter().enumerate().all(|(index, value)| *value == (index as u64).wrapping_mul(0x9E37_79B9))
    );
    let stats = pool.stats();
    let requested = map.allocation_size() + values.capacity() * 8 + 300;
    assert_eq!((stats.bytes_requested, stats.live_allocs), (requested as u64, 3));
    assert_eq!(pool.ledger().owner(owner).own, stats.bytes_in_use - 512);
    assert_eq!(pool.ledger().category(Category::Input), stats.bytes_in_use - 512);
    drop((map, values, boxed));
    empty(&pool);
}

#[test]
fn a_growing_vector_alone_in_a_pool_never_moves() {
    let (pool, in_pool) = host_pool(fixed(Bytes::mib(1)));
    let mut values = PoolVec::with_capacity_in(64, in_pool);
    let start = values.as_ptr();
    for value in 0..100_000_u64 {
        values.push(value);
        assert_eq!(values.as_ptr(), start);
    }
    // Moving would have required the old and the new block at the same time.
    assert_eq!(pool.stats().peak_bytes_in_use, pool.stats().bytes_in_use);
    values.truncate(100);
    values.shrink_to_fit();
    assert_eq!((values.as_ptr(), pool.stats().bytes_in_use), (start, 1024));
    assert!(values.iter().copied().eq(0..100));
    drop(values);
    empty(&pool);
}

#[test]
fn layouts_of_any_alignment_and_no_size_are_served() {
    let (pool, in_pool) = host_pool(BfcConfig::new(Bytes::mib(16)));
    for shift in 0..=14 {
        for size in [0, 1, 100, 5000] {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            let block = in_pool.allocate_zeroed(layout).unwrap();
            assert_eq!((block.len(), block.as_ptr().addr() % layout.align()), (size, 0));
            assert_eq!(pool.stats().bytes_requested, size as u64);
            // The new alignment is larger, so the block may have to move.
            let larger = Layout::from_size_align(size + 300, 1 << 15).unwrap();
            // SAFETY: the block is live and has this layout.
            let grown = unsafe { in_pool.grow_zeroed(block.cast(), layout, larger) }.unwrap();
            assert_eq!(grown.as_ptr().addr() % larger.align(), 0);
            // SAFETY: the block is live and initialized.
            assert!(unsafe { grown.as_ref() }.iter().all(|byte| *byte == 0));
            // SAFETY: the block is live and has this layout.
            let shrunk = unsafe { in_pool.shrink(grown.cast(), larger, layout) }.unwrap();
            assert_eq!(pool.stats().bytes_requested, size as u64);
            // SAFETY: the block is live and has this layout.
            unsafe { in_pool.deallocate(shrunk.cast(), layout) };
        }
    }
    empty(&pool);
}

/// Runs vectors that grow, shrink and die at random, beside vectors of the standard library.
fn random_vectors(pool: &dyn Allocator, in_pool: &PoolAllocator, seed: u64, steps: usize) -> u64 {
    let mut random = Random(seed);
    let mut vectors: Vec<(PoolVec<u16, PoolAllocator>, Vec<u16>)> = Vec::new();
    let mut refused = 0;
    for step in 0..steps {
        let pick = random.below(8) as usize;
        if pick >= vectors.len() {
            vectors.push((PoolVec::new_in(in_pool.clone()), Vec::new()));
            continue;
        }
        let (ours, theirs) = &mut vectors[pick];
        match random.below(8) {
            0..=4 => {
                let more = random.below(3000) as usize;
                match ours.try_reserve_exact(more) {
                    Ok(()) => {
                        ours.extend_from_slice(&vec![step as u16; more]);
                        theirs.extend_from_slice(&vec![step as u16; more]);
                    }
                    Err(_) => refused += 1,
                }
            }
            5..=6 => {
                let keep = random.below(1 + ours.len() as u64) as usize;
                ours.truncate(keep);
                theirs.truncate(keep);
                // Pools that cannot shrink in place need memory for the move.
                if pool.supports_resize() {
                    ours.shrink_to_fit();
                }
            }
            _ => drop(vectors.swap_remove(pick)),
        }
        assert!(vectors.iter().all(|(ours, theirs)| **ours == **theirs), "step {step}");
    }
    refused
}

#[test]
fn random_vectors_keep_their_values_and_the_pool_its_sums() {
    for (seed, config) in [
        fixed(Bytes::kib(32)),
        fixed(Bytes::mib(1)),
        BfcConfig::tensorflow(Bytes::mib(1)).with_retry(false),
        BfcConfig::new(Bytes::mib(1)).with_thread_cache(ThreadCache::new()).with_retry(false),
    ]
    .into_iter()
    .enumerate()
    {
        let (pool, in_pool) = host_pool(config);
        let refused = random_vectors(&*pool, &in_pool, seed as u64, 3000);
        assert_eq!(refused > 0, seed == 0, "{refused} refused");
        empty(&pool);
    }
}

/// The pool takes many small regions, so the fault comes at each point of a run.
#[test]
fn a_fault_at_any_request_changes_no_vector() {
    for fault in 1..12 {
        let source =
            Arc::new(FaultyHost { memory: HostMemory::new(), calls: AtomicU64::new(0), step: fault });
        let config = BfcConfig::new(Bytes::mib(1)).with_first_region(Bytes(256)).with_retry(false);
        let pool = Arc::new(BfcAllocator::new("faulty", source, config));
        let in_pool = PoolAllocator::new(pool.clone()).unwrap();
        random_vectors(&*pool, &in_pool, fault, 400);
        empty(&pool);
    }
}

#[test]
fn guards_move_vectors_and_find_no_damage() {
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), fixed(Bytes::mib(4))));
    let guard: Arc<dyn Allocator> = Arc::new(GuardAllocator::new(pool, GuardConfig::default()).unwrap());
    let in_pool = PoolAllocator::new(guard.clone()).unwrap();
    random_vectors(&*guard, &in_pool, 5, 300);
    assert_eq!((guard.find_damage(), guard.bytes_in_use()), (Some(vec![]), 0));
}

#[test]
fn threads_send_collections_to_each_other() {
    let (pool, in_pool) = host_pool(BfcConfig::new(Bytes::mib(8)));
    let (sender, receiver) = std::sync::mpsc::channel();
    let other = in_pool.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..200_u64 {
                let mut values = PoolVec::new_in(other.clone());
                values.extend(round..round + 100);
                sender.send(values).unwrap();
            }
        });
        scope.spawn(move || {
            for (round, mut values) in receiver.into_iter().enumerate() {
                values.extend(0..500);
                assert_eq!((values[0], values[100], values.len()), (round as u64, 0, 600));
            }
        });
        random_vectors(&*pool, &in_pool, 9, 300);
    });
    empty(&pool);
}

#[test]
fn memory_that_cannot_hold_collections_is_refused() {
    let addresses: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("dry", Arc::new(AddressOnlyMemory::new()), fixed(Bytes::kib(4))));
    let error = PoolAllocator::new(addresses).unwrap_err();
    let memory = MemoryKind::AddressOnly;
    assert_eq!(error, PoolAllocatorError::NotHostMemory { allocator: "dry".to_owned(), memory });
    assert!(error.to_string().contains("dry has address only memory"), "{error}");
}

#[test]
fn a_full_pool_refuses_and_keeps_the_collection() {
    let (pool, in_pool) = host_pool(fixed(Bytes::kib(4)));
    let mut values = PoolVec::with_capacity_in(1024, in_pool.clone());
    values.extend(0..1024_u16);
    let blocker = Box::new_in([0_u8; 256], in_pool.clone());
    assert!(values.try_reserve_exact(2048).is_err());
    assert_eq!(in_pool.allocate(Layout::new::<[u8; 4 * KIB as usize]>()), Err(AllocError));
    assert!(values.iter().copied().eq(0..1024));
    drop((values, blocker));
    empty(&pool);
}
