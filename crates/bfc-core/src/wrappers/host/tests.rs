use std::ptr::with_exposed_provenance_mut;

use super::*;
use crate::{DEFAULT_ALIGNMENT, MIB, Span, Tag};

/// Returns the bytes of host memory at `span`, for tests that own it.
fn bytes_at(span: Span) -> Vec<u8> {
    let pointer: *const u8 = with_exposed_provenance_mut(span.address as usize);
    // SAFETY: the tests call this with live, initialized host memory only.
    unsafe { std::slice::from_raw_parts(pointer, span.bytes as usize) }.to_vec()
}

/// Overwrites host memory at `span`.
fn fill(span: Span, value: u8) {
    let pointer: *mut u8 = with_exposed_provenance_mut(span.address as usize);
    // SAFETY: the tests call this with live host memory that no other code uses.
    unsafe { pointer.write_bytes(value, span.bytes as usize) };
}

#[test]
fn plain_host_blocks_are_zeroed_aligned_and_exact() {
    let allocator = HostAllocator::new("plain");
    for shift in 0..=16 {
        let request = Request::new(111).with_alignment(1 << shift);
        let block = allocator.allocate(&request).unwrap();
        assert_eq!((block.bytes, block.id), (111, 0));
        assert_eq!(block.address % (1 << shift), 0);
        assert!(bytes_at(block.span()).iter().all(|&byte| byte == 0));
        fill(block.span(), 0x5a);
        // SAFETY: the block was allocated above and is not used afterwards.
        assert_eq!(unsafe { allocator.deallocate(block) }, Ok(()));
    }
    assert_eq!(allocator.stats().bytes_in_use, 0);
}

#[test]
fn zero_bytes_need_no_memory() {
    let allocator = HostAllocator::new("plain");
    let block = allocator.allocate(&Request::new(0)).unwrap();
    assert_eq!(block, Block::EMPTY);
    // SAFETY: an empty block has no memory.
    assert_eq!(unsafe { allocator.deallocate(block) }, Ok(()));
    assert_eq!(allocator.stats(), Stats::default());
}

#[test]
fn requests_that_cannot_be_met_are_typed_errors() {
    let allocator = HostAllocator::new("plain");
    assert!(matches!(
        allocator.allocate(&Request::new(8).with_alignment(48)),
        Err(AllocError::BadAlignment { alignment: 48, .. })
    ));
    assert!(matches!(
        allocator.allocate(&Request::new(u64::MAX)),
        Err(AllocError::TooLarge { bytes: u64::MAX, alignment: DEFAULT_ALIGNMENT, .. })
    ));
    let error = allocator.allocate(&Request::new(1 << 60)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.requested, report.verdict), (1 << 60, Verdict::Exhausted));
    assert_eq!(allocator.stats(), Stats::default());
}

#[test]
fn foreign_and_made_up_blocks_are_refused() {
    let (ours, theirs) = (HostAllocator::new("ours"), HostAllocator::new("theirs"));
    let block = theirs.allocate(&Request::new(32)).unwrap();
    // SAFETY: a foreign block fails before its memory is touched.
    assert_eq!(unsafe { ours.deallocate(block) }, Err(BlockError::Foreign { block }));
    let made_up = Block { chunk: 200, ..block };
    // SAFETY: no alignment has such a handle, so the free fails.
    assert_eq!(unsafe { theirs.deallocate(made_up) }, Err(BlockError::Unknown { block: made_up }));
    assert_eq!(theirs.stats().live_allocs, 1);
    // SAFETY: the block was allocated above and is not used afterwards.
    assert_eq!(unsafe { theirs.deallocate(block) }, Ok(()));
}

#[test]
fn figures_count_what_is_alive_and_what_was_at_the_peak() {
    let allocator = HostAllocator::new("plain");
    let owner = crate::OwnerId::intern(crate::OwnerId::ROOT, "host-peak");
    let tag = Tag { owner, ..Tag::default() };
    let first = allocator.allocate(&Request::new(MIB)).unwrap();
    let second = allocator.allocate(&Request::new(100).with_tag(tag)).unwrap();
    // SAFETY: the block was allocated above and is not used afterwards.
    unsafe { allocator.deallocate(first) }.unwrap();

    let stats = allocator.stats();
    assert_eq!((stats.num_allocs, stats.live_allocs, stats.regions), (2, 1, 1));
    assert_eq!((stats.bytes_in_use, stats.bytes_requested, stats.bytes_reserved), (100, 100, 100));
    assert_eq!((stats.peak_bytes_in_use, stats.largest_alloc_bytes), (MIB + 100, MIB));
    assert_eq!(stats.peak_tag, tag);

    assert!(allocator.clear_stats());
    let stats = allocator.stats();
    assert_eq!((stats.num_allocs, stats.live_allocs), (0, 1));
    assert_eq!((stats.peak_bytes_in_use, stats.largest_alloc_bytes), (100, 0));
    // SAFETY: the block was allocated above and is not used afterwards.
    unsafe { allocator.deallocate(second) }.unwrap();
}

#[test]
fn questions_about_single_blocks_are_answered_as_untracked() {
    let allocator = HostAllocator::new("plain");
    let block = allocator.allocate(&Request::new(8)).unwrap();
    assert!(!allocator.tracks_sizes());
    let dynamic: &dyn Allocator = &allocator;
    assert_eq!(dynamic.requested_bytes(&block), Err(BlockError::Untracked));
    assert_eq!(dynamic.block_at(block.address), Err(BlockError::Untracked));
    // SAFETY: the block was allocated above and is not used afterwards.
    unsafe { allocator.deallocate(block) }.unwrap();
}
