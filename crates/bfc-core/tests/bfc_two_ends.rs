//! Two ends of one pool: upstream's cases of spatial partitioning with their numbers (`bfc_allocator_test.cc` of XLA; each
//! test names its case), and what must hold beyond them.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod common;

use bfc_core::{
    AllocError, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, Bytes, CutRule, End,
    EndRule, Ends, HoleOrder, HoleSplit, MIB, OomReport, Request, ThreadCache, Verdict,
};

use common::source::{BASE, FakeSource, Nature};
use common::{Random, assert_disjoint, free};

use End::{Lower, Upper};

fn pool_with(limit: u64, ends: Ends) -> BfcAllocator {
    let config = BfcConfig::tensorflow(Bytes(limit)).with_ends(ends).with_retry(false);
    BfcAllocator::new("two ends", FakeSource::new(Nature::default()), config)
}

/// A pool with upstream's rules.
fn pool(limit: u64) -> BfcAllocator {
    pool_with(limit, Ends::TENSORFLOW)
}

/// Upstream's `SharedGpuPoolOptions`.
fn shared_gpu_pool(limit: u64) -> BfcAllocator {
    pool_with(limit, Ends::COLLECTIVES)
}

fn request(end: End, bytes: u64) -> Request<'static> {
    Request::new(bytes).with_attributes(AllocationAttributes::default().with_end(end))
}

fn aligned(pool: &BfcAllocator, end: End, alignment: u64, bytes: u64) -> Block {
    let block = pool.allocate(&request(end, bytes).with_alignment(alignment)).unwrap();
    pool.check_invariants().unwrap();
    assert!(block.address.is_multiple_of(alignment));
    block
}

fn at(pool: &BfcAllocator, end: End, bytes: u64) -> Block {
    aligned(pool, end, 64, bytes)
}

fn give_back(pool: &BfcAllocator, blocks: impl IntoIterator<Item = Block>) {
    for block in blocks {
        free(pool, block);
        pool.check_invariants().unwrap();
    }
}

fn refused(pool: &BfcAllocator, end: End, bytes: u64) -> OomReport {
    match pool.allocate(&request(end, bytes)) {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => panic!("{bytes} bytes at the {end:?} end should not fit: {other:?}"),
    }
}

/// `SpatialAllocatesFromEnds`.
#[test]
fn each_end_starts_at_its_own_side_of_the_region() {
    let pool = pool(4096);
    let (lower, upper) = (at(&pool, Lower, 256), at(&pool, Upper, 256));
    assert_eq!(upper.address - lower.address, 4096 - 256);
}

/// `SpatialKeepsUpperOffset`.
#[test]
fn more_lower_blocks_do_not_move_upper_ones() {
    let (a, b) = (pool(4096), pool(4096));
    at(&a, Lower, 256);
    let upper_a = at(&a, Upper, 512);
    at(&b, Lower, 256);
    at(&b, Lower, 1024);
    assert_eq!(at(&b, Upper, 512).address, upper_a.address);
}

/// `SpatialKeepsLowerOffset`.
#[test]
fn more_upper_blocks_do_not_move_lower_ones() {
    let (a, b) = (pool(4096), pool(4096));
    at(&a, Upper, 256);
    let of_a = [at(&a, Lower, 512), at(&a, Lower, 256)];
    at(&b, Upper, 256);
    let extra = at(&b, Upper, 1024);
    let first = at(&b, Lower, 512);
    give_back(&b, [extra]);
    at(&b, Upper, 768);
    let of_b = [first, at(&b, Lower, 256)];
    for lower in [of_a, of_b] {
        assert_eq!(lower.map(|block| block.address), [BASE, BASE + 512]);
    }
}

/// `SpatialSkipsLowerHole` and `SpatialSkipsUpperHole`.
#[test]
fn a_hole_between_blocks_of_one_end_is_not_for_the_other() {
    for (end, other) in [(Lower, Upper), (Upper, Lower)] {
        let pool = pool(1024);
        let trapped = at(&pool, end, 256);
        at(&pool, end, 256);
        at(&pool, other, 512);
        give_back(&pool, [trapped]);
        let report = refused(&pool, other, 256);
        assert_eq!((report.free, report.largest_free, report.other_end), (256, 0, 256));
        assert_eq!(report.verdict, Verdict::Fragmented);
        let text = report.details();
        assert!(text.contains("256 B are free, but 256 B of them between blocks of the other end"), "{text}");
        assert!(report.to_string().contains("256 B free (256 B at the other end)"), "{report}");
        assert_eq!(at(&pool, end, 256).address, trapped.address);
    }
}

