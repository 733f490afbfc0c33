//! Tracking over a guard: the free of a damaged block counts as a free.

use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, BlockError, Bytes, GuardAllocator, GuardConfig, HostMemory, Request,
};
use highwater_tracking::TrackingAllocator;

#[test]
fn a_damaged_block_counts_as_freed_and_the_damage_is_told() {
    let pool = BfcAllocator::new("cpu", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::mib(1)));
    let guard = Arc::new(GuardAllocator::new(Arc::new(pool), GuardConfig::default()).unwrap());
    let tracking = TrackingAllocator::new(guard.clone(), true);
    let block = tracking.allocate(&Request::new(100)).unwrap();
    assert_eq!(tracking.sizes().live_bytes, 100);

    let past_the_end: *mut u8 = with_exposed_provenance_mut(block.address as usize + 100);
    // SAFETY: the byte is a canary, in memory of the pool.
    unsafe { past_the_end.write(0) };
    // SAFETY: the block is used no more.
    let error = unsafe { tracking.deallocate(block) }.unwrap_err();
    assert!(matches!(error, BlockError::OutOfBounds { damage } if damage.offset == 100), "{error}");
    assert_eq!((tracking.sizes().live_bytes, guard.stats().live_allocs), (0, 0));
    let wrapper: &dyn Allocator = &*tracking;
    assert_eq!(wrapper.find_damage().unwrap().len(), 1);
    // SAFETY: it is not live, which the guard is to say.
    let again = unsafe { tracking.deallocate(block) };
    assert_eq!(again, Err(BlockError::Stale { block }));
}
