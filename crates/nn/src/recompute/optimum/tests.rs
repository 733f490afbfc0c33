//! The optimum, compared with all recomputations of small chains in the same model.

use super::super::model::evaluate;
use super::*;

/// Pseudorandom numbers below a bound (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound) as i64
    }
}

/// A block with random costs that a real one could have. Half of the blocks save their input, half their output.
fn random_block(numbers: &mut Numbers, input: i64, chain: usize) -> Stage {
    let output = 1 + numbers.below(40);
    let kept = output + numbers.below(100);
    Stage {
        output,
        kept,
        unsaved_input: input * numbers.below(2),
        saves_output: numbers.below(2) == 0,
        forward: output + numbers.below(60),
        recorded: kept + numbers.below(30),
        pending: numbers.below(50),
        backward: kept + numbers.below(120),
        seconds: (1 + numbers.below(20)) as f64,
        chain: Some(chain),
    }
}

/// The ops after a chain.
fn random_gap(numbers: &mut Numbers) -> Stage {
    let kept = numbers.below(60);
    Stage {
        output: kept,
        kept,
        forward: kept,
        recorded: kept,
        backward: kept + numbers.below(300),
        ..Stage::default()
    }
}

/// Chains of these lengths with the ops after them.
fn random_stages(seed: u64, chains: &[usize]) -> Vec<Stage> {
    let numbers = &mut Numbers(seed);
    let mut stages = Vec::new();
    for (chain, &blocks) in chains.iter().enumerate() {
        for _ in 0..blocks {
            let input = stages.last().map_or(0, |stage: &Stage| stage.output);
            stages.push(random_block(numbers, input, chain));
        }
        stages.push(random_gap(numbers));
    }
    stages
}

/// All recomputations of a number of blocks, except for segments that consist of one other segment that runs again.
fn all_recomputations(blocks: usize) -> Vec<Vec<Segment>> {
    // The recomputations that are no single segment, and the segments, by number of blocks.
    let (mut inner, mut segments) = (vec![Vec::new()], vec![Vec::new()]);
    for count in 1..=blocks {
        let mut longer: Vec<Vec<Segment>> = Vec::new();
        for first in 1..count {
            for segment in &segments[first] {
                for rest in all_with(&inner, &segments, count - first) {
                    longer.push([vec![Segment::clone(segment)], rest].concat());
                }
            }
        }
        if count == 1 {
            longer.push(vec![Segment::Keep]);
        }
        let mut single: Vec<Segment> = longer.iter().map(|inside| Segment::Again(inside.clone())).collect();
        if count == 1 {
            single.push(Segment::Keep);
        }
        inner.push(longer);
        segments.push(single);
    }
    all_with(&inner, &segments, blocks)
}

fn all_with(inner: &[Vec<Vec<Segment>>], segments: &[Vec<Segment>], count: usize) -> Vec<Vec<Segment>> {
    let single = segments[count]
        .iter()
        .map(|segment| vec![segment.clone()])
        .filter(|segments| segments[..] != [Segment::Keep]);
    inner[count].iter().cloned().chain(single).collect()
}

/// Checks that no recomputation of the sequence is better than the optimum, and that the optimum has the costs that it claims.
fn assert_optimal(stages: &[Stage], recomputations: &[Vec<Segment>]) {
    let optimum = Optimum::new(stages, usize::MAX, usize::MAX);
    let front = optimum.points();
    for (index, point) in front.iter().enumerate() {
        let segments = optimum.step_segments(index);
        assert_eq!(segments.iter().map(Segment::blocks).sum::<usize>(), stages.len());
        assert_eq!(evaluate(stages, &segments, 0, true), (point.bytes, point.seconds), "{segments:?}");
    }
    let mut found = vec![false; front.len()];
    for segments in recomputations {
        let (bytes, seconds) = evaluate(stages, segments, 0, true);
        let fitting = front.iter().rposition(|point| point.bytes <= bytes);
        let best =
            fitting.unwrap_or_else(|| panic!("{segments:?} needs {bytes} bytes, less than the optimum"));
        assert!(
            front[best].seconds <= seconds,
            "{segments:?}: {bytes} bytes, {seconds} s; optimum {:?}",
            front[best]
        );
        found[best] |= (front[best].bytes, front[best].seconds) == (bytes, seconds);
    }
    assert!(found.iter().all(|&found| found), "a way that no recomputation has");
}

