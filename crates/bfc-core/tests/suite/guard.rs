//! The errors that a guard finds, and its behavior as a normal allocator.
//!
//! Upstream's cases are those of `gpu_debug_allocator_test.cc`, with its sizes and offsets.

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bfc_core::{
    AddressOnlyMemory, AllocError, Allocation, AllocationAttributes, Allocator, BfcAllocator, BfcConfig,
    Block, BlockError, Bytes, Category, Damage, DamageKind, DeviceMemory, GuardAllocator, GuardConfig,
    GuardError, HostMemory, MemoryKind, OwnerId, PinnedMemory, PoolView, Request, Tag, Verdict,
    sim::SimDevice,
};

fn pool(limit: Bytes) -> Arc<BfcAllocator> {
    let config = BfcConfig::new(limit).with_retry_timeout(Duration::from_millis(20));
    Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config))
}

fn guard(config: GuardConfig) -> GuardAllocator {
    GuardAllocator::new(pool(Bytes::mib(16)), config).unwrap()
}

fn allocate(allocator: &dyn Allocator, bytes: u64) -> Block {
    allocator.allocate(&Request::new(bytes)).unwrap()
}

fn free(allocator: &dyn Allocator, block: Block) -> Result<(), BlockError> {
    // SAFETY: these tests use freed blocks only where a guard must find that use.
    unsafe { allocator.deallocate(block) }
}

/// Writes one byte `offset` bytes from the start of a block, wherever that is.
fn poke(block: Block, offset: i64, value: u8) {
    let address = block.address.wrapping_add_signed(offset);
    let pointer: *mut u8 = with_exposed_provenance_mut(address as usize);
    // SAFETY: the tests stay within the region of the pool below, which lives until the end of the test.
    unsafe { pointer.write(value) };
}

fn peek(block: Block, offset: i64) -> u8 {
    let address = block.address.wrapping_add_signed(offset);
    let pointer: *mut u8 = with_exposed_provenance_mut(address as usize);
    // SAFETY: as for `poke`; all memory of the pool is initialized.
    unsafe { pointer.read() }
}

fn damage_of(result: Result<(), BlockError>) -> Damage {
    match result {
        Err(BlockError::OutOfBounds { damage }) => damage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_that_was_used_as_granted_is_not_damaged() {
    let guard = guard(GuardConfig::default());
    let sizes = [1, 4, 63, 64, 256, 1000, if cfg!(miri) { 1001 } else { 65_537 }];
    for bytes in sizes {
        let block = allocate(&guard, bytes);
        assert_eq!(block.bytes, bytes);
        (0..bytes as i64).for_each(|offset| poke(block, offset, offset as u8));
        assert_eq!(free(&guard, block), Ok(()));
    }
    assert_eq!(guard.empty_quarantine(), 7);
    assert_eq!(guard.find_damage(), Some(vec![]));
}

/// Upstream's `OverwriteDetection_Header` and `_Footer`, byte by byte instead of word by word.
#[test]
fn each_byte_next_to_a_block_is_guarded() {
    // Miri takes seconds for each.
    let step = if cfg!(miri) { 21 } else { 1 };
    for count in [8, 211_u64] {
        let bytes = count * 8;
        let guard = guard(GuardConfig::default());
        let beside = (-64..0).chain(bytes as i64..bytes as i64 + 64).step_by(step);
        let pokes = beside.clone().count() as u64;
        for offset in beside {
            let block = allocate(&guard, bytes);
            let before = peek(block, offset);
            poke(block, offset, !before);
            let damage = damage_of(free(&guard, block));
            let fault = if offset < 0 { DamageKind::Underrun } else { DamageKind::Overrun };
            assert_eq!((damage.fault, damage.offset, damage.bytes), (fault, offset, 1));
            assert_eq!((damage.expected, damage.found), (before, !before));
            assert_eq!(damage.block, block);
        }
        assert_eq!(guard.report().found, pokes);
    }
}

#[test]
fn a_damage_report_names_the_bytes_and_the_owner() {
    let guard = guard(GuardConfig::default());
    let owner = OwnerId::intern(OwnerId::ROOT, "guard-owner");
    let tag = Tag { owner, category: Category::Gradient };
    let block = guard.allocate(&Request::new(100).with_tag(tag)).unwrap();
    (103..120).for_each(|offset| poke(block, offset, 0));
    let damage = damage_of(free(&guard, block));
    assert_eq!((damage.offset, damage.bytes, damage.found, damage.tag), (103, 17, 0, tag));
    let text = BlockError::OutOfBounds { damage }.to_string();
    for part in
        ["write past the end", "100 bytes", "gradient of guard-owner", "byte 103 is 0x00", "bytes: 17"]
    {
        assert!(text.contains(part), "{text}");
    }
}

/// Upstream's `NanResetAllocator` tests: 1024 floats.
#[test]
fn new_and_freed_memory_reads_as_not_a_number() {
    let guard = guard(GuardConfig::default());
    let block = allocate(&guard, 1024 * 4);
    let bytes = block.bytes as i64;
    let floats = |block: Block| -> Vec<f32> {
        let bytes: Vec<u8> = (0..block.bytes as i64).map(|offset| peek(block, offset)).collect();
        bytes.chunks(4).map(|float| f32::from_ne_bytes(float.try_into().unwrap())).collect()
    };
    assert!(floats(block).iter().all(|float| float.is_nan()));
    (0..bytes).for_each(|offset| poke(block, offset, 0));
    assert!(floats(block).iter().all(|float| *float == 0.0));
    free(&guard, block).unwrap();
    assert!(floats(block).iter().all(|float| float.is_nan()));
}

#[test]
fn a_write_after_free_is_found_in_the_quarantine() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let config = GuardConfig::default()
        .with_quarantine(Bytes::mib(1), 2)
        .with_listener(move |damage| listener.lock().unwrap().push(*damage));
    let guard = guard(config);
    let blocks = [(); 3].map(|()| allocate(&guard, 500));
    free(&guard, blocks[0]).unwrap();
    poke(blocks[0], 123, 1);
    free(&guard, blocks[1]).unwrap();
    assert!(told.lock().unwrap().is_empty());
    // The quarantine has room for two blocks: the third drives the first out. The third's own free is not to
    // blame.
    assert_eq!(free(&guard, blocks[2]), Ok(()));
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].fault, told[0].offset, told[0].bytes), (DamageKind::UseAfterFree, 123, 1));
    assert_eq!((told[0].block, told[0].expected, told[0].found), (blocks[0], 0xff, 1));
    assert_eq!(guard.report().condemned_blocks, 1);
}

