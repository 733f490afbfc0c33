use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::base::memory::Span;
use crate::packing::{Lifetime, PackedBlock, PackingOptions};
use crate::policy::bfc::Bfc;
use crate::policy::{Piece, Release};

const ROOM: Span = Span { address: 4096, bytes: 1 << 20 };

/// A readable step: block sizes, with the number of the allocation before which each is freed.
fn packing_of(step: &[(u64, u32)]) -> Packing {
    // Events: allocation `n` has number `2 * n`; a free before it has number `2 * n - 1`.
    let lifetimes: Vec<Lifetime> = (0..)
        .zip(step)
        .map(|(index, &(bytes, gone_by))| Lifetime { bytes, start: 2 * index, end: 2 * gone_by - 1 })
        .collect();
    Packing::solve(&lifetimes, &PackingOptions::default().with_effort(2000)).unwrap()
}

fn with_room(packing: &Packing, room: Span) -> Packed<Bfc> {
    let mut packed = Packed::new(packing, Bfc::default());
    packed.add_region(room, false).unwrap();
    packed
}

/// Places a block that must fit, and checks the policy.
fn place(packed: &mut Packed<Bfc>, bytes: u64) -> Placement {
    let place = packed.place(&PlacementRequest::new(bytes)).unwrap();
    packed.check().unwrap();
    place
}

fn free(packed: &mut Packed<Bfc>, place: Placement) {
    packed.free(place.slot).unwrap();
    packed.check().unwrap();
}

fn free_all(packed: &mut Packed<Bfc>, places: &[Placement]) {
    for &place in places {
        free(packed, place);
    }
}

/// A short block, then two that fit side by side only without the short one.
const STEP: &[(u64, u32)] = &[(1024, 2), (2048, 3), (2048, 3)];

#[test]
fn a_packed_step_allows_any_order_of_frees() {
    let mut packed = with_room(&packing_of(STEP), Span { address: 0, bytes: 4096 });
    for step in 1..=4 {
        let [short, first] = [1024, 2048].map(|bytes| place(&mut packed, bytes));
        free(&mut packed, short);
        let second = place(&mut packed, 2048);
        let mut rest = [first, second];
        rest.rotate_left(step % 2);
        free_all(&mut packed, &rest);
        assert_eq!(packed.counts().packed, 3 * step as u64);
    }
    assert_eq!(packed.counts().steps, 4);
    assert_eq!((packed.counts().unexpected, packed.counts().refused), (0, 0));
}

#[test]
fn a_place_still_occupied_is_refused_and_served_by_the_fallback() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    let short = place(&mut packed, 1024);
    let first = place(&mut packed, 2048);
    // By the packing the short block is free now. It occupies the next block's offset.
    let second = place(&mut packed, 2048);
    assert_eq!((packed.counts().packed, packed.counts().refused), (2, 1));
    free_all(&mut packed, &[short, first, second]);
}

#[test]
fn the_next_step_does_not_overwrite_a_surviving_block() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    let old = place(&mut packed, 1024);
    packed.begin_step();
    let short = place(&mut packed, 1024);
    assert_ne!(old.address, short.address);
    assert_eq!(packed.counts().refused, 1);
    free(&mut packed, old);
    free(&mut packed, short);
    packed.begin_step();
    assert_eq!(
        place(&mut packed, 1024).address,
        old.address,
        "once it is gone, the packing has its place again"
    );
}

#[test]
fn an_allocation_outside_the_packing_uses_the_fallback_pool() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    let short = place(&mut packed, 1024);
    let extra = place(&mut packed, 7);
    let first = place(&mut packed, 2048);
    free(&mut packed, short);
    let second = place(&mut packed, 2048);
    assert_eq!((packed.counts().packed, packed.counts().unexpected), (3, 1));
    free_all(&mut packed, &[extra, first, second]);
}