/// `SpatialLowerReclaimsGap`.
#[test]
fn what_one_end_gave_back_the_other_can_have() {
    let pool = pool(2048);
    let upper = at(&pool, Upper, 1024);
    give_back(&pool, [upper]);
    at(&pool, Lower, 2048);
}

/// `SpatialReclaimsGap`.
#[test]
fn the_gap_moves_with_the_blocks_beside_it_but_ends_where_the_other_end_begins() {
    let pool = pool(4096);
    at(&pool, Lower, 1024);
    let first = at(&pool, Upper, 512);
    give_back(&pool, [first]);
    at(&pool, Lower, 512);
    let second = at(&pool, Upper, 512);
    assert_eq!(second.address, first.address);
    give_back(&pool, [second]);
    let last = at(&pool, Lower, 2560);
    assert_eq!(last.address + 2560, second.address + 512);
    refused(&pool, Upper, 256);
}

/// `SpatialUpperAlignmentSuffix`.
#[test]
fn what_alignment_leaves_above_an_upper_block_is_a_hole_of_the_upper_end() {
    let pool = pool(4096);
    assert_eq!(aligned(&pool, Upper, 1024, 256).address, BASE + 3072);
    assert_eq!(at(&pool, Lower, 3072).address, BASE);
    refused(&pool, Lower, 768);
    assert_eq!(at(&pool, Upper, 768).address, BASE + 3328);
}

/// `SpatialLowerAlignmentPrefix`.
#[test]
fn what_alignment_leaves_below_a_lower_block_is_a_hole_of_the_lower_end() {
    let pool = pool(4096);
    assert_eq!(at(&pool, Lower, 256).address, BASE);
    assert_eq!(aligned(&pool, Lower, 1024, 256).address, BASE + 1024);
    assert_eq!(at(&pool, Upper, 2816).address, BASE + 1280);
    refused(&pool, Upper, 768);
    assert_eq!(at(&pool, Lower, 768).address, BASE + 256);
}

/// `SpatialUpperReclaimsAfterLowerFill` and `SpatialLowerReclaimsAfterUpperFill`.
#[test]
fn an_end_that_filled_the_pool_leaves_all_of_it_to_the_other() {
    const POOL: u64 = 1 << 30;
    for (end, other, start) in [(Lower, Upper, BASE + POOL - 18 * MIB), (Upper, Lower, BASE)] {
        let pool = pool(POOL);
        let blocks: Vec<Block> = (0..32).map(|_| at(&pool, end, 32 * MIB)).collect();
        refused(&pool, other, 256);
        give_back(&pool, blocks);
        assert_eq!(at(&pool, other, 18 * MIB).address, start);
    }
}

/// `SpatialReusesOwnHoles`.
#[test]
fn an_end_uses_its_own_holes_before_the_gap() {
    let pool = pool(4096);
    let [_, lower, _] = [256; 3].map(|bytes| at(&pool, Lower, bytes));
    let [_, upper, _] = [256; 3].map(|bytes| at(&pool, Upper, bytes));
    assert_eq!((lower.address, upper.address), (BASE + 256, BASE + 3584));
    give_back(&pool, [lower, upper]);
    assert_eq!(at(&pool, Lower, 256).address, lower.address);
    assert_eq!(at(&pool, Upper, 256).address, upper.address);
}

