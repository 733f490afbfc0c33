use super::*;
use crate::{Bfc, Packed, Packing, PackingOptions, PlacementRequest, Policy, Span};
use proptest::prelude::*;

fn lifetime(bytes: u64, start: u32, end: u32) -> Lifetime {
    Lifetime { bytes, start, end }
}

fn constraint(block: usize, alignment: u64, gaps: Vec<Gap>) -> BlockConstraint {
    BlockConstraint { block, alignment, gaps }
}

fn gap(start: u32, end: u32, kept: Range<u64>) -> Gap {
    Gap { start, end, kept }
}

fn solve(
    lifetimes: &[Lifetime],
    constraints: Vec<BlockConstraint>,
    granule: u64,
) -> Result<Packing, PackingError> {
    let options = PackingOptions::default().with_granule(granule).with_effort(20_000);
    Packing::solve_constrained(lifetimes, constraints, |_| true, &options, &mut |_| true)
}

#[test]
fn aligned_blocks_lie_on_their_multiples() {
    let blocks = [lifetime(100, 0, 10), lifetime(100, 0, 10)];
    let aligned = || (0..2).map(|block| constraint(block, 4096, Vec::new())).collect();
    let packing = solve(&blocks, aligned(), 1).unwrap();
    assert_eq!((packing.capacity(), packing.lower_bound()), (4196, 4196));
    let packing = solve(&blocks, aligned(), 256).unwrap();
    assert_eq!((packing.capacity(), packing.lower_bound()), (4352, 4352));
}

#[test]
fn the_effort_bounds_the_steps_of_aligned_blocks() {
    // Each block skips the holes between all earlier blocks: two million steps for the first placement.
    let blocks = [lifetime(1, 0, 10); 2000];
    let constraints = (0..2000).map(|block| constraint(block, 4096, Vec::new())).collect();
    let (effort, mut steps) = (20_000, 0);
    let options = PackingOptions::default().with_granule(1).with_effort(effort);
    let mut progress = |now: crate::PackingProgress| {
        steps = now.steps;
        true
    };
    let packing =
        Packing::solve_constrained(&blocks, constraints, |_| true, &options, &mut progress).unwrap();
    assert_eq!(packing.capacity(), 1999 * 4096 + 1);
    assert!(steps < 4 * effort, "{steps}");
}

#[test]
fn a_block_lies_in_the_gap_of_another() {
    let blocks = [lifetime(4, 0, 10), lifetime(4, 2, 8)];
    let packing = solve(&blocks, vec![constraint(0, 1, vec![gap(2, 8, 0..0)])], 1).unwrap();
    assert_eq!((packing.capacity(), packing.lower_bound()), (4, 4));
    // One event before or after the gap, the bytes are in use.
    for gap in [gap(3, 8, 0..0), gap(2, 7, 0..0)] {
        let packing = solve(&blocks, vec![constraint(0, 1, vec![gap])], 1).unwrap();
        assert_eq!((packing.capacity(), packing.lower_bound()), (8, 8));
    }
}

#[test]
fn bytes_kept_in_a_gap_stay_apart() {
    let blocks = [lifetime(8, 0, 10), lifetime(5, 2, 8)];
    let kept = |range| solve(&blocks, vec![constraint(0, 1, vec![gap(2, 8, range)])], 1).unwrap();
    assert_eq!((kept(0..3).capacity(), kept(0..3).lower_bound()), (8, 8));
    assert_eq!((kept(0..4).capacity(), kept(0..4).lower_bound()), (9, 9));
    // Three bytes below the kept ones are too few for the second block, so the first block lies two bytes higher.
    assert_eq!(kept(3..8).capacity(), 10);
}

#[test]
fn constraints_of_no_effect_are_dropped() {
    let blocks = [lifetime(100, 0, 10), lifetime(100, 0, 10)];
    let packing = solve(&blocks, vec![constraint(1, 256, Vec::new())], 256).unwrap();
    assert_eq!(packing, solve(&blocks, Vec::new(), 256).unwrap());
}