#[test]
fn an_allocation_left_out_is_passed_over() {
    let packing = packing_of(&[(256, 4), (512, 4), (768, 4), (1024, 4)]);
    let mut packed = with_room(&packing, ROOM);
    let blocks = [256, 768, 1024].map(|bytes| place(&mut packed, bytes));
    assert_eq!(packed.counts().packed, 3);
    // The block comes late, while the packing has it live.
    let late = place(&mut packed, 512);
    free_all(&mut packed, &blocks);
    free(&mut packed, late);
}

#[test]
fn what_comes_before_the_first_step_is_not_taken_for_it() {
    let packing = packing_of(&[(256, 4), (512, 4), (768, 4), (1024, 4)]);
    let mut packed = with_room(&packing, ROOM);
    let weights = [512, 1024, 768].map(|bytes| place(&mut packed, bytes));
    assert_eq!(packed.counts().unexpected, 3);
    let blocks = [256, 512, 768, 1024].map(|bytes| place(&mut packed, bytes));
    assert_eq!(packed.counts().packed, 4);
    free_all(&mut packed, &blocks);
    free_all(&mut packed, &weights);
}

#[test]
fn a_step_cut_short_begins_anew_once_nothing_of_it_lives() {
    let packing = packing_of(&[(256, 4), (512, 4), (768, 4), (1024, 4)]);
    let mut packed = with_room(&packing, ROOM);
    let blocks = [256, 512].map(|bytes| place(&mut packed, bytes));
    free_all(&mut packed, &blocks);
    let blocks = [256, 512, 768, 1024].map(|bytes| place(&mut packed, bytes));
    assert_eq!((packed.counts().steps, packed.counts().packed), (2, 6));
    free_all(&mut packed, &blocks);
}

#[test]
fn a_step_of_other_sizes_uses_the_fallback_pool() {
    let step: Vec<(u64, u32)> = (0..200).map(|index| (1000 + index, 200)).collect();
    let mut packed = with_room(&packing_of(&step), ROOM);
    for (sizes, expected) in [(1000, 200), (500, 0), (1000, 200)] {
        let before = packed.counts().packed;
        let blocks: Vec<Placement> = (0..200).map(|index| place(&mut packed, sizes + index)).collect();
        assert_eq!(packed.counts().packed - before, expected);
        for block in blocks {
            free(&mut packed, block);
        }
    }
}

#[test]
fn a_block_outside_the_packing_keeps_the_step_in_place() {
    let lifetime = |bytes, start, end| Lifetime { bytes, start, end };
    let blocks = vec![
        PackedBlock { lifetime: lifetime(256, 0, 9), offset: Some(0) },
        PackedBlock { lifetime: lifetime(512, 1, 9), offset: None },
        PackedBlock { lifetime: lifetime(768, 2, 9), offset: Some(256) },
    ];
    let packing = Packing::from_blocks(256, blocks, Vec::new()).unwrap();
    let mut packed = with_room(&packing, ROOM);
    let blocks = [256, 512, 768].map(|bytes| place(&mut packed, bytes));
    assert_eq!((packed.counts().packed, packed.counts().left), (2, 1));
    assert!(blocks[1].address >= ROOM.address + packing.capacity());
    free_all(&mut packed, &blocks);
}

#[test]
fn needs_that_the_packing_cannot_meet_go_to_the_fallback() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    let place = packed.place(&PlacementRequest::new(1024).with_alignment(4096)).unwrap();
    assert_eq!(place.address % 4096, 0);
    assert_eq!(packed.counts().packed, 0);
    packed.check().unwrap();
}

#[test]
fn an_empty_packed_range_is_returned_on_demand() {
    let room = Span { address: 0, bytes: 8192 };
    let mut packed = with_room(&packing_of(STEP), room);
    let request = PlacementRequest::new(8192);
    assert_eq!(packed.place(&request), None);
    assert!(packed.merge_until_fit(&request));
    let all = packed.place(&request).unwrap();
    assert_eq!((all.address, all.bytes), (0, 8192));
    packed.check().unwrap();
    free(&mut packed, all);
    packed.begin_step();
    place(&mut packed, 1024);
    assert_eq!(packed.counts().packed, 1, "a step takes it again");
}

