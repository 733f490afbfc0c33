//! Tests of a policy with overwritten descriptors.

use proptest::prelude::*;

use super::*;
use crate::base::memory::Span;
use crate::base::placement::Placement;
use crate::policy::{NotLive, Piece, PlacementRequest, Release};

fn small() -> BuddyOptions {
    BuddyOptions::new(Bytes(256), Bytes::kib(64)).unwrap()
}

fn pieces_of(buddy: &Buddy) -> Vec<Piece> {
    let mut pieces = Vec::new();
    buddy.visit(&mut |piece| pieces.push(piece));
    pieces
}

/// Creates three blocks, the middle one free, and free memory behind: slots 0, 1, 2 and 3.
fn four_pieces() -> Buddy {
    let mut buddy = Buddy::new(small());
    buddy.add_region(Span { address: 0, bytes: 4096 }, false).unwrap();
    let slots = [512, 512, 512].map(|bytes| buddy.place(&PlacementRequest::new(bytes)).unwrap().slot);
    assert_eq!(slots, [0, 1, 2]);
    buddy.free(1, 0).unwrap();
    buddy.check().unwrap();
    buddy
}

#[test]
fn an_overwritten_descriptor_refuses_all_later_requests() {
    for word in 0..6 {
        for bit in 0..64 {
            let mut buddy = four_pieces();
            let before = pieces_of(&buddy);
            assert!(buddy.overwrite_descriptor(1, word, 1 << bit));
            assert!(buddy.check().is_err(), "word {word}, bit {bit}");
            assert_eq!(buddy.status().damage, None, "nothing has met it yet");
            for _ in 0..2 {
                assert_eq!(buddy.place(&PlacementRequest::new(512)), None);
                assert_eq!(buddy.place(&PlacementRequest::new(2048)), None);
            }
            let damage = buddy.status().damage.unwrap();
            assert_eq!(damage.detail, "the descriptor of slot 1 was overwritten");
            assert_eq!(buddy.check(), Err(damage));
            // Intact chunks are unchanged.
            assert!(buddy.overwrite_descriptor(1, word, 1 << bit));
            assert_eq!(pieces_of(&buddy), before);
        }
    }
}

#[test]
fn a_neighbor_is_checked_before_it_is_changed() {
    // The third block's slot is the left neighbor of free memory and is not loaded; the second's right neighbor is.
    let mut buddy = four_pieces();
    buddy.overwrite_descriptor(2, 2, 1);
    assert_eq!(buddy.place(&PlacementRequest::new(256)), None);
    assert!(buddy.status().damage.unwrap().detail.contains("slot 2"));
    assert_eq!(buddy.placed(2), None);
    assert!(buddy.placed(0).is_some());
}

#[test]
fn a_block_whose_descriptor_was_overwritten_is_not_freed() {
    let mut buddy = four_pieces();
    let before = buddy.used_bytes();
    buddy.overwrite_descriptor(2, 1, 256);
    assert_eq!(buddy.free(2, 0), Err(NotLive { slot: 2 }));
    assert!(buddy.status().damage.is_some());
    assert_eq!(buddy.used_bytes(), before);
    assert_eq!(buddy.place(&PlacementRequest::new(1)), None);
}

#[test]
fn a_block_beside_an_overwritten_descriptor_is_freed_apart() {
    for overwritten in [1, 3] {
        let mut buddy = four_pieces();
        buddy.overwrite_descriptor(overwritten, 5, 1 << 63);
        assert_eq!(buddy.free(2, 0), Ok(()));
        assert_eq!(buddy.used_bytes(), 512);
        assert!(buddy.status().damage.unwrap().detail.contains(&format!("slot {overwritten} ")));
        // With the guard restored, all sums match, except for the two unmerged chunks.
        buddy.overwrite_descriptor(overwritten, 5, 1 << 63);
        let covered: u64 = pieces_of(&buddy).iter().map(|piece| piece.span.bytes).sum();
        assert_eq!(covered, 4096);
    }
}

#[test]
fn regions_are_returned_whatever_was_overwritten() {
    let mut buddy = four_pieces();
    buddy.add_region(Span { address: 8192, bytes: 4096 }, false).unwrap();
    for slot in 0..4 {
        buddy.overwrite_descriptor(slot, 0, u64::MAX);
    }
    assert_eq!(buddy.regions().len(), 2);
    assert_eq!(buddy.release(Release::Idle { at_most: u64::MAX }), Some(Span { address: 8192, bytes: 4096 }));
    assert_eq!(buddy.release(Release::Idle { at_most: u64::MAX }), None);
    assert_eq!(pieces_of(&buddy), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_overwritten_descriptor_never_misplaces_a_block(
        steps in prop::collection::vec((1..9000_u64, any::<bool>(), any::<usize>()), 1..60),
        more in prop::collection::vec((1..9000_u64, any::<usize>()), 1..40),
        (slot, word, flip) in (0..24_u32, 0..6_usize, 1..u64::MAX),
    ) {
        let mut buddy = Buddy::new(small());
        for address in [0, 64 << 10] {
            buddy.add_region(Span { address, bytes: 32 << 10 }, false).unwrap();
        }
        let mut live: Vec<Placement> = Vec::new();
        for (bytes, frees, pick) in steps {
            if frees && !live.is_empty() {
                let place = live.swap_remove(pick % live.len());
                buddy.free(place.slot, 0).unwrap();
            } else {
                live.extend(buddy.place(&PlacementRequest::new(bytes)));
            }
        }
        let regions = buddy.regions();
        let slot = (0..=slot).rev().find(|&slot| buddy.overwrite_descriptor(slot, word, flip)).unwrap();
        prop_assert!(buddy.check().is_err());
        for (bytes, pick) in more {
            if let Some(place) = buddy.place(&PlacementRequest::new(bytes)) {
                prop_assert_eq!(buddy.status().damage, None);
                let overlaps = |other: &Placement| {
                    place.address < other.address + other.bytes && other.address < place.address + place.bytes
                };
                prop_assert!(!live.iter().any(overlaps));
                let inside = |region: &Span| {
                    region.address <= place.address && place.address + place.bytes <= region.address + region.bytes
                };
                prop_assert!(regions.iter().any(inside));
                live.push(place);
            }
            if !live.is_empty() {
                let place = live.swap_remove(pick % live.len());
                if buddy.free(place.slot, 0).is_err() {
                    prop_assert_eq!(place.slot, slot);
                    prop_assert!(buddy.status().damage.is_some());
                    live.push(place);
                }
            }
            prop_assert_eq!(buddy.regions(), regions.clone());
        }
    }
}