#[test]
fn impossible_constraints_are_refused() {
    let blocks = [lifetime(4, 3, 10)];
    let error = |constraints| solve(&blocks, constraints, 1).unwrap_err();
    let one = |alignment, gaps| vec![constraint(0, alignment, gaps)];
    assert_eq!(error(one(3, vec![])), PackingError::BadAlignment { index: 0, alignment: 3 });
    assert_eq!(error(one(0, vec![])), PackingError::BadAlignment { index: 0, alignment: 0 });
    assert_eq!(error(vec![constraint(1, 2, vec![])]), PackingError::BadConstraint { index: 1 });
    let twice = vec![constraint(0, 2, vec![]), constraint(0, 4, vec![])];
    assert_eq!(error(twice), PackingError::BadConstraint { index: 0 });
    for gaps in [
        vec![gap(2, 5, 0..0)],
        vec![gap(5, 11, 0..0)],
        vec![gap(5, 5, 0..0)],
        vec![gap(5, 6, 0..5)],
        vec![gap(6, 8, 0..0), gap(4, 5, 0..0)],
        vec![gap(4, 6, 0..0), gap(5, 8, 0..0)],
    ] {
        assert_eq!(error(one(1, gaps)), PackingError::BadGap { index: 0 });
    }
    assert_eq!(error(one(1 << 63, vec![])), PackingError::TooLarge { index: 0 });
}

#[test]
fn packings_that_violate_constraints_are_refused() {
    let blocks = [lifetime(4, 0, 10), lifetime(4, 2, 8)];
    let placed = |offsets: [u64; 2], constraints| {
        let block = |(lifetime, offset)| PackedBlock { lifetime, offset: Some(offset) };
        Packing::from_blocks(1, blocks.into_iter().zip(offsets).map(block).collect(), constraints)
    };
    let lent = || vec![constraint(0, 1, vec![gap(2, 8, 0..0)])];
    assert_eq!(placed([0, 2], lent()).unwrap().capacity(), 6);
    let aligned = vec![constraint(1, 4, vec![gap(3, 8, 0..0)])];
    assert_eq!(placed([0, 6], aligned.clone()), Err(PackingError::Misaligned { index: 1, offset: 6 }));
    assert_eq!(placed([0, 0], aligned), Err(PackingError::Overlap { first: 0, second: 1 }));
    let short = vec![constraint(0, 1, vec![gap(2, 7, 0..0)])];
    assert_eq!(placed([0, 2], short), Err(PackingError::Overlap { first: 0, second: 1 }));
}

#[test]
fn a_pool_does_not_lend_the_bytes_of_a_live_block() {
    let blocks = [lifetime(256, 0, 9), lifetime(256, 2, 8), lifetime(256, 3, 9)];
    let constraints = vec![constraint(0, 1, vec![gap(2, 8, 0..0)]), constraint(2, 1024, vec![])];
    let packing = solve(&blocks, constraints, 256).unwrap();
    let mut policy = Packed::new(&packing, Bfc::default());
    policy.add_region(Span { address: 0, bytes: 8192 }, false).unwrap();
    let lends = policy.place(&PlacementRequest::new(256)).unwrap();
    let second = policy.place(&PlacementRequest::new(256)).unwrap();
    let aligned = policy.place(&PlacementRequest::new(256).with_alignment(1024)).unwrap();
    assert_eq!((policy.counts().packed, policy.counts().left), (2, 1));
    assert_eq!(aligned.address % 1024, 0);
    let mut addresses = [lends, second, aligned].map(|place| place.address);
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|pair| pair[0] + 256 <= pair[1]), "{addresses:?}");
}

/// Returns the bytes that a block occupies during an event, relative to its offset.
fn occupied(lifetime: Lifetime, constraint: Option<&BlockConstraint>, event: u32) -> Range<u64> {
    if event < lifetime.start || event >= lifetime.end {
        return 0..0;
    }
    let gaps = constraint.map_or(&[][..], |constraint| &constraint.gaps);
    let gap = gaps.iter().find(|gap| (gap.start..gap.end).contains(&event));
    gap.map_or(0..lifetime.bytes, |gap| gap.kept.clone())
}

/// Whether no two blocks at these offsets overlap, checked at every event.
fn are_apart(lifetimes: &[Lifetime], constraints: &[BlockConstraint], offsets: &[u64]) -> bool {
    let of = |block: usize| constraints.iter().find(|constraint| constraint.block == block);
    (0..40).all(|event| {
        let at = |block: usize| {
            let bytes = occupied(lifetimes[block], of(block), event);
            offsets[block] + bytes.start..offsets[block] + bytes.end
        };
        (0..lifetimes.len()).all(|a| {
            (0..a).all(|b| {
                let (a, b) = (at(a), at(b));
                a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start
            })
        })
    })
}

