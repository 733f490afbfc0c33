//! `JoinRule::Deferred`: recently freed small blocks stay unjoined until a request arrives that none of them
//! fits.

use std::sync::Arc;

use crate::common::{allocate, free};
use bfc_core::{
    AddressOnlyMemory, Allocator, Bfc, BfcAllocator, BfcConfig, BfcOptions, Bytes, CutRule, JoinRule, KIB,
    PlacementRequest, Policy, PoolView, Release, Request, Span, TimedPolicy, TimingCounter,
};

const REGION: u64 = 1024 * KIB;

/// The largest block that stays unjoined.
const LARGEST: u64 = 64 * KIB;

fn region(join: JoinRule) -> Bfc {
    let mut options = BfcOptions::new();
    (options.cut, options.join) = (CutRule::Low, join);
    over(options)
}

fn over(options: BfcOptions) -> Bfc {
    let mut bfc = Bfc::new(options);
    bfc.add_region(Span { address: 0, bytes: REGION }, false).unwrap();
    bfc
}

/// Returns the slot and the address of a new block of this many bytes.
fn place(bfc: &mut Bfc, bytes: u64) -> (u32, u64) {
    let place = bfc.place(&PlacementRequest::new(bytes)).unwrap();
    bfc.check().unwrap();
    (place.slot, place.address)
}

/// Allocates adjacent blocks of these sizes from the low end.
fn row<const N: usize>(bfc: &mut Bfc, sizes: [u64; N]) -> [u32; N] {
    sizes.map(|bytes| place(bfc, bytes).0)
}

fn give_back(bfc: &mut Bfc, slots: impl IntoIterator<Item = u32>) {
    for slot in slots {
        bfc.free(slot).unwrap();
        bfc.check().unwrap();
    }
}

/// Returns the policy's spans and whether each is in use.
fn shown(bfc: &Bfc) -> Vec<(u64, u64, bool)> {
    let mut shown = Vec::new();
    bfc.visit(&mut |piece| shown.push((piece.span.address, piece.span.bytes, piece.slot.is_some())));
    shown
}

#[test]
fn a_small_block_is_reused_by_the_next_request_of_its_size() {
    for (join, expected) in [(JoinRule::Deferred, 2560), (JoinRule::AtOnce, 0)] {
        let mut bfc = region(join);
        let [low, _, high, _] = row(&mut bfc, [512, 2048, 512, 256]);
        give_back(&mut bfc, [low]);
        // Joined, or returned to the search structure: later frees come first.
        place(&mut bfc, 4096);
        give_back(&mut bfc, [high]);
        assert_eq!(place(&mut bfc, 300).1, expected, "{join:?}");
    }
}

#[test]
fn a_request_that_fits_none_of_them_finds_all_joined() {
    let mut bfc = region(JoinRule::Deferred);
    let rest = REGION - 3 * 512 - 256;
    let mut slots = row(&mut bfc, [512, 512, 512]);
    place(&mut bfc, 256);
    place(&mut bfc, rest);
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        give_back(&mut bfc, order.map(|n: usize| slots[n]));
        // Only the three blocks together leave enough room.
        let (whole, address) = place(&mut bfc, 3 * 512);
        assert_eq!(address, 0);
        give_back(&mut bfc, [whole]);
        slots = row(&mut bfc, [512, 512, 512]);
    }
}

#[test]
fn four_at_most_stay_and_the_oldest_is_joined_for_the_next() {
    let mut bfc = region(JoinRule::Deferred);
    let slots = row(&mut bfc, [512, 256, 768, 256, 1024, 256, 1280, 256, 1536, 256]);
    give_back(&mut bfc, [slots[0], slots[2], slots[4], slots[6], slots[8]]);
    // The block of 512 bytes has left the four, so this request joins the others; each is then the best fit for its size.
    assert_eq!(place(&mut bfc, 512).1, 0);
    assert_eq!([768, 1024, 1280, 1536].map(|bytes| place(&mut bfc, bytes).1), [768, 1792, 3072, 4608]);
}

#[test]
fn a_block_of_more_than_64_kib_is_joined_at_once() {
    for (bytes, stays) in [(LARGEST, true), (LARGEST + 256, false)] {
        let mut bfc = region(JoinRule::Deferred);
        let [low, _, high, _] = row(&mut bfc, [bytes, 256, bytes, 256]);
        give_back(&mut bfc, [low]);
        // From here on the search finds the low block.
        place(&mut bfc, 4 * LARGEST);
        give_back(&mut bfc, [high]);
        assert_eq!(place(&mut bfc, bytes).1, if stays { bytes + 256 } else { 0 });
    }
}

#[test]
fn whoever_looks_sees_them_joined() {
    let mut bfc = region(JoinRule::Deferred);
    let slots = row(&mut bfc, [512, 256, 1024, 2048]);
    let [a, b, c, d] = slots;
    give_back(&mut bfc, [b, d]);
    assert_eq!(
        shown(&bfc),
        [(0, 512, true), (512, 256, false), (768, 1024, true), (1792, REGION - 1792, false)]
    );
    assert_eq!(
        ((&bfc as &dyn Policy).free_bytes(), bfc.largest_free_bytes()),
        (REGION - 1536, REGION - 1792)
    );
    assert_eq!(bfc.status().tail, Some(Span { address: 1792, bytes: REGION - 1792 }));
    assert_eq!(bfc.idle_bytes(), 0);
    give_back(&mut bfc, [a, c]);
    assert_eq!(shown(&bfc), [(0, REGION, false)]);
    assert_eq!((bfc.largest_free_bytes(), bfc.idle_bytes()), (REGION, REGION));
    assert_eq!(bfc.status().tail, Some(Span { address: 0, bytes: REGION }));
}

