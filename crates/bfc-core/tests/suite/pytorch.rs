//! The policy of PyTorch's allocator: documented rules that the comparison with recorded decisions of the real allocator
//! does not show, and what a pool adds to it.

use std::sync::Arc;

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, AllocError, AllocationAttributes, Allocator, AllocatorChoice, Block, Bytes, Driver,
    MIB, OomReport, PlacementRequest, Policy, PoolError, PoolOptions, Pytorch, PytorchAllocator,
    PytorchConfig, PytorchOptions, Request, Span, Verdict, VirtualMemory,
};

fn options(settings: &str) -> PytorchOptions {
    settings.parse().unwrap()
}

fn pool(limit: u64, settings: &str) -> PytorchAllocator {
    let config = PytorchConfig::pytorch(Bytes::mib(limit), options(settings)).with_retry(false);
    PytorchAllocator::new("gpu", Arc::new(AddressOnlyMemory::new()), config)
}

fn take(pool: &PytorchAllocator, mebibytes: u64) -> Block {
    take_on(pool, mebibytes, 0)
}

fn take_on(pool: &PytorchAllocator, mebibytes: u64, stream: u32) -> Block {
    let block = pool.allocate(&Request::new(mebibytes * MIB).with_stream(stream)).unwrap();
    pool.check_invariants().unwrap();
    block
}

fn free(pool: &PytorchAllocator, block: Block) {
    // SAFETY: no code uses the block, which has no memory.
    unsafe { pool.deallocate(block) }.unwrap();
    pool.check_invariants().unwrap();
}

fn refused(pool: &PytorchAllocator, request: &Request<'_>) -> OomReport {
    match pool.allocate(&request.with_attributes(AllocationAttributes::no_retry())).unwrap_err() {
        AllocError::OutOfMemory(report) => *report,
        error => panic!("{error}"),
    }
}

/// The sizes of the regions in MiB, in order of address.
fn regions(pool: &PytorchAllocator) -> Vec<u64> {
    pool.regions().iter().map(|region| region.bytes / MIB).collect()
}

#[test]
fn a_stream_never_reuses_the_memory_of_another() {
    let pool = pool(100, "");
    let first = take_on(&pool, 15, 0);
    free(&pool, first);
    let second = take_on(&pool, 15, 7);
    assert_ne!(first.address, second.address);
    assert_eq!(regions(&pool), [16, 16]);
    assert_eq!(take_on(&pool, 15, 0).address, first.address);
}

#[test]
fn small_and_large_blocks_lie_in_regions_of_their_own() {
    let pool = pool(100, "");
    let large = take(&pool, 2);
    free(&pool, large);
    let small = take(&pool, 1);
    assert_eq!(regions(&pool), [20, 2]);
    assert_ne!(small.address, large.address);
}

#[test]
fn a_region_serves_the_request_for_which_it_was_added() {
    let mut policy = Pytorch::new(PytorchOptions::default());
    let request = PlacementRequest::new(12 * MIB);
    let region = |address, mebibytes| Span { address: address * MIB, bytes: mebibytes * MIB };
    policy.add_region_for(region(0, 12), false, &request).unwrap();
    policy.add_region_for(region(100, 20), false, &request).unwrap();
    assert_eq!(policy.place(&request).unwrap().address, 100 * MIB, "the smaller region would fit better");
    assert_eq!(policy.place(&request).unwrap().address, 0);
    // A region without a request becomes one of the first set that needs it.
    policy.add_region(region(200, 2), false).unwrap();
    assert_eq!(policy.place(&PlacementRequest::new(512).with_stream(3)).unwrap().address, 200 * MIB);
    assert_eq!(policy.place(&PlacementRequest::new(512)), None);
    policy.check().unwrap();
}

#[test]
fn the_padding_before_an_aligned_block_stays_free() {
    let pool = pool(10, "");
    let first = pool.allocate(&Request::new(512)).unwrap();
    let aligned = pool.allocate(&Request::new(512).with_alignment(1 << 16)).unwrap();
    assert_eq!(aligned.address % (1 << 16), 0);
    assert_eq!(pool.allocate(&Request::new(512)).unwrap().address, first.address + 512);
    pool.check_invariants().unwrap();
}

/// The documentation of `garbage_collection_threshold`: above that share of the memory, blocks that were unused for long
/// go first, and those in use stay.
#[test]
fn garbage_collection_returns_the_oldest_idle_regions() {
    // Above 100 of 200 MiB.
    let pool = pool(200, "garbage_collection_threshold:0.5");
    let [old, recent, busy] = [30, 32, 34].map(|mebibytes| take(&pool, mebibytes));
    free(&pool, old);
    // Requests for large blocks age the idle region.
    for _ in 0..4 {
        let block = take(&pool, 2);
        free(&pool, block);
    }
    free(&pool, recent);
    assert_eq!(regions(&pool), [30, 32, 34, 20]);
    // The pool holds 116 MiB. The region of 30 MiB alone is older than the average, and brings it below the threshold.
    let _more = take(&pool, 40);
    assert_eq!(regions(&pool), [32, 34, 20, 40]);
    // Small blocks do not age anything, but their regions count.
    let _small = pool.allocate(&Request::new(1)).unwrap();
    assert!(regions(&pool).contains(&34), "a region in use stays");
    free(&pool, busy);
}