/// Returns the smallest capacity of all placements, by trying every offset.
fn least_capacity(lifetimes: &[Lifetime], constraints: &[BlockConstraint], most: u64) -> u64 {
    fn try_rest(
        lifetimes: &[Lifetime],
        constraints: &[BlockConstraint],
        offsets: &mut Vec<u64>,
        best: &mut u64,
    ) {
        let block = offsets.len();
        if block == lifetimes.len() {
            *best =
                lifetimes.iter().zip(offsets).map(|(life, offset)| *offset + life.bytes).max().unwrap_or(0);
            return;
        }
        let of_block = constraints.iter().find(|constraint| constraint.block == block);
        let step = of_block.map_or(1, |constraint| constraint.alignment);
        let mut offset = 0;
        while offset + lifetimes[block].bytes < *best {
            offsets.push(offset);
            if are_apart(&lifetimes[..=block], constraints, offsets) {
                try_rest(lifetimes, constraints, offsets, best);
            }
            offsets.pop();
            offset += step;
        }
    }
    let mut best = most + 1;
    try_rest(lifetimes, constraints, &mut Vec::new(), &mut best);
    best
}

/// Blocks and their constraints.
type Blocks = (Vec<Lifetime>, Vec<BlockConstraint>);

/// Generates blocks in order of their starts; some are aligned, and some have gaps.
fn blocks(count: Range<usize>, most_bytes: u64) -> impl Strategy<Value = Blocks> {
    let raw_gap = (0_u32..8, 1_u32..6, 0.0..1.0, 0.0..1.0);
    let block = (1..=most_bytes, 0_u32..20, 1_u32..20, 0_u32..4, prop::collection::vec(raw_gap, 0..3));
    prop::collection::vec(block, count).prop_map(|mut raw| {
        raw.sort_by_key(|block| block.1);
        let mut constraints = Vec::new();
        let mut lifetimes = Vec::new();
        for (index, (bytes, start, length, shift, raw_gaps)) in raw.into_iter().enumerate() {
            let end = start + length;
            let mut from = start;
            let mut gaps = Vec::new();
            for (wait, length, low, share) in raw_gaps {
                let (gap_start, gap_end) = (from + wait, (from + wait + length).min(end));
                if gap_start < gap_end {
                    let low = (low * bytes as f64) as u64;
                    let high = low + (share * (bytes - low) as f64) as u64;
                    gaps.push(gap(gap_start, gap_end, low..high));
                    from = gap_end;
                }
            }
            lifetimes.push(lifetime(bytes, start, end));
            constraints.push(constraint(index, 1 << shift, gaps));
        }
        (lifetimes, constraints)
    })
}

fn offsets(packing: &Packing) -> Vec<u64> {
    packing.blocks().iter().map(|block| block.offset.unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn constrained_packings_hold((lifetimes, constraints) in blocks(0..40, 100)) {
        for granule in [1, 4, 256] {
            let packing = solve(&lifetimes, constraints.clone(), granule).unwrap();
            let offsets = offsets(&packing);
            prop_assert!(are_apart(&lifetimes, &constraints, &offsets));
            for constraint in &constraints {
                prop_assert_eq!(offsets[constraint.block] % constraint.alignment.max(granule), 0);
            }
            prop_assert!(packing.lower_bound() <= packing.capacity());
            let copy = Packing::from_blocks(granule, packing.blocks().to_vec(), packing.constraints().to_vec());
            prop_assert_eq!(copy.unwrap(), packing);
        }
    }

    #[test]
    fn no_placement_is_below_the_bound((lifetimes, constraints) in blocks(1..5, 8)) {
        let packing = solve(&lifetimes, constraints.clone(), 1).unwrap();
        let least = least_capacity(&lifetimes, &constraints, packing.capacity());
        prop_assert!(packing.lower_bound() <= least && least <= packing.capacity());
    }

    /// Offsets from a file are rejected, or keep blocks apart.
    #[test]
    fn constrained_blocks_are_refused_or_sound(
        (lifetimes, constraints) in blocks(1..8, 8),
        offsets in prop::collection::vec(0_u64..12, 8),
    ) {
        let offsets = &offsets[..lifetimes.len()];
        let block = |(&lifetime, &offset): (&Lifetime, &u64)| PackedBlock { lifetime, offset: Some(offset) };
        let placed = lifetimes.iter().zip(offsets).map(block).collect();
        let aligned = constraints.iter().all(|constraint| offsets[constraint.block] % constraint.alignment == 0);
        let sound = aligned && are_apart(&lifetimes, &constraints, offsets);
        prop_assert_eq!(Packing::from_blocks(1, placed, constraints).is_ok(), sound);
    }
}
