//! Wrappers pass on every facet of the allocator below them.

use std::sync::Arc;

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, GuardAllocator, GuardConfig,
    HostMemory, MIB, PassthroughAllocator, PinnedMemory, Request, Stream, StreamAllocator,
};

/// Accounting, inspection, wait hints, stream order and upkeep.
fn facets(allocator: &dyn Allocator) -> [bool; 5] {
    [
        allocator.as_accounting().is_some(),
        allocator.as_inspection().is_some(),
        allocator.as_wait_hints().is_some(),
        allocator.as_stream_order().is_some(),
        allocator.as_upkeep().is_some(),
    ]
}

const POOL: [bool; 5] = [true, true, true, false, true];

fn guard(inner: Arc<dyn Allocator>) -> Arc<dyn Allocator> {
    Arc::new(GuardAllocator::new(inner, GuardConfig::default()).unwrap())
}

fn host_pool(bytes: Bytes) -> Arc<dyn Allocator> {
    let config = BfcConfig::new(bytes).with_allow_growth(false);
    Arc::new(BfcAllocator::new("cpu", Arc::new(HostMemory::new()), config))
}

#[test]
fn pools_and_passthrough_have_all_facets_but_stream_order() {
    assert_eq!(facets(&*host_pool(Bytes::mib(1))), POOL);
    let passthrough = PassthroughAllocator::new("direct", Arc::new(AddressOnlyMemory::new()));
    assert_eq!(facets(&passthrough), POOL);
}

#[test]
fn a_guard_has_every_facet_of_a_pool() {
    assert_eq!(facets(&*guard(host_pool(Bytes::mib(1)))), POOL);
}

#[test]
fn a_stream_allocator_has_every_facet() {
    let device = Arc::new(SimDevice::new(Bytes::mib(64)));
    let source = Arc::new(DeviceMemory::new(device.clone()));
    let pool = Arc::new(BfcAllocator::new("sim", source, BfcConfig::new(Bytes::mib(8))));
    let pool: Arc<dyn Allocator> = Arc::new(StreamAllocator::new(pool, Stream::new(device.clone()).unwrap()));
    assert_eq!(facets(&*pool), [true; 5]);

    let pinned = Arc::new(PinnedMemory::new(device.clone()));
    let pinned = Arc::new(BfcAllocator::new("pinned", pinned, BfcConfig::new(Bytes::mib(8))));
    let pinned: Arc<dyn Allocator> =
        Arc::new(StreamAllocator::new(guard(pinned), Stream::new(device).unwrap()));
    assert_eq!(facets(&*pinned), [true; 5]);
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
fn pools_alone_resize_blocks_in_place() {
    let resizes = |allocator: &dyn Allocator| allocator.as_resize().is_some();
    assert!(resizes(&*host_pool(Bytes::mib(1))));
    // A guard has a canary behind each block, and a direct block is a region of its source.
    assert!(!resizes(&*guard(host_pool(Bytes::mib(1)))));
    assert!(!resizes(&PassthroughAllocator::new("direct", Arc::new(AddressOnlyMemory::new()))));
}