#[test]
fn writes_beside_a_freed_block_are_found_too() {
    let guard = guard(GuardConfig::default());
    for offset in [-1, 64] {
        let block = allocate(&guard, 64);
        free(&guard, block).unwrap();
        poke(block, offset, 0);
        let found = guard.check_all();
        assert_eq!((found[0].fault, found[0].offset, found.len()), (DamageKind::UseAfterFree, offset, 1));
    }
}

#[test]
fn a_check_reports_damage_once_and_the_free_reports_it_too() {
    let guard = guard(GuardConfig::default());
    let (sound, broken) = (allocate(&guard, 64), allocate(&guard, 64));
    poke(broken, 64, 0);
    let found = guard.check_all();
    assert_eq!((found.len(), found[0].block, found[0].offset), (1, broken, 64));
    assert_eq!(guard.check_all(), []);
    assert_eq!(damage_of(free(&guard, broken)), found[0]);
    assert_eq!(free(&guard, sound), Ok(()));
    assert_eq!(guard.find_damage(), Some(found));
    assert_eq!(guard.report().found, 1);
}

#[test]
fn dropping_the_guard_checks_and_returns_all_memory() {
    let found = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&found);
    let pool = pool(Bytes::mib(16));
    let config = GuardConfig::default().with_listener(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let guard = GuardAllocator::new(pool.clone(), config).unwrap();
    let [overrun, freed, condemned, _leaked] = [(); 4].map(|()| allocate(&guard, 200));
    poke(condemned, -1, 0);
    assert!(free(&guard, condemned).is_err());
    assert_eq!(found.load(Ordering::Relaxed), 1);
    free(&guard, freed).unwrap();
    poke(freed, 0, 0);
    poke(overrun, 200, 0);
    drop(guard);
    assert_eq!(found.load(Ordering::Relaxed), 3);
    assert_eq!(pool.stats().live_allocs, 0);
}

#[test]
fn memory_of_a_damaged_block_is_never_handed_out_again() {
    let guard = GuardAllocator::new(pool(Bytes::kib(64)), GuardConfig::default()).unwrap();
    let broken = allocate(&guard, 1000);
    poke(broken, 1000, 0);
    let error = free(&guard, broken).unwrap_err();
    assert!(error.took_back());
    assert_eq!(free(&guard, broken), Err(BlockError::Stale { block: broken }));
    assert_eq!((guard.stats().live_allocs, guard.stats().bytes_in_use, guard.ledger().total()), (0, 0, 0));
    let report = guard.report();
    assert_eq!((report.condemned_blocks, report.live_blocks), (1, 0));
    assert!(report.condemned_bytes >= 1000 + 128);

    let mut others = Vec::new();
    while let Ok(block) =
        guard.allocate(&Request::new(1000).with_attributes(AllocationAttributes::no_retry()))
    {
        assert!(block.address + 1000 <= broken.address || broken.address + 1000 <= block.address);
        others.push(block);
    }
    assert!(others.len() > 30, "{}", others.len());
}