/// Where eight blocks of `end` lie while the other end places and frees up to half of 512 MiB at random.
fn offsets_beside_churn(pool: &BfcAllocator, end: End, alignment: u64, seed: u64) -> Vec<u64> {
    const CAP: u64 = 256 * MIB;
    let other = if end == Lower { Upper } else { Lower };
    let mut random = Random(seed);
    let mut churned: Vec<Block> = Vec::new();
    let mut churn = || {
        for _ in 0..random.below(7) {
            if !churned.is_empty() && random.below(3) == 0 {
                let block = churned.swap_remove(random.below(churned.len() as u64) as usize);
                give_back(pool, [block]);
                continue;
            }
            let bytes = [256, MIB, 8 * MIB, 32 * MIB, 64 * MIB][random.below(5) as usize];
            if churned.iter().map(|block| block.bytes).sum::<u64>() + bytes <= CAP {
                churned.extend(pool.allocate(&request(other, bytes).with_alignment(512)));
            }
        }
    };
    let mut live = std::collections::VecDeque::new();
    let sizes = [4, 16, 1, 18, 2, 8, 4, 32].map(|mib| mib * MIB);
    let offsets = sizes.map(|bytes| {
        churn();
        let block = aligned(pool, end, alignment, bytes);
        live.push_back(block);
        if live.len() > 2 {
            give_back(pool, live.pop_front());
        }
        block.address - BASE
    });
    offsets.to_vec()
}

/// `SpatialUpperOffsetsStable`: 32 processes that place the same upper blocks and all else at random.
#[test]
fn upper_offsets_do_not_depend_on_what_happens_at_the_lower_end() {
    for ends in [Ends::TENSORFLOW, Ends::TWO] {
        let run = |seed| offsets_beside_churn(&pool_with(512 * MIB, ends), Upper, 512, seed);
        let first = run(1);
        assert_eq!(first[0], 508 * MIB);
        for seed in 2..=32 {
            assert_eq!(run(seed), first, "seed {seed}");
        }
    }
}

/// `SpatialLowerOffsetsStable`.
#[test]
fn lower_offsets_do_not_depend_on_what_happens_at_the_upper_end() {
    for ends in [Ends::COLLECTIVES, Ends::TWO] {
        let run = |seed| offsets_beside_churn(&pool_with(512 * MIB, ends), Lower, 2 * MIB, seed);
        let first = run(1);
        assert_eq!(first[0], 0);
        assert!(first.iter().all(|offset| offset.is_multiple_of(2 * MIB)));
        for seed in 2..=32 {
            assert_eq!(run(seed), first, "seed {seed}");
        }
    }
}

/// `SpatialGapCarveSplitsExactlyAtBothEnds`.
#[test]
fn a_piece_of_the_gap_is_cut_exactly_whatever_the_rule_for_holes() {
    let lower_cuts = pool(2048);
    at(&lower_cuts, Upper, 1024);
    let lower = at(&lower_cuts, Lower, 768);
    assert_eq!((lower.address, lower.bytes), (BASE, 768));
    assert_eq!(at(&lower_cuts, Upper, 256).address, BASE + 768);

    let upper_cuts = pool(2048);
    at(&upper_cuts, Lower, 1024);
    assert_eq!(at(&upper_cuts, Upper, 768).address, BASE + 1280);
    assert_eq!(at(&upper_cuts, Lower, 256).address, BASE + 1024);
}

/// `SpatialHoleReuseKeepsSlackAtBothEnds`.
#[test]
fn a_hole_that_the_pools_rule_does_not_cut_is_taken_whole() {
    let pool = pool(4096);
    let [lower, _] = [1024, 256].map(|bytes| at(&pool, Lower, bytes));
    let [upper, _] = [1024, 256].map(|bytes| at(&pool, Upper, bytes));
    give_back(&pool, [lower, upper]);
    for (end, hole) in [(Lower, lower), (Upper, upper)] {
        let block = at(&pool, end, 768);
        assert_eq!((block.address, block.bytes), (hole.address, 1024));
    }
    assert_eq!(at(&pool, Lower, 256).address, BASE + 1280);
    assert_eq!(at(&pool, Upper, 256).address, BASE + 4096 - 1280 - 256);
}

/// `SpatialDefaultHoleOrderPreservesCoalescing`.
#[test]
fn of_equal_holes_the_farther_from_the_gap_leaves_the_nearer_to_join_its_neighbour() {
    let pool = shared_gpu_pool(4 * MIB);
    let [a, _, c, d] = [MIB; 4].map(|bytes| at(&pool, Upper, bytes));
    give_back(&pool, [a, c]);
    assert_eq!(at(&pool, Upper, MIB).address, a.address);
    give_back(&pool, [d]);
    assert_eq!(at(&pool, Upper, 2 * MIB).address, d.address);
}

