//! Frees that become reusable later: the timing counter and the safe frontier.

use std::sync::Arc;

use bfc_core::{
    AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, Bytes, CutRule, KIB, Request,
    TimingCounter,
};

use crate::common::source::{FakeSource, Nature};
use crate::common::{allocate, free, out_of_memory};

/// A pool of one region of 4 KiB whose frees count.
fn pool(bytes: u64) -> BfcAllocator {
    let config = BfcConfig::new(Bytes(bytes)).with_cut_rule(CutRule::Low).with_retry(false);
    pool_with(config.with_allow_growth(false)).0
}

fn pool_with(config: BfcConfig) -> (BfcAllocator, Arc<FakeSource>) {
    let source = FakeSource::new(Nature::default());
    let config = config.with_timing_counter(Arc::new(TimingCounter::default()));
    (BfcAllocator::new("timed", source.clone(), config), source)
}

/// Requests memory that was freed at `count` or before.
fn allocate_freed_before(pool: &BfcAllocator, bytes: u64, count: u64) -> Option<Block> {
    let before = move || count;
    let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
    pool.allocate(&Request::new(bytes).with_attributes(attributes)).ok()
}

fn fill(pool: &BfcAllocator, count: usize) -> Vec<Block> {
    (0..count).map(|_| allocate(pool, 1024)).collect()
}

/// The sizes and counts of the free chunks, by address.
fn free_chunks(pool: &BfcAllocator) -> Vec<(u64, u64)> {
    pool.check_invariants().unwrap();
    let free = pool.chunks().into_iter().filter(|chunk| !chunk.in_use());
    free.map(|chunk| (chunk.bytes, chunk.freed_at)).collect()
}

#[test]
fn frees_join_only_when_the_frontier_has_passed_their_counts() {
    let pool = pool(4096);
    for block in fill(&pool, 4) {
        free(&pool, block);
    }
    assert_eq!(free_chunks(&pool), [(1024, 1), (1024, 2), (1024, 3), (1024, 4)]);
    pool.set_safe_frontier(3);
    assert_eq!(pool.trim(Bytes(0)), 0);
    assert_eq!(free_chunks(&pool), [(2048, 0), (1024, 3), (1024, 4)], "counts strictly below the frontier");
    pool.set_safe_frontier(5);
    assert_eq!(pool.trim(Bytes(0)), 4096);
}

#[test]
fn late_memory_is_not_given_to_strict_requests() {
    let pool = pool(4096);
    let blocks = fill(&pool, 4);
    free(&pool, blocks[0]);
    free(&pool, blocks[2]);
    assert_eq!(allocate_freed_before(&pool, 1024, 0), None);
    let old = allocate_freed_before(&pool, 1024, 1).unwrap();
    assert_eq!(old.address, blocks[0].address);
    assert_eq!(allocate_freed_before(&pool, 1024, 1), None);
    assert_eq!(allocate(&pool, 1024).address, blocks[2].address, "the same stream may use it at once");
}

#[test]
fn what_the_frontier_has_passed_is_for_everyone() {
    let pool = pool(4096);
    let blocks = fill(&pool, 4);
    free(&pool, blocks[1]);
    assert_eq!(allocate_freed_before(&pool, 1024, 0), None);
    pool.set_safe_frontier(2);
    assert_eq!(allocate_freed_before(&pool, 1024, 0).unwrap().address, blocks[1].address);
}

#[test]
fn only_the_oldest_pending_frees_are_merged_to_avoid_oom() {
    let pool = pool(8192);
    let blocks = fill(&pool, 8);
    for index in [4, 5, 0, 1] {
        free(&pool, blocks[index]);
    }
    let block = allocate(&pool, 2048);
    assert_eq!(block.address, blocks[4].address);
    assert_eq!(free_chunks(&pool), [(1024, 3), (1024, 4)]);
    free(&pool, block);
    assert_eq!(free_chunks(&pool), [(1024, 3), (1024, 4), (2048, 5)]);
}

#[test]
fn pending_frees_that_were_joined_are_as_late_as_the_latest() {
    let pool = pool(4096);
    let blocks = fill(&pool, 4);
    free(&pool, blocks[0]);
    free(&pool, blocks[1]);
    out_of_memory(&pool, 3072);
    assert_eq!(free_chunks(&pool), [(2048, 2)]);
    assert_eq!(allocate_freed_before(&pool, 1024, 1), None);
    assert!(allocate_freed_before(&pool, 1024, 2).is_some());
}

#[test]
fn a_strict_request_does_not_merge_late_memory() {
    let pool = pool(4096);
    let blocks = fill(&pool, 4);
    free(&pool, blocks[0]);
    free(&pool, blocks[1]);
    assert_eq!(allocate_freed_before(&pool, 2048, 1), None);
    assert_eq!(
        free_chunks(&pool),
        [(1024, 1), (1024, 2)],
        "joined, the first would become as late as the second"
    );
}

/// Upstream forgets the remainder of a split pending chunk, which then never joins its neighbors again.
#[test]
fn the_rest_of_a_pending_chunk_joins_its_neighbours_in_the_end() {
    let pool = pool(4096);
    let whole = allocate(&pool, 4096);
    free(&pool, whole);
    let part = allocate(&pool, 1024);
    assert_eq!(free_chunks(&pool), [(3072, 1)]);
    free(&pool, part);
    pool.set_safe_frontier(u64::MAX);
    assert_eq!(allocate(&pool, 4096).address, whole.address);
}

#[test]
fn a_reused_slot_is_not_taken_for_its_former_chunk() {
    let pool = pool(4096);
    let blocks = fill(&pool, 4);
    free(&pool, blocks[1]);
    let again = allocate(&pool, 1024);
    assert_eq!(again.chunk, blocks[1].chunk);
    pool.set_safe_frontier(2);
    pool.trim(Bytes(0));
    assert_eq!(free_chunks(&pool), [], "the live block in the slot is untouched");
    free(&pool, again);
    assert_eq!(free_chunks(&pool), [(1024, 2)], "its own free is pending still");
}

/// Upstream returns such regions to the driver while a device may still use them.
#[test]
fn a_region_with_pending_frees_is_not_returned() {
    let config = BfcConfig::new(Bytes::kib(12)).with_first_region(Bytes::kib(4)).with_retry(false);
    let (pool, source) = pool_with(config);
    let (first, second) = (allocate(&pool, 4 * KIB), allocate(&pool, 4 * KIB));
    free(&pool, first);
    free(&pool, second);
    assert_eq!(pool.trim(Bytes(0)), 0);
    out_of_memory(&pool, 12 * KIB);
    assert_eq!(source.frees(), 0);
    pool.set_safe_frontier(u64::MAX);
    assert_eq!(allocate(&pool, 12 * KIB).bytes, 12 * KIB);
    assert_eq!(source.frees(), 2);
}

#[test]
fn without_a_counter_every_free_is_for_everyone_at_once() {
    let source = FakeSource::new(Nature::default());
    let pool = BfcAllocator::new("plain", source, BfcConfig::new(Bytes::kib(4)).with_allow_growth(false));
    let block = allocate(&pool, 4096);
    free(&pool, block);
    assert!(allocate_freed_before(&pool, 4096, 0).is_some());
}