#[test]
fn nothing_is_collected_below_the_threshold() {
    let pool = pool(400, "garbage_collection_threshold:0.5");
    let blocks = [30, 32, 34].map(|mebibytes| take(&pool, mebibytes));
    blocks.into_iter().for_each(|block| free(&pool, block));
    take(&pool, 40);
    assert_eq!(regions(&pool), [30, 32, 34, 40]);
}

#[test]
fn oversize_regions_go_before_all_others() {
    let pool = pool(200, "max_split_size_mb:50");
    let blocks = [60, 80, 30, 30].map(|mebibytes| take(&pool, mebibytes));
    blocks.into_iter().for_each(|block| free(&pool, block));
    // The region of 80 MiB has 22 MiB too many for this request, and alone makes room for a new one.
    take(&pool, 58);
    assert_eq!(pool.stats().bytes_reserved, 200 * MIB, "the region of 60 MiB is reused");
    take(&pool, 55);
    assert_eq!(regions(&pool), [60, 30, 30, 56]);
}

#[test]
fn all_idle_regions_go_before_a_request_fails() {
    let pool = pool(100, "");
    let kept = take(&pool, 30);
    let idle = [40, 1].map(|mebibytes| take_on(&pool, mebibytes, 1));
    idle.into_iter().for_each(|block| free(&pool, block));
    assert_eq!(regions(&pool), [30, 40, 2]);
    let report = refused(&pool, &Request::new(120 * MIB));
    assert_eq!((report.verdict, regions(&pool)), (Verdict::OverLimit, vec![30]));
    free(&pool, kept);
}

#[test]
fn a_report_separates_free_memory_of_other_streams() {
    let pool = pool(40, "");
    let _first = take_on(&pool, 2, 1);
    let _second = take_on(&pool, 2, 2);
    let report = refused(&pool, &Request::new(5 * MIB));
    assert_eq!((report.verdict, report.free, report.unusable), (Verdict::Separated, 36 * MIB, 36 * MIB));
    assert_eq!((report.largest_free, report.what_if.compacted), (0, None));
    assert!(report.details().contains("36.00 MiB of them in regions for other streams or sizes"));
    let report = refused(&pool, &Request::new(19 * MIB).with_stream(1));
    assert_eq!(
        (report.verdict, report.unusable, report.largest_free),
        (Verdict::Separated, 18 * MIB, 18 * MIB)
    );
}

#[test]
fn segments_grow_in_place_and_shrink_by_whole_handles() {
    let pool = pool(400, "expandable_segments:True");
    let blocks = [15, 15, 15].map(|mebibytes| take(&pool, mebibytes));
    assert_eq!(regions(&pool), [60]);
    assert_eq!(blocks[2].address - blocks[0].address, 30 * MIB);
    let _small = take(&pool, 1);
    assert_eq!(pool.stats().bytes_reserved, 62 * MIB);
    let [first, second, third] = blocks;
    free(&pool, first);
    free(&pool, second);
    // 30 MiB are free, and one handle of 20 MiB lies within.
    assert_eq!(pool.trim(Bytes(0)), 20 * MIB);
    assert_eq!(pool.stats().regions, 2);
    // The gap is mapped again, as it is the lowest place.
    assert_eq!(take(&pool, 25).address, first.address);
    free(&pool, third);
}

#[test]
fn segments_take_and_return_the_memory_of_a_device() {
    let device = Arc::new(SimDevice::new(Bytes::mib(256)));
    let free_bytes = || device.memory_info().unwrap().free;
    {
        let source = Arc::new(VirtualMemory::new(device.clone()).unwrap());
        let config = PytorchConfig::pytorch(Bytes::mib(256), options("expandable_segments:True"));
        let pool = PytorchAllocator::new("gpu", source, config.with_retry(false));
        let blocks = [30, 1, 50].map(|mebibytes| take(&pool, mebibytes));
        assert_eq!(free_bytes(), (256 - 80 - 2) * MIB);
        let [first, small, last] = blocks;
        free(&pool, first);
        assert_eq!(pool.trim(Bytes(0)), 20 * MIB);
        assert_eq!(free_bytes(), (256 - 60 - 2) * MIB);
        let report = refused(&pool, &Request::new(230 * MIB));
        assert_eq!(report.verdict, Verdict::Exhausted);
        let _again = take(&pool, 100);
        free(&pool, last);
        free(&pool, small);
    }
    assert_eq!(free_bytes(), 256 * MIB);
    assert_eq!(device.free_faults().count, 0);
}

#[test]
fn the_settings_belong_to_this_allocator() {
    let registry = bfc_core::Registry::new();
    let source = Arc::new(AddressOnlyMemory::new());
    let config = bfc_core::BfcConfig::new(Bytes::gib(1));
    registry.register(bfc_core::DeviceId::CPU, [bfc_core::Pool::new("pool", source, 0, config)]).unwrap();
    let made = |options: PoolOptions| {
        let attributes = bfc_core::AllocatorAttributes::default();
        registry.allocator(bfc_core::DeviceId::CPU, attributes, Some(options)).map(|made| made.allocator)
    };
    let settings = PoolOptions::default().with_alloc_conf(options("roundup_power2_divisions:4"));
    let error = made(settings.with_allocator(AllocatorChoice::Bfc)).unwrap_err().to_string();
    assert!(error.contains("alloc_conf has no effect on bfc: choose pytorch"), "{error}");
    let pool = made(settings.with_allocator(AllocatorChoice::Pytorch)).unwrap();
    assert_eq!(pool.allocate(&Request::new(5 * MIB - 1)).unwrap().bytes, 5 * MIB);
    let _: fn(PoolError) -> String = |error| error.to_string();
}