/// `SpatialCollectiveHoleRemainderRemainsUsable`.
#[test]
fn the_rest_of_a_hole_that_is_always_cut_serves_the_same_end() {
    let pool = shared_gpu_pool(16 * MIB);
    let collective = |bytes| aligned(&pool, Lower, 2 * MIB, bytes);
    let [hole, _] = [8 * MIB, 2 * MIB].map(collective);
    at(&pool, Upper, 6 * MIB);
    give_back(&pool, [hole]);
    let block = collective(6 * MIB);
    assert_eq!((block.address, block.bytes), (hole.address, 6 * MIB));
    assert_eq!(collective(2 * MIB).address, BASE + 6 * MIB);
}

/// `SpatialHoleOrderKeepsBestFit`.
#[test]
fn the_size_of_a_hole_comes_before_its_address() {
    for end in [Lower, Upper] {
        let pool = shared_gpu_pool(8192);
        let [large, _, first, _, second, _] =
            [1792, 256, 1280, 256, 1280, 256].map(|bytes| at(&pool, end, bytes));
        give_back(&pool, [large, first, second]);
        let block = at(&pool, end, 1280);
        assert_eq!((block.address, block.bytes), (first.address.max(second.address), 1280));
    }
}

/// `SpatialDefaultGapLeavesCollectiveCapacity`.
#[test]
fn an_upper_block_leaves_the_rest_of_the_gap_to_the_lower_end() {
    let pool = shared_gpu_pool(12 * MIB);
    aligned(&pool, Lower, 2 * MIB, 2 * MIB);
    at(&pool, Upper, 2 * MIB);
    assert_eq!(at(&pool, Upper, 6 * MIB).bytes, 6 * MIB);
    assert_eq!(aligned(&pool, Lower, 2 * MIB, 2 * MIB).address, BASE + 2 * MIB);
}

/// `SpatialExactHolePolicyAtBothEnds`.
#[test]
fn a_hole_that_is_always_cut_is_cut_from_the_side_of_its_end() {
    let exact = EndRule { order: HoleOrder::HighestFirst, split: HoleSplit::Always };
    for (end, rest) in [(Lower, 768), (Upper, 0)] {
        let pool = pool_with(2048, Ends::Two { lower: exact, upper: exact });
        let [hole, _] = [1024, 256].map(|bytes| at(&pool, end, bytes));
        give_back(&pool, [hole]);
        assert_eq!(at(&pool, end, 768).bytes, 768);
        assert_eq!(at(&pool, end, 256).address, hole.address + rest);
    }
}

/// `SpatialUpperHoleAlignmentKeepsSlack`.
#[test]
fn an_aligned_block_in_an_upper_hole_keeps_what_the_pools_rule_would_not_cut_off() {
    for (limit, filler, hole, bytes, offset, granted) in
        [(2048, 512, 1280, 768, 512, 1024), (4096, 256, 3072, 512, 3072, 768)]
    {
        let pool = shared_gpu_pool(limit);
        let [_, hole, _] = [filler, hole, 256].map(|bytes| at(&pool, Upper, bytes));
        give_back(&pool, [hole]);
        let block = aligned(&pool, Upper, 512, bytes);
        assert_eq!((block.address, block.bytes), (BASE + offset, granted));
    }
}

/// `SpatialUnderContention`.
#[test]
fn threads_at_both_ends_never_fail() {
    let pool = pool(64 * MIB);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let blocks = [Lower, Upper].map(|end| pool.allocate(&request(end, 1024)).unwrap());
                    assert_disjoint(&blocks);
                    blocks.into_iter().for_each(|block| free(&pool, block));
                }
            });
        }
    });
    pool.check_invariants().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.bytes_in_use), (16_000, 0));
    assert_eq!(stats.largest_free_block_bytes, 64 * MIB);
}