fn with_head(recomputations: &[Vec<Segment>]) -> Vec<Vec<Segment>> {
    recomputations.iter().map(|segments| [&segments[..], &[Segment::Keep]].concat()).collect()
}

#[test]
fn the_optimum_equals_the_best_of_all_nested_recomputations() {
    assert_eq!(
        (1..=5).map(|blocks| all_recomputations(blocks).len()).collect::<Vec<_>>(),
        [2, 8, 48, 352, 2880]
    );
    for blocks in 1..=6 {
        let recomputations = with_head(&all_recomputations(blocks));
        for seed in 0..20 {
            assert_optimal(&random_stages(seed, &[blocks]), &recomputations);
        }
    }
    assert_optimal(&random_stages(99, &[7]), &with_head(&all_recomputations(7)));
}

#[test]
fn no_part_crosses_the_border_of_a_chain() {
    for (chains, seed) in [([2, 3], 1), ([3, 2], 2), ([1, 4], 3), ([4, 1], 4)] {
        let [first, second] = chains.map(|blocks| with_head(&all_recomputations(blocks)));
        let pairs: Vec<_> = first
            .iter()
            .flat_map(|first| second.iter().map(move |second| [&first[..], second].concat()))
            .collect();
        assert_optimal(&random_stages(seed, &chains), &pairs);
    }
}

#[test]
fn the_optimum_is_never_worse_than_a_set_of_single_blocks() {
    for (seed, blocks) in [(7, 8), (8, 10), (9, 12)] {
        let stages = random_stages(seed, &[blocks]);
        // With the usual sizes of fronts.
        let optimum = Optimum::new(&stages, POINTS, STEP_POINTS);
        for set in 0..1_u32 << blocks {
            let which = (0..blocks).filter(|block| set >> block & 1 == 1);
            let mut segments = Recomputation::of_blocks(blocks, which).segments().to_vec();
            segments.push(Segment::Keep);
            let (bytes, seconds) = evaluate(&stages, &segments, 0, true);
            let best = optimum.points().iter().rfind(|point| point.bytes <= bytes).unwrap();
            assert!(best.seconds <= seconds, "{segments:?}: {bytes} bytes, {seconds} s; optimum {best:?}");
        }
    }
}

/// A chain of equal blocks, each of which keeps `kept` times its output.
fn equal_stages(blocks: usize, kept: i64) -> Vec<Stage> {
    let block = Stage {
        output: 1,
        kept,
        forward: 1,
        recorded: kept,
        backward: kept + 1,
        pending: 1,
        seconds: 1.0,
        chain: Some(0),
        ..Stage::default()
    };
    [vec![block; blocks], vec![Stage { backward: 1, ..Stage::default() }]].concat()
}

#[test]
fn equal_blocks_need_no_more_than_chen_et_al() {
    for blocks in [16_usize, 36, 64, 100, 144] {
        let root = blocks.isqrt();
        let kept = 10;
        let stages = equal_stages(blocks, kept);
        let mut segments = vec![Segment::Again(vec![Segment::Keep; root]); root];
        segments.push(Segment::Keep);
        let (bytes, seconds) = evaluate(&stages, &segments, 0, true);
        // The inputs of √n segments, one complete segment and one gradient; one more forward pass.
        assert_eq!((bytes, seconds), ((root as i64 - 1) + root as i64 * kept + 1, blocks as f64));
        let optimum = Optimum::new(&stages, POINTS, STEP_POINTS);
        let best = optimum.points().iter().rfind(|point| point.bytes <= bytes).unwrap();
        assert!(best.seconds <= seconds, "{blocks} blocks: {best:?}");
    }
}

#[test]
fn thinned_fronts_stay_close_to_complete_ones() {
    let stages = random_stages(3, &[24]);
    let complete = Optimum::new(&stages, usize::MAX, usize::MAX);
    let thinned = Optimum::new(&stages, POINTS, STEP_POINTS);
    let (complete, thinned) = (complete.points(), thinned.points());
    let range = complete[complete.len() - 1].bytes - complete[0].bytes;
    for point in complete {
        // Within one percent of the range of peaks.
        let bytes = point.bytes + range / 100;
        let best = thinned.iter().rfind(|thinned| thinned.bytes <= bytes);
        assert!(best.is_some_and(|best| best.seconds <= point.seconds * 1.0001), "{point:?}: {best:?}");
    }
}

#[test]
fn a_step_without_chains_has_no_trade_offs() {
    assert!(trade_offs(&[]).is_empty());
}
