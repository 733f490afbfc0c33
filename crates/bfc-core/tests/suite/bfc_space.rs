//! Highwater's differences from upstream: large blocks at the high end, and how pools grow.

use std::sync::Arc;

use crate::common::source::{FakeSource, Nature};
use crate::common::{allocate, free};
use bfc_core::{
    AddressOnlyMemory, Allocator, Bfc, BfcAllocator, BfcConfig, BfcOptions, Bytes, CutRule, GrowthRule, KIB,
    MIB, PlacementRequest, Policy, Request, Span,
};

/// A source that continues its last region.
fn continued(config: BfcConfig) -> BfcAllocator {
    let source = Arc::new(AddressOnlyMemory::new().with_coalescing(true));
    BfcAllocator::new("continued", source, config)
}

const REGION: u64 = 2048 * KIB;

fn one_region(options: BfcOptions) -> Bfc {
    let mut bfc = Bfc::new(options);
    bfc.add_region(Span { address: 0, bytes: REGION }, false).unwrap();
    bfc
}

fn address(bfc: &mut Bfc, need: PlacementRequest) -> u64 {
    let place = bfc.place(&need).unwrap();
    bfc.check().unwrap();
    place.address
}

#[test]
fn blocks_of_half_the_largest_size_use_the_high_end() {
    let mut bfc = one_region(BfcOptions::new());
    let mut place = |kib: u64| address(&mut bfc, PlacementRequest::new(kib * KIB)) / KIB;
    assert_eq!(place(256), 2048 - 256);
    assert_eq!(place(128), 2048 - 256 - 128);
    assert_eq!(place(127), 0);
    // A larger one raises the bar.
    assert_eq!(place(512), 2048 - 256 - 128 - 512);
    assert_eq!(place(128), 127);
}

#[test]
fn blocks_up_to_16_kib_use_the_low_end() {
    let mut bfc = one_region(BfcOptions::new());
    let sizes = [256, 512, 8 * KIB, 16 * KIB, 16 * KIB + 1];
    let ends = sizes.map(|bytes| address(&mut bfc, PlacementRequest::new(bytes)) < REGION / 2);
    assert_eq!(ends, [true, true, true, true, false]);
}

#[test]
fn a_block_at_the_high_end_is_aligned_downwards() {
    let mut bfc = one_region(BfcOptions::new());
    let start = REGION - 128 * KIB;
    assert_eq!(address(&mut bfc, PlacementRequest::new(100 * KIB).with_alignment(64 * KIB)), start);
    assert_eq!((&bfc as &dyn Policy).free_bytes(), REGION - 100 * KIB);
    assert_eq!(address(&mut bfc, PlacementRequest::new(28 * KIB)), start + 100 * KIB);
}

#[test]
fn tensorflows_rule_cuts_every_block_from_the_low_end() {
    let mut bfc = one_region(BfcOptions::tensorflow());
    assert_eq!(BfcOptions::tensorflow().cut, CutRule::Low);
    assert_eq!(
        [8192, 8192, 256].map(|bytes| address(&mut bfc, PlacementRequest::new(bytes))),
        [0, 8192, 16_384]
    );
}

#[test]
fn a_pool_that_grows_cuts_from_the_low_end() {
    let pool = continued(BfcConfig::new(Bytes::gib(1)));
    let base = allocate(&pool, 4096).address;
    assert_eq!(pool.regions()[0].address, base);
}

#[test]
fn only_what_is_missing_behind_a_free_tail_is_taken() {
    let pool =
        continued(BfcConfig::new(Bytes::gib(1)).with_growth(GrowthRule::AsRequested { granule: Bytes(0) }));
    let first = allocate(&pool, MIB);
    let large = allocate(&pool, 3 * MIB);
    assert_eq!(large.address, first.address + MIB);
    assert_eq!(pool.stats().bytes_reserved, 4 * MIB);
    // Out of line with the tail: the padding counts as missing too.
    free(&pool, large);
    let aligned = pool.allocate(&Request::new(3 * MIB).with_alignment(2 * MIB)).unwrap();
    assert_eq!(aligned.address, first.address + 2 * MIB);
    assert_eq!(pool.stats().bytes_reserved, 5 * MIB);
    pool.check_invariants().unwrap();
}

#[test]
fn a_tail_is_continued_up_to_the_limit_and_not_beyond() {
    let pool = continued(BfcConfig::new(Bytes::mib(4)).with_retry(false));
    let _first = allocate(&pool, MIB);
    assert!(pool.allocate(&Request::new(3 * MIB + 1)).is_err());
    let _rest = allocate(&pool, 3 * MIB);
    assert_eq!(pool.stats().bytes_reserved, 4 * MIB);
}

#[test]
fn idle_regions_are_returned_for_a_larger_one() {
    let config = BfcConfig::new(Bytes::gib(1)).with_growth(GrowthRule::AsRequested { granule: Bytes(0) });
    for (merge, reserved, regions) in [(true, 8 * MIB, 2), (false, 17 * MIB, 4)] {
        let source = FakeSource::new(Nature::default());
        let pool = BfcAllocator::new("test", source.clone(), config.clone().with_region_merging(merge));
        let _kept = allocate(&pool, 2 * MIB);
        let idle = [4 * MIB, 5 * MIB].map(|bytes| allocate(&pool, bytes));
        for block in idle {
            free(&pool, block);
        }
        // Smaller than both together, larger than each.
        let _more = allocate(&pool, 6 * MIB);
        let (now, count) = (pool.stats().bytes_reserved, pool.regions().len());
        assert_eq!((now / MIB, count), (reserved / MIB, regions), "{merge}");
        pool.check_invariants().unwrap();
        source.assert_sound();
    }
}

/// Each new region is larger than the region that it replaces, so the regions of a recurring course settle.
#[test]
fn regions_that_make_way_for_each_other_by_turns_settle() {
    let config = BfcConfig::new(Bytes::gib(1)).with_growth(GrowthRule::AsRequested { granule: Bytes(0) });
    let source = FakeSource::new(Nature::default());
    let pool = BfcAllocator::new("test", source.clone(), config.with_region_merging(true));
    let mut regions = Vec::new();
    for _ in 0..8 {
        for sizes in [vec![4, 4, 4], vec![10], vec![3, 7, 5], vec![9, 9]] {
            let blocks: Vec<_> = sizes.into_iter().map(|size| allocate(&pool, size * MIB)).collect();
            blocks.into_iter().for_each(|block| free(&pool, block));
        }
        regions.push(pool.regions());
    }
    assert!(regions[3..].iter().all(|after| *after == regions[3]), "{regions:?}");
    source.assert_sound();
}