#[test]
fn to_look_changes_nothing() {
    let run = |looks: bool| {
        let mut bfc = region(JoinRule::Deferred);
        let slots = row(&mut bfc, [512, 768, 512, 1024, 512, 256]);
        give_back(&mut bfc, [slots[0], slots[4], slots[2]]);
        if looks {
            shown(&bfc);
            let _ = (
                bfc.largest_free_bytes(),
                bfc.idle_bytes(),
                bfc.status().tail,
                (&bfc as &dyn Policy).free_bytes(),
            );
            assert_eq!(
                (bfc.release(Release::Idle { at_most: u64::MAX }), bfc.release(Release::Tail { bytes: 0 })),
                (None, None)
            );
        }
        [512, 512, 512, 512].map(|bytes| place(&mut bfc, bytes).1)
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn a_region_is_given_back_though_its_blocks_were_freed_last() {
    let config = BfcConfig::new(Bytes(REGION)).with_allow_growth(false);
    let pool = BfcAllocator::new("idle", Arc::new(AddressOnlyMemory::new()), config);
    let blocks = [512, 1024, 512].map(|bytes| allocate(&pool, bytes));
    blocks.into_iter().for_each(|block| free(&pool, block));
    assert_eq!(pool.trim(Bytes(0)), REGION);
    assert_eq!(pool.stats().bytes_reserved, 0);
    pool.check_invariants().unwrap();
}

#[test]
fn a_region_tail_is_returned_after_its_last_free() {
    let mut bfc = region(JoinRule::Deferred);
    let [_, last] = row(&mut bfc, [512, 512]);
    let [rest] = row(&mut bfc, [REGION - 2048]);
    let [end] = row(&mut bfc, [1024]);
    give_back(&mut bfc, [rest, end, last]);
    assert_eq!(
        bfc.release(Release::Tail { bytes: REGION - 512 }),
        Some(Span { address: 512, bytes: REGION - 512 })
    );
    bfc.check().unwrap();
    assert_eq!(shown(&bfc), [(0, 512, true)]);
}

#[test]
fn an_aligned_request_finds_them_joined() {
    let mut bfc = region(JoinRule::Deferred);
    let slots = row(&mut bfc, [256, 2048, 2048, 256]);
    place(&mut bfc, REGION - 4608);
    give_back(&mut bfc, [slots[1], slots[2]]);
    let place = bfc.place(&PlacementRequest::new(2048).with_alignment(2048)).unwrap();
    bfc.check().unwrap();
    assert_eq!(place.address, 2048);
}

#[test]
fn frees_that_bear_counts_wait_for_the_frontier_alone() {
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(Bytes(4096)).with_allow_growth(false).with_retry(false);
    let config = config.with_cut_rule(CutRule::Low).with_timing_counter(counter.clone());
    let pool = BfcAllocator::new("counted", Arc::new(AddressOnlyMemory::new()), config);
    let blocks = [512, 512].map(|bytes| allocate(&pool, bytes));
    blocks.into_iter().for_each(|block| free(&pool, block));
    let kept: Vec<u64> = pool.chunks().iter().map(|chunk| chunk.bytes).collect();
    assert_eq!(kept, [512, 512, 3072]);
    pool.set_safe_frontier(counter.current() + 1);
    allocate(&pool, 4096);
}

#[test]
fn late_chunks_are_merged_as_a_last_resort() {
    let mut bfc = region(JoinRule::Deferred);
    let slots = row(&mut bfc, [512, 512, 512, 512]);
    place(&mut bfc, REGION - 2048);
    bfc.free_at(slots[1], 7).unwrap();
    give_back(&mut bfc, [slots[0], slots[2]]);
    let need = PlacementRequest::new(2048);
    assert_eq!(bfc.place(&need), None);
    give_back(&mut bfc, [slots[3]]);
    assert!(bfc.merge_until_fit(&need));
    bfc.check().unwrap();
    assert_eq!(bfc.place(&need).unwrap().address, 0);
}

#[test]
fn what_becomes_ripe_beside_them_is_joined_with_them_later() {
    let mut bfc = region(JoinRule::Deferred);
    let slots = row(&mut bfc, [512, 512, 512]);
    place(&mut bfc, REGION - 1536);
    bfc.free_at(slots[1], 7).unwrap();
    give_back(&mut bfc, [slots[0], slots[2]]);
    bfc.merge_ripe(8);
    bfc.check().unwrap();
    assert_eq!(place(&mut bfc, 1536).1, 0);
}

#[test]
fn a_copy_of_the_pool_goes_on_as_the_pool_does() {
    let mut bfc = region(JoinRule::Deferred);
    let slots = row(&mut bfc, [512, 256, 512, 768, 512]);
    give_back(&mut bfc, [slots[0], slots[2], slots[4]]);
    let mut copy = bfc.clone();
    for bytes in [512, 768, 512, 256] {
        assert_eq!(place(&mut bfc, bytes), place(&mut copy, bytes));
    }
}

#[test]
fn what_stays_as_it_is_is_no_reason_to_refuse() {
    let config = BfcConfig::new(Bytes(16 * KIB)).with_allow_growth(false).with_retry(false);
    let pool = BfcAllocator::new("full", Arc::new(AddressOnlyMemory::new()), config);
    let blocks: Vec<_> = (0..16).map(|_| allocate(&pool, KIB)).collect();
    blocks.into_iter().for_each(|block| free(&pool, block));
    let request = Request::new(16 * KIB);
    assert_eq!(pool.would_fit(&request, &[]), Some(true));
    assert_eq!(allocate(&pool, 16 * KIB).bytes, 16 * KIB);
}