#[test]
fn the_two_ends_of_a_pool_are_mirror_images() {
    let (pool, limit) = (pool_with(MIB, Ends::TWO), MIB);
    let mut random = Random(5);
    let mut live: Vec<(Block, Block)> = Vec::new();
    for _ in 0..2000 {
        if random.below(2) == 0 && !live.is_empty() {
            let (lower, upper) = live.swap_remove(random.below(live.len() as u64) as usize);
            give_back(&pool, [lower, upper]);
        } else if live.iter().map(|(block, _)| block.bytes).sum::<u64>() < limit / 4 {
            let bytes = 1 + random.below(8000);
            let (lower, upper) = (at(&pool, Lower, bytes), at(&pool, Upper, bytes));
            assert_eq!(lower.address - BASE, BASE + limit - upper.address - upper.bytes);
            live.push((lower, upper));
        }
    }
}

#[test]
fn without_two_ends_both_are_placed_alike() {
    let addresses = |end| {
        let config = BfcConfig::tensorflow(Bytes(4096));
        let pool = BfcAllocator::new("one end", FakeSource::new(Nature::default()), config);
        [at(&pool, end, 256), at(&pool, end, 512)].map(|block| block.address)
    };
    assert_eq!(addresses(Lower), addresses(Upper));
}

#[test]
fn two_ends_take_the_limit_at_once_unless_growth_is_asked_for_after_them() {
    let config = BfcConfig::new(Bytes::mib(64)).with_ends(Ends::TWO);
    assert!(!config.allow_growth());
    assert!(BfcConfig::new(Bytes::mib(64)).with_ends(Ends::One).allow_growth());

    let grows = config.with_allow_growth(true).with_first_region(Bytes(1024)).with_retry(false);
    let nature = Nature { coalescing: true, ..Nature::default() };
    let pool = BfcAllocator::new("grows", FakeSource::new(nature), grows);
    let first = [at(&pool, Lower, 512), at(&pool, Upper, 512)].map(|block| block.address - BASE);
    assert_eq!(first, [0, 512]);
    let second = at(&pool, Upper, 256);
    assert_eq!(pool.regions().len(), 2, "a seam would lie between two upper blocks");
    let end = pool.regions()[1].address + pool.regions()[1].bytes;
    assert_eq!(second.address + 256, end);
    assert_eq!(at(&pool, Lower, 256).address, pool.regions()[1].address);
}

#[test]
fn of_several_gaps_the_lower_end_takes_the_lowest_and_the_upper_end_the_highest() {
    let config = BfcConfig::new(Bytes::mib(1)).with_ends(Ends::TWO).with_allow_growth(true);
    let pool =
        BfcAllocator::new("gaps", FakeSource::new(Nature::default()), config.with_first_region(Bytes(4096)));
    let blocks = [at(&pool, Lower, 4096), at(&pool, Lower, 4096)];
    give_back(&pool, blocks);
    let [low, high] = pool.regions()[..] else { panic!("two regions: {:?}", pool.regions()) };
    assert_eq!(at(&pool, Lower, 256).address, low.address);
    assert_eq!(at(&pool, Upper, 256).address, high.address + high.bytes - 256);
}

#[test]
fn a_pool_with_two_ends_makes_no_thread_caches() {
    let config = BfcConfig::new(Bytes::mib(1)).with_thread_cache(ThreadCache::new());
    let addresses = |config: BfcConfig| {
        let pool = BfcAllocator::new("cached", FakeSource::new(Nature::default()), config);
        let [a, b] = [256, 256].map(|bytes| at(&pool, Lower, bytes));
        // A cache would hand out the block that was freed last.
        give_back(&pool, [a, b]);
        at(&pool, Lower, 256).address - BASE
    };
    assert_eq!(addresses(config.clone().with_ends(Ends::TWO)), 0);
    assert_eq!(addresses(config.with_allow_growth(false).with_cut_rule(CutRule::Low)), 256);
}

#[test]
fn chunks_and_the_memory_log_name_the_end() {
    let pool = pool(4096);
    at(&pool, Lower, 256);
    at(&pool, Upper, 256);
    let ends: Vec<_> = pool.chunks().iter().map(|chunk| (chunk.bytes, chunk.end)).collect();
    assert_eq!(ends, [(256, Some(Lower)), (3584, None), (256, Some(Upper))]);
    let log = pool.memory_log(256);
    assert!(log.contains("lower end, in use") && log.contains("upper end, in use"), "{log}");
}