#[test]
fn an_allocation_that_is_dropped_damaged_is_counted_as_failed() {
    let allocator: Arc<dyn Allocator> = Arc::new(guard(GuardConfig::default()));
    let allocation = Allocation::new(&allocator, &Request::new(32)).unwrap();
    poke(allocation.block(), 32, 0);
    let before = bfc_core::failed_drops();
    drop(allocation);
    assert!(bfc_core::failed_drops() > before);
    assert_eq!(allocator.find_damage().unwrap().len(), 1);
}

/// Upstream's `TracksSizes` and `AllocatedVsRequested`, except that a block has exactly the requested bytes.
#[test]
fn figures_are_those_of_the_users_bytes() {
    let guard = guard(GuardConfig::default());
    let block = allocate(&guard, 4);
    assert!(guard.tracks_sizes());
    assert_eq!((block.bytes, guard.requested_bytes(&block)), (4, Ok(4)));
    let stats = guard.stats();
    assert_eq!((stats.bytes_in_use, stats.bytes_requested, stats.largest_alloc_bytes), (4, 4, 4));
    assert_eq!((stats.num_allocs, stats.live_allocs), (1, 1));
    assert_eq!((stats.bytes_limit, stats.bytes_reserved), (Some(16 << 20), 2 << 20));
    assert_eq!(guard.ledger().total(), 4);
    // 64 + 4 + 64 in steps of 256, all of it guarded.
    assert_eq!(guard.report().overhead_bytes, 252);
    assert_eq!(guard.inner().stats().bytes_in_use, 256);

    free(&guard, block).unwrap();
    let stats = guard.stats();
    assert_eq!((stats.bytes_in_use, stats.peak_bytes_in_use), (0, 4));
    assert_eq!((guard.report().quarantined_blocks, guard.report().quarantined_bytes), (1, 256));
    assert!(guard.clear_stats());
    assert_eq!((guard.stats().num_allocs, guard.stats().peak_bytes_in_use), (0, 0));
}

#[test]
fn blocks_are_aligned_as_asked() {
    let guard = guard(GuardConfig::default());
    for shift in 0..=16 {
        let block = guard.allocate(&Request::new(100).with_alignment(1 << shift)).unwrap();
        assert_eq!(block.address % (1 << shift), 0);
        poke(block, -1, 0);
        assert_eq!(damage_of(free(&guard, block)).offset, -1);
    }
}

#[test]
fn wrong_blocks_and_requests_are_typed_errors() {
    let guard = guard(GuardConfig::default());
    assert_eq!(guard.allocate(&Request::new(0)), Ok(Block::EMPTY));
    assert_eq!(free(&guard, Block::EMPTY), Ok(()));
    let three = guard.allocate(&Request::new(8).with_alignment(3));
    assert_eq!(three, Err(AllocError::BadAlignment { allocator: "cpu".to_owned(), alignment: 3 }));
    for bytes in [u64::MAX, u64::MAX - 100, u64::MAX - 300] {
        let too_large = AllocError::TooLarge { allocator: "cpu".to_owned(), bytes, alignment: 64 };
        assert_eq!(guard.allocate(&Request::new(bytes)), Err(too_large));
    }

    let block = allocate(&guard, 8);
    let foreign = allocate(&**guard.inner(), 8);
    assert_eq!(free(&guard, foreign), Err(BlockError::Foreign { block: foreign }));
    for wrong in [
        Block { bytes: 9, ..block },
        Block { address: block.address + 8, ..block },
        Block { chunk: block.chunk + 1, ..block },
        Block { id: block.id + 1, ..block },
        Block { id: 0, ..block },
    ] {
        assert_eq!(free(&guard, wrong), Err(BlockError::Unknown { block: wrong }), "{wrong:?}");
        assert_eq!(guard.tag(&wrong), Err(BlockError::Unknown { block: wrong }));
    }
    assert_eq!(guard.block_at(block.address), Ok(block));
    assert_eq!(guard.block_at(block.address + 1), Err(BlockError::NoBlockAt { address: block.address + 1 }));
    free(&guard, block).unwrap();
    assert_eq!(free(&guard, block), Err(BlockError::Stale { block }));
    assert_eq!(guard.block_at(block.address), Err(BlockError::NoBlockAt { address: block.address }));
}

