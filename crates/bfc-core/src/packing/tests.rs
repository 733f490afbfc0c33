use proptest::prelude::*;

use super::problem::Problem;
use super::search::{Outcome, Restarts};
use super::sections::Sections;
use super::*;

fn lifetime(bytes: u64, start: u32, end: u32) -> Lifetime {
    Lifetime { bytes, start, end }
}

/// Checks that every pair of packed blocks is disjoint in time or space, and that the capacity is the end of the
/// highest block.
fn check(packing: &Packing) {
    let blocks = packing.blocks();
    let span = |block: &PackedBlock| {
        block.offset.map(|offset| (offset, offset + packing.rounded(block.lifetime.bytes).unwrap()))
    };
    for (index, a) in blocks.iter().enumerate() {
        let Some((a_start, a_end)) = span(a) else { continue };
        assert!(a_end <= packing.capacity() && a_start % packing.granule() == 0);
        for b in &blocks[..index] {
            let Some((b_start, b_end)) = span(b) else { continue };
            let in_time = a.lifetime.start < b.lifetime.end && b.lifetime.start < a.lifetime.end;
            assert!(!in_time || a_end <= b_start || b_end <= a_start, "{a:?} {b:?}");
        }
    }
    assert_eq!(blocks.iter().filter_map(span).map(|(_, end)| end).max().unwrap_or(0), packing.capacity());
    assert!(packing.capacity() >= packing.lower_bound());
}

/// Returns the smallest capacity, by trying every order: each block at the lowest offset where it fits. Some order
/// gives each sunk placement.
fn least_capacity(lifetimes: &[Lifetime]) -> u64 {
    fn place(placed: &mut Vec<(Lifetime, u64)>, left: &mut Vec<Lifetime>) -> u64 {
        if left.is_empty() {
            return placed.iter().map(|(block, offset)| offset + block.bytes).max().unwrap_or(0);
        }
        let mut least = u64::MAX;
        for index in 0..left.len() {
            let block = left.remove(index);
            let mut others: Vec<(u64, u64)> = placed
                .iter()
                .filter(|(other, _)| other.start < block.end && block.start < other.end)
                .map(|(other, offset)| (*offset, offset + other.bytes))
                .collect();
            others.sort_unstable();
            let lowest = others.iter().fold(
                0,
                |at, &(start, end)| {
                    if start >= at + block.bytes { at } else { at.max(end) }
                },
            );
            // A gap below a passed one never returns, because `at` only grows.
            placed.push((block, lowest));
            least = least.min(place(placed, left));
            placed.pop();
            left.insert(index, block);
        }
        least
    }
    place(&mut Vec::new(), &mut lifetimes.to_vec())
}

/// Converts the lifetimes for the methods, with a granule of one byte.
fn problem(lifetimes: &[Lifetime]) -> Problem {
    let sizes: Vec<u64> = lifetimes.iter().map(|lifetime| lifetime.bytes).collect();
    let sections = Sections::new(lifetimes);
    let lower_bound = sections.live(&sizes).into_iter().max().unwrap_or(0);
    Problem { sizes, sections, lower_bound }
}