#[test]
fn holes_of_the_range_serve_when_there_is_no_other_room() {
    let mut packed = with_room(&packing_of(STEP), Span { address: 0, bytes: 4096 });
    let short = place(&mut packed, 1024);
    let request = PlacementRequest::new(2048);
    let other = PlacementRequest::new(2000);
    assert_eq!(packed.place(&other), None);
    assert!(packed.merge_until_fit(&other));
    let guest = packed.place(&other).unwrap();
    assert_eq!(packed.placed(guest.slot), Some(guest));
    packed.check().unwrap();
    assert_eq!(packed.place(&request), None, "its place is taken, and there is no other");
    assert!(!packed.merge_until_fit(&request));
    free(&mut packed, guest);
    let first = place(&mut packed, 2048);
    assert_eq!(packed.counts().packed, 2);
    free_all(&mut packed, &[short, first]);
}

#[test]
fn an_idle_range_does_not_keep_its_region() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    assert_eq!(packed.idle_bytes(), ROOM.bytes);
    let block = place(&mut packed, 1024);
    assert_eq!((packed.idle_bytes(), packed.release(Release::Idle { at_most: u64::MAX })), (0, None));
    free(&mut packed, block);
    assert_eq!(packed.release(Release::Idle { at_most: 1 }), None);
    packed.check().unwrap();
    assert_eq!(packed.release(Release::Idle { at_most: u64::MAX }), Some(ROOM));
    packed.check().unwrap();
}

#[test]
fn memory_is_asked_for_with_room_for_the_range_and_the_need() {
    let packing = packing_of(STEP);
    let mut packed = Packed::new(&packing, Bfc::default());
    let weights = PlacementRequest::new(10_000);
    assert_eq!(packed.place(&weights), None);
    let bytes = packed.region_bytes(10_240, 1);
    packed.add_region(Span { address: 0, bytes }, false).unwrap();
    assert!(packed.place(&weights).is_some());
    place(&mut packed, 1024);
    assert_eq!(packed.counts().packed, 1);
}

#[test]
fn memory_too_small_for_the_packing_serves_the_request() {
    let packing = packing_of(STEP);
    let mut packed = Packed::new(&packing, Bfc::default());
    let weights = PlacementRequest::new(4096);
    assert_eq!(packed.place(&weights), None);
    packed.add_region(Span { address: 0, bytes: 4096 }, false).unwrap();
    assert!(packed.place(&weights).is_some());
    assert_eq!(packed.region_bytes(256, 512), 512, "the range is not asked for again and again");
}

#[test]
fn slots_without_a_block_are_refused() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    let range_slot = packed.range.unwrap().slot + packed.script.len();
    for slot in [0, 2, 3, range_slot, 1000, u32::MAX] {
        assert_eq!(packed.free(slot), Err(crate::policy::NotLive { slot }));
        assert_eq!(packed.placed(slot), None);
    }
    let block = place(&mut packed, 1024);
    free(&mut packed, block);
    assert!(packed.free(block.slot).is_err());
}

#[test]
fn what_is_tried_on_a_copy_does_not_reach_the_original() {
    let mut packed = with_room(&packing_of(STEP), ROOM);
    let block = place(&mut packed, 1024);
    let before = format!("{packed:?}");
    let mut copy = packed.boxed_clone();
    copy.free(block.slot).unwrap();
    for bytes in [2048, 2048, 99, 1024] {
        copy.place(&PlacementRequest::new(bytes)).unwrap();
    }
    copy.check().unwrap();
    assert_eq!(format!("{packed:?}"), before);
}

/// A random deviation from the packing.
#[derive(Clone, Debug)]
enum Departure {
    /// None: the next allocation of the packing.
    Follow,
    /// Omits the next allocation of the packing.
    LeaveOut,
    /// Inserts an allocation of another size.
    Other(u64),
    /// Makes another packed allocation now.
    Elsewhere(prop::sample::Index),
    /// Frees a live block, early or late.
    Free(prop::sample::Index),
    /// Frees all live blocks.
    FreeAll,
    BeginStep,
    /// A request that finds no other room.
    Last(u64),
    TakeIdle,
}