#[test]
fn memory_that_the_host_cannot_read_cannot_be_guarded() {
    let bare = BfcAllocator::new("dry", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(1)));
    let error = GuardAllocator::new(Arc::new(bare), GuardConfig::default()).unwrap_err();
    assert_eq!(error, GuardError { allocator: "dry".to_owned(), kind: MemoryKind::AddressOnly });

    let driver = Arc::new(SimDevice::new(Bytes::mib(64)));
    let config = || BfcConfig::new(Bytes::mib(1));
    let device = BfcAllocator::new("sim", Arc::new(DeviceMemory::new(driver.clone())), config());
    let error = GuardAllocator::new(Arc::new(device), GuardConfig::default()).unwrap_err();
    assert_eq!(error.kind, MemoryKind::Device);

    let pinned = BfcAllocator::new("pinned", Arc::new(PinnedMemory::new(driver)), config());
    let pinned = GuardAllocator::new(Arc::new(pinned), GuardConfig::default()).unwrap();
    let block = allocate(&pinned, 100);
    poke(block, 100, 0);
    assert_eq!(damage_of(free(&pinned, block)).fault, DamageKind::Overrun);
}

#[test]
fn the_quarantine_never_makes_a_request_fail() {
    let guard = GuardAllocator::new(pool(Bytes::kib(64)), GuardConfig::default()).unwrap();
    for attributes in [AllocationAttributes::default(), AllocationAttributes::no_retry()] {
        let block = allocate(&guard, 60 << 10);
        free(&guard, block).unwrap();
        assert_eq!(guard.report().quarantined_blocks, 1);
        let block = guard.allocate(&Request::new(60 << 10).with_attributes(attributes)).unwrap();
        free(&guard, block).unwrap();
        guard.empty_quarantine();
    }
}

#[test]
fn a_request_that_waits_gets_what_another_thread_frees() {
    let config = BfcConfig::new(Bytes::kib(4)).with_retry_timeout(Duration::from_secs(60));
    let pool = Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config));
    let guard = GuardAllocator::new(pool.clone(), GuardConfig::default()).unwrap();
    let first = allocate(&guard, 3 << 10);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| allocate(&guard, 3 << 10));
        while pool.stats().retry.waiting == 0 {
            std::thread::yield_now();
        }
        free(&guard, first).unwrap();
        let second = second.join().unwrap();
        assert_eq!(free(&guard, second), Ok(()));
    });
}

#[test]
fn the_report_shows_the_request_without_guard_bytes() {
    let guard = GuardAllocator::new(pool(Bytes::kib(64)), GuardConfig::default()).unwrap();
    let owner = OwnerId::intern(OwnerId::ROOT, "guard-holder");
    let tag = Tag { owner, category: Category::Parameter };
    let _held = guard.allocate(&Request::new(32 << 10).with_tag(tag)).unwrap();
    let error = guard.allocate(&Request::new(60 << 10)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.requested, report.verdict), (60 << 10, Verdict::Exhausted));
    assert_eq!(report.holders[0].0, owner);
}

#[test]
fn a_listener_may_use_the_guard() {
    let slot: Arc<Mutex<Option<Arc<GuardAllocator>>>> = Arc::default();
    let inside = Arc::clone(&slot);
    let config = GuardConfig::default().with_listener(move |_| {
        let guard = inside.lock().unwrap().clone();
        if let Some(guard) = guard {
            let block = allocate(&*guard, 8);
            free(&*guard, block).unwrap();
            assert_eq!(guard.find_damage().unwrap().len(), 1);
        }
    });
    let guard = Arc::new(guard(config));
    *slot.lock().unwrap() = Some(Arc::clone(&guard));
    let block = allocate(&*guard, 8);
    poke(block, 8, 0);
    damage_of(free(&*guard, block));
    assert_eq!(guard.stats().num_allocs, 2);
    slot.lock().unwrap().take();
}

#[test]
fn memory_that_nobody_uses_goes_back_through_a_guard() {
    let guard = guard(GuardConfig::default().with_quarantine(Bytes(0), 0));
    let block = allocate(&guard, 1000);
    let reserved = guard.stats().bytes_reserved;
    assert_eq!(guard.trim(Bytes(0)), 0, "it is in use");
    free(&guard, block).unwrap();
    assert_eq!(guard.trim(Bytes(0)), reserved);
    assert_eq!(guard.stats().bytes_reserved, 0);
}