fn lifetimes(count: std::ops::Range<usize>, bytes: u64, events: u32) -> impl Strategy<Value = Vec<Lifetime>> {
    let block = (1..=bytes, 0..events, 1..=events);
    prop::collection::vec(block, count).prop_map(|blocks| {
        let mut lifetimes: Vec<Lifetime> =
            blocks.into_iter().map(|(bytes, start, length)| lifetime(bytes, start, start + length)).collect();
        lifetimes.sort_by_key(|lifetime| lifetime.start);
        lifetimes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_two_blocks_overlap_in_time_and_space(lifetimes in lifetimes(0..120, 3000, 60)) {
        for granule in [1, 256] {
            let options = PackingOptions::default().with_granule(granule).with_effort(20_000);
            let packing = Packing::solve(&lifetimes, &options).unwrap();
            check(&packing);
            prop_assert_eq!(Packing::from_blocks(granule, packing.blocks().to_vec(), Vec::new()).unwrap(), packing);
        }
    }

    #[test]
    fn the_same_lifetimes_give_the_same_packing(lifetimes in lifetimes(1..60, 100, 30)) {
        let options = PackingOptions::default().with_granule(1).with_effort(20_000);
        prop_assert_eq!(Packing::solve(&lifetimes, &options), Packing::solve(&lifetimes, &options));
    }

    #[test]
    fn small_packings_are_optimal(lifetimes in lifetimes(1..7, 6, 8)) {
        let options = PackingOptions::default().with_granule(1).with_effort(2_000_000);
        let packing = Packing::solve(&lifetimes, &options).unwrap();
        check(&packing);
        prop_assert_eq!(packing.capacity(), least_capacity(&lifetimes));
    }

    #[test]
    fn a_search_finds_what_there_is_and_nothing_below_it(lifetimes in lifetimes(1..7, 6, 8)) {
        let problem = problem(&lifetimes);
        let least = least_capacity(&lifetimes);
        let mut restarts = Restarts::new(&problem);
        // Two rounds of all orders and rules, the second with moved blocks.
        for _ in 0..20 {
            let (outcome, _, offsets) = restarts.search(least, u64::MAX);
            prop_assert_eq!(outcome, Outcome::Found);
            let placed = lifetimes.iter().zip(offsets);
            let blocks = placed.map(|(&lifetime, offset)| PackedBlock { lifetime, offset: Some(offset) });
            prop_assert_eq!(Packing::from_blocks(1, blocks.collect(), Vec::new()).unwrap().capacity(), least);
            prop_assert_eq!(restarts.search(least - 1, u64::MAX).0, Outcome::Impossible);
        }
    }

    #[test]
    fn blocks_that_are_left_to_others_have_no_offset(lifetimes in lifetimes(1..50, 3000, 30), modulus in 2_usize..5) {
        let options = PackingOptions::default().with_effort(20_000);
        let packing = Packing::solve_constrained(&lifetimes, Vec::new(), |index| index % modulus == 0, &options, &mut |_| true).unwrap();
        check(&packing);
        for (index, block) in packing.blocks().iter().enumerate() {
            prop_assert_eq!(block.offset.is_some(), index % modulus == 0);
        }
        prop_assert_eq!(Packing::from_blocks(256, packing.blocks().to_vec(), Vec::new()).unwrap(), packing);
    }

    /// Any contents of a file are rejected or consistent.
    #[test]
    fn blocks_from_elsewhere_are_refused_or_sound(
        lifetimes in lifetimes(1..12, 600, 8),
        offsets in prop::collection::vec(prop::option::of(0_u64..8), 12),
    ) {
        let blocks: Vec<PackedBlock> = lifetimes
            .into_iter()
            .zip(offsets)
            .map(|(lifetime, offset)| PackedBlock { lifetime, offset: offset.map(|offset| offset * 256) })
            .collect();
        let overlaps = blocks.iter().enumerate().any(|(index, a)| blocks[..index].iter().any(|b| {
            let (Some(a_start), Some(b_start)) = (a.offset, b.offset) else { return false };
            a.lifetime.start < b.lifetime.end && b.lifetime.start < a.lifetime.end
                && a_start < b_start + b.lifetime.bytes.next_multiple_of(256)
                && b_start < a_start + a.lifetime.bytes.next_multiple_of(256)
        }));
        match Packing::from_blocks(256, blocks, Vec::new()) {
            Ok(packing) => {
                prop_assert!(!overlaps);
                check(&packing);
            }
            Err(error) => prop_assert!(overlaps && matches!(error, PackingError::Overlap { .. }), "{error}"),
        }
    }
}

#[test]
fn nothing_needs_no_room() {
    let packing = Packing::solve(&[], &PackingOptions::default()).unwrap();
    assert_eq!((packing.capacity(), packing.lower_bound(), packing.blocks().len()), (0, 0, 0));
}

#[test]
fn a_block_may_take_the_place_of_one_that_ends_where_it_starts() {
    let packing =
        Packing::solve(&[lifetime(100, 0, 5), lifetime(100, 5, 9)], &PackingOptions::default()).unwrap();
    assert_eq!(packing.capacity(), 256);
}

#[test]
fn lifetimes_that_make_no_sense_are_refused() {
    let solve = |lifetimes: &[Lifetime]| Packing::solve(lifetimes, &PackingOptions::default()).unwrap_err();
    let good = lifetime(1, 3, 4);
    assert_eq!(solve(&[good, lifetime(0, 3, 4)]), PackingError::Empty { index: 1 });
    assert_eq!(solve(&[lifetime(1, 4, 4)]), PackingError::Empty { index: 0 });
    assert_eq!(solve(&[good, lifetime(1, 2, 4)]), PackingError::OutOfOrder { index: 1 });
    assert_eq!(solve(&[lifetime(u64::MAX, 0, 1)]), PackingError::TooLarge { index: 0 });
    let half = lifetime(1 << 62, 3, 4);
    assert_eq!(solve(&[half, half]), PackingError::TooLarge { index: 1 });
    let options = PackingOptions::default().with_granule(3);
    assert_eq!(Packing::solve(&[good], &options), Err(PackingError::BadGranule { granule: 3 }));
}

#[test]
fn offsets_from_elsewhere_must_be_aligned_and_within_range() {
    let from = |offset| {
        Packing::from_blocks(
            256,
            vec![PackedBlock { lifetime: lifetime(1, 0, 1), offset: Some(offset) }],
            Vec::new(),
        )
    };
    assert_eq!(from(100), Err(PackingError::Misaligned { index: 0, offset: 100 }));
    assert_eq!(from(u64::MAX - 255), Err(PackingError::TooLarge { index: 0 }));
    assert_eq!(from(512).unwrap().capacity(), 768);
}

#[test]
fn progress_is_told_and_can_end_the_search() {
    // No placement reaches the lower bound here, so the search would continue.
    let tight: Vec<Lifetime> =
        (0..40).map(|i| lifetime(1 + u64::from(i * 7 % 11), i, i + 2 + i * 5 % 7)).collect();
    let options = PackingOptions::default().with_granule(1);
    let mut calls = 0;
    let packing = Packing::solve_constrained(&tight, Vec::new(), |_| true, &options, &mut |progress| {
        calls += 1;
        assert!(progress.capacity >= progress.lower_bound);
        false
    })
    .unwrap();
    check(&packing);
    assert_eq!(calls, 1);
}

#[test]
fn a_target_ends_the_search() {
    // The lower bound is unreachable: the second block does not fit beside both others.
    let apart = [
        (2, 0, 2),
        (3, 0, 6),
        (2, 4, 9),
        (3, 5, 12),
        (2, 1, 5),
        (4, 3, 4),
        (1, 2, 10),
        (2, 6, 8),
        (3, 8, 12),
    ];
    let mut lifetimes: Vec<Lifetime> = (0..30)
        .flat_map(|i| {
            apart.map(|(bytes, start, end)| lifetime(bytes + i % 3, start + i as u32, end + i as u32))
        })
        .collect();
    lifetimes.sort_by_key(|lifetime| lifetime.start);
    let calls = |options: PackingOptions| {
        let mut calls = 0;
        let packing = Packing::solve_constrained(
            &lifetimes,
            Vec::new(),
            |_| true,
            &options.with_granule(1),
            &mut |_| {
                calls += 1;
                true
            },
        );
        check(&packing.unwrap());
        calls
    };
    let options = PackingOptions::default().with_effort(200_000);
    assert_eq!(calls(options.with_target(1 << 40)), 1);
    assert!(calls(options) > 1);
}

/// A placed block reaches higher than the intended offset of the spanning blocks.
#[test]
fn what_spans_the_rest_lies_above_what_is_there() {
    let blocks = [
        (1, 0, 12),
        (1501, 2, 10),
        (1201, 4, 10),
        (901, 6, 10),
        (301, 8, 13),
        (1201, 10, 26),
        (301, 12, 14),
        (901, 14, 25),
        (301, 16, 22),
        (1, 18, 29),
        (301, 20, 36),
        (601, 22, 28),
        (601, 24, 29),
        (1501, 26, 32),
        (1201, 28, 41),
        (1, 30, 33),
        (1, 32, 36),
        (1201, 34, 39),
        (601, 36, 45),
        (1201, 38, 50),
        (601, 40, 48),
        (301, 42, 46),
        (901, 44, 53),
    ];
    let lifetimes = blocks.map(|(bytes, start, end)| lifetime(bytes, start, end));
    check(&Packing::solve(&lifetimes, &PackingOptions::default().with_effort(2_000_000)).unwrap());
}

/// Blocks that all live at one moment, half of them before and half after it, are placed one at a time.
#[test]
fn a_deep_search_stays_within_the_stack_of_a_thread() {
    let bytes = |index: u32| 1 + u64::from(index) * 7919 % 1009;
    let mut blocks: Vec<Lifetime> = (0..499).map(|index| lifetime(bytes(index), 0, 3)).collect();
    // The values that distinguish these moments.
    blocks.push(lifetime(1, 0, 1));
    blocks.extend((0..499).map(|index| lifetime(bytes(index), 1, 4)));
    blocks.push(lifetime(1, 3, 4));
    let problem = problem(&blocks);
    let (outcome, ..) = Restarts::new(&problem).search(problem.lower_bound, u64::MAX);
    assert_eq!(outcome, Outcome::Found);
}

#[test]
fn blocks_laid_onto_the_skyline_fill_steps_without_a_gap() {
    // Two towers with a valley: blocks that fit go into the valley, and the last one lies across.
    let step = [lifetime(3000, 0, 2), lifetime(1000, 2, 4), lifetime(2000, 2, 4), lifetime(3000, 4, 6)];
    let across = lifetime(500, 0, 6);
    let mut lifetimes = step.to_vec();
    lifetimes.insert(1, across);
    let packing =
        Packing::solve(&lifetimes, &PackingOptions::default().with_granule(1).with_effort(0)).unwrap();
    check(&packing);
    assert_eq!((packing.capacity(), packing.lower_bound()), (3500, 3500));
}

/// Greedy placement would compare each block with thousands of others, with any effort.
#[test]
fn many_live_blocks_keep_the_effort_bounded() {
    let (live, turns) = (4000, 4000);
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut lifetimes: Vec<Lifetime> = Vec::new();
    let mut alive: Vec<usize> = Vec::new();
    let end = live + turns;
    for time in 0..end {
        if time >= live {
            let gone = alive.swap_remove(random(u64::from(live)) as usize);
            lifetimes[gone].end = time;
        }
        alive.push(lifetimes.len());
        lifetimes.push(lifetime(256 * (1 + random(4096)), time, end));
    }
    let effort = 2_000_000;
    let mut steps = 0;
    let options = PackingOptions::default().with_effort(effort);
    let packing = Packing::solve_constrained(&lifetimes, Vec::new(), |_| true, &options, &mut |progress| {
        steps = progress.steps;
        true
    });
    let packing = packing.unwrap();
    check(&packing);
    // The last block may use all the steps that it needs.
    assert!(steps < effort * 11 / 10, "{steps} steps");
    assert!(
        packing.capacity() < packing.lower_bound() / 100 * 105,
        "{} of {}",
        packing.capacity(),
        packing.lower_bound()
    );
}
