//! The auto-growth policy: Paddle's cases with its sizes, and random sequences beside the plainest policy.

use bfc_core::{AutoGrowth, AutoGrowthOptions, Bytes, PlacementRequest, Policy, Release, Span};
use proptest::prelude::*;

use crate::shadow::plain::{Plain, Rules};
use crate::shadow::{Shadow, pieces_of, refuses_the_impossible, steps};

fn rules(options: &AutoGrowthOptions, padding: u64) -> Rules {
    Rules { step: options.alignment().0, overhead: padding, upper_end: true, ..Rules::PLAIN }
}

fn idle(plain: &Plain) -> Vec<Span> {
    plain.regions.iter().filter(|region| region.is_idle()).map(|region| region.span).collect()
}

fn nothing_unwanted(_: &Plain, _: Release) -> Vec<Span> {
    Vec::new()
}

fn idle_after_a_free(plain: &Plain, release: Release) -> Vec<Span> {
    if release == Release::Unwanted { idle(plain) } else { Vec::new() }
}

fn idle_before_growth(plain: &Plain, release: Release) -> Vec<Span> {
    if release == Release::BeforeGrowth { idle(plain) } else { Vec::new() }
}

#[test]
fn the_rest_of_a_block_stays_at_the_lower_end() {
    let mut policy = AutoGrowth::new(AutoGrowthOptions::gpu());
    policy.add_region(Span { address: 0x1000, bytes: 4096 }, false).unwrap();
    let places = [1000, 256, 300].map(|bytes| policy.place(&PlacementRequest::new(bytes)).unwrap());
    assert_eq!(
        places.map(|place| (place.address, place.bytes)),
        [(0x1c00, 1024), (0x1b00, 256), (0x1900, 512)]
    );
    assert_eq!(policy.largest_free_bytes(), 0x900);
    policy.check().unwrap();
}

#[test]
fn the_lowest_of_the_smallest_fitting_blocks_is_used() {
    let mut policy = AutoGrowth::new(AutoGrowthOptions::gpu());
    for (address, bytes) in [(0x9000, 1024), (0x5000, 1024), (0x2000, 4096)] {
        policy.add_region(Span { address, bytes }, false).unwrap();
    }
    let places = [1000, 1000, 1000].map(|bytes| policy.place(&PlacementRequest::new(bytes)).unwrap().address);
    assert_eq!(places, [0x5000, 0x9000, 0x2c00]);
}

#[test]
fn a_freed_block_merges_only_within_its_region() {
    let mut policy = AutoGrowth::new(AutoGrowthOptions::gpu());
    for address in [0x1000, 0x1400] {
        policy.add_region(Span { address, bytes: 1024 }, true).unwrap();
    }
    let slots = [256; 8].map(|bytes| policy.place(&PlacementRequest::new(bytes)).unwrap().slot);
    for slot in slots {
        policy.free(slot).unwrap();
        policy.check().unwrap();
    }
    assert_eq!(pieces_of(&policy).len(), 2);
    assert_eq!((policy.largest_free_bytes(), policy.idle_bytes()), (1024, 2048));
}

#[test]
fn above_a_block_of_greater_alignment_the_rest_stays_free_too() {
    let mut policy = AutoGrowth::new(AutoGrowthOptions::gpu());
    policy.add_region(Span { address: 0x1000, bytes: 0x2800 }, false).unwrap();
    let place = policy.place(&PlacementRequest::new(256).with_alignment(4096)).unwrap();
    assert_eq!((place.address, place.bytes), (0x3000, 256));
    let pieces: Vec<_> =
        pieces_of(&policy).iter().map(|piece| (piece.span.address, piece.span.bytes)).collect();
    assert_eq!(pieces, [(0x1000, 0x2000), (0x3000, 0x100), (0x3100, 0x700)]);
    policy.free(place.slot).unwrap();
    assert_eq!(policy.largest_free_bytes(), 0x2800);
    policy.check().unwrap();
}

#[test]
fn a_region_is_as_large_as_its_request_or_as_the_chunk_size() {
    let policy = |options| AutoGrowth::new(options);
    assert_eq!(policy(AutoGrowthOptions::gpu()).region_bytes(4096, 1 << 30), 4096);
    let options = AutoGrowthOptions::gpu().with_chunk_size(Bytes::mib(1));
    assert_eq!(policy(options).region_bytes(4096, 0), 1 << 20);
    assert_eq!(policy(options).region_bytes(2 << 20, 0), 2 << 20);
}

#[test]
fn needs_at_the_edge_of_the_address_space_are_refused_or_met() {
    refuses_the_impossible(AutoGrowth::default());
    refuses_the_impossible(AutoGrowth::new(AutoGrowthOptions::pinned().with_padding(Bytes(100))));
    let options = AutoGrowthOptions::gpu().with_padding(Bytes(u64::MAX));
    assert_eq!(AutoGrowth::new(options).rounded(1, 1), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_sequences_go_as_the_plainest_policy_says(steps in steps(96 << 10), padding in 0..200_u64) {
        let options = AutoGrowthOptions::gpu().with_padding(Bytes(padding));
        Shadow::new(AutoGrowth::new(options), rules(&options, padding), nothing_unwanted).run(&steps);
    }

    #[test]
    fn so_they_do_with_chunk_sizes_and_idle_regions_freed_at_once(steps in steps(32 << 10)) {
        let options = AutoGrowthOptions::gpu().with_chunk_size(Bytes::kib(20)).with_free_idle_chunks(true);
        Shadow::new(AutoGrowth::new(options), rules(&options, 0), idle_after_a_free).run(&steps);
    }

    #[test]
    fn and_with_idle_regions_freed_before_growth(steps in steps(32 << 10)) {
        let options = AutoGrowthOptions::cpu().with_free_before_growth(true);
        Shadow::new(AutoGrowth::new(options), rules(&options, 0), idle_before_growth).run(&steps);
    }
}