fn departure() -> impl Strategy<Value = Departure> {
    prop_oneof![
        24 => Just(Departure::Follow),
        2 => Just(Departure::LeaveOut),
        2 => (1_u64..3000).prop_map(Departure::Other),
        2 => any::<prop::sample::Index>().prop_map(Departure::Elsewhere),
        6 => any::<prop::sample::Index>().prop_map(Departure::Free),
        1 => Just(Departure::FreeAll),
        1 => Just(Departure::BeginStep),
        2 => (1_u64..6000).prop_map(Departure::Last),
        1 => Just(Departure::TakeIdle),
    ]
}

/// A step of random sizes and lifetimes.
fn step() -> impl Strategy<Value = Vec<(u64, u32)>> {
    prop::collection::vec((1_u64..2000, 1_u32..12), 1..40).prop_map(|blocks| {
        let count = blocks.len() as u32;
        let gone_by = |index: u32, after: u32| (index + after).min(count);
        (0..)
            .zip(blocks)
            .map(|(index, (bytes, after))| (bytes / 300 * 300 + 1, gone_by(index, after)))
            .collect()
    })
}

/// Every live block by slot, with its request.
type Shadow = HashMap<u32, (Placement, u64)>;

/// Checks that no two blocks overlap, that all have their requested bytes, and that the policy shows exactly these.
fn compare(packed: &Packed<Bfc>, shadow: &Shadow) {
    packed.check().unwrap();
    let mut shown: Vec<Piece> = Vec::new();
    packed.visit(&mut |piece| shown.push(piece));
    let live: HashMap<u32, Span> = shown.iter().filter_map(|piece| Some((piece.slot?, piece.span))).collect();
    assert_eq!(live.len(), shadow.len());
    for (slot, (place, bytes)) in shadow {
        assert_eq!(live[slot], Span { address: place.address, bytes: place.bytes });
        assert_eq!(packed.placed(*slot), Some(*place));
        assert!(place.bytes >= *bytes);
    }
    // Spans tile the region, so live blocks cannot overlap either.
    let mut at = HashMap::new();
    for region in packed.regions() {
        at.insert(region.address, region);
    }
    let mut end = None;
    for piece in &shown {
        assert!(end == Some(piece.span.address) || at.contains_key(&piece.span.address), "{piece:?}");
        end = piece.span.end();
    }
    let free: u64 = shown.iter().filter(|piece| piece.slot.is_none()).map(|piece| piece.span.bytes).sum();
    assert_eq!((packed as &dyn Policy).free_bytes(), free);
    let largest = shown.iter().filter(|piece| piece.slot.is_none()).map(|piece| piece.span.bytes).max();
    assert_eq!(packed.largest_free_bytes(), largest.unwrap_or(0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Compares with a shadow of all live blocks, whatever deviates from the packing.
    #[test]
    fn blocks_never_overlap_whatever_departs_from_the_packing(
        step in step(),
        departures in prop::collection::vec(departure(), 1..300),
        spare in 0_u64..20,
    ) {
        let packing = packing_of(&step);
        let mut packed = with_room(&packing, Span { address: 0, bytes: packing.capacity() + 256 * spare });
        let mut shadow: Shadow = HashMap::new();
        // The program's position in its step, which the policy has to guess.
        let mut next = 0;
        let mut order: Vec<u32> = Vec::new();
        for departure in departures {
            let asked = match departure {
                Departure::Follow => {
                    // Frees the blocks that the packing has freed by now.
                    let due = |slot: &u32| step.get(*slot as usize).is_some_and(|block| block.1 as usize <= next);
                    let (freed, kept): (Vec<u32>, _) = order.into_iter().partition(due);
                    order = kept;
                    for slot in freed {
                        shadow.remove(&slot);
                        packed.free(slot).unwrap();
                    }
                    next = (next + 1) % step.len();
                    Some(step[(next + step.len() - 1) % step.len()].0)
                }
                Departure::LeaveOut => {
                    next = (next + 1) % step.len();
                    None
                }
                Departure::Other(bytes) | Departure::Last(bytes) => Some(bytes),
                Departure::Elsewhere(index) => Some(step[index.index(step.len())].0),
                Departure::Free(index) if !order.is_empty() => {
                    let slot = order.swap_remove(index.index(order.len()));
                    shadow.remove(&slot);
                    packed.free(slot).unwrap();
                    prop_assert!(packed.free(slot).is_err());
                    None
                }
                Departure::FreeAll => {
                    for slot in order.drain(..) {
                        packed.free(slot).unwrap();
                    }
                    shadow.clear();
                    None
                }
                Departure::BeginStep => {
                    packed.begin_step();
                    next = 0;
                    None
                }
                Departure::TakeIdle => {
                    let idle = packed.idle_bytes();
                    let taken = packed.release(Release::Idle { at_most: u64::MAX });
                    prop_assert_eq!(taken.map_or(0, |span| span.bytes), idle);
                    if let Some(span) = taken {
                        packed.add_region(span, false).unwrap();
                    }
                    None
                }
                Departure::Free(_) => None,
            };
            if let Some(bytes) = asked {
                let request = PlacementRequest::new(bytes);
                let last = matches!(departure, Departure::Last(_));
                let mut place = packed.place(&request);
                if place.is_none() && last && packed.merge_until_fit(&request) {
                    place = packed.place(&request);
                    prop_assert!(place.is_some(), "room that was made is there");
                }
                if let Some(place) = place {
                    prop_assert!(shadow.insert(place.slot, (place, bytes)).is_none(), "the slot was free");
                    order.push(place.slot);
                }
            }
            compare(&packed, &shadow);
        }
    }

    /// A step that follows the packing is packed to the last block, also after a step that did not.
    #[test]
    fn a_faithful_step_is_packed_throughout(step in step(), steps in 1_usize..4) {
        let packing = packing_of(&step);
        let mut packed = with_room(&packing, ROOM);
        let stray = packed.place(&PlacementRequest::new(5000)).unwrap();
        packed.begin_step();
        for _ in 0..steps {
            let before = packed.counts().packed;
            let mut live: Vec<(u32, Placement)> = Vec::new();
            for (index, &(bytes, gone_by)) in (0..).zip(&step) {
                let (freed, kept): (Vec<_>, _) = live.into_iter().partition(|&(gone_by, _)| gone_by <= index);
                live = kept;
                for (_, place) in freed {
                    packed.free(place.slot).unwrap();
                }
                live.push((gone_by, packed.place(&PlacementRequest::new(bytes)).unwrap()));
                packed.check().unwrap();
            }
            prop_assert_eq!(packed.counts().packed - before, step.len() as u64);
            for (_, place) in live {
                packed.free(place.slot).unwrap();
            }
        }
        packed.free(stray.slot).unwrap();
        prop_assert_eq!(packed.live, 0);
    }
}

/// Before a step the range returns to the fallback for a request without other room, and merges with free neighbors.
#[test]
fn an_empty_range_can_be_had_with_what_it_joins() {
    let mut packed = with_room(&packing_of(STEP), Span { address: 0, bytes: 8192 });
    assert_eq!((packed.largest_free_bytes(), packed.largest_obtainable_bytes()), (4096, 8192));
    let short = place(&mut packed, 1024);
    assert_eq!(packed.largest_obtainable_bytes(), 4096, "the range holds a block now");
    free(&mut packed, short);
    assert!(packed.place(&PlacementRequest::new(8192)).is_none());
    assert!(packed.merge_until_fit(&PlacementRequest::new(8192)));
    assert_eq!(place(&mut packed, 8192).bytes, 8192);
    assert_eq!(packed.largest_obtainable_bytes(), 0);
}
