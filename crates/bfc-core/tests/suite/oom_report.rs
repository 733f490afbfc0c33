//! The report of a refused request: its figures against a shadow, its verdicts, and its what-ifs against real
//! outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Random, free, out_of_memory};
use bfc_core::sim::{DeviceCall, Fault, FaultTime, Pace, SimDevice};
use bfc_core::{
    AddressOnlyMemory, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, Bytes, Category,
    Contents, DeviceMemory, Driver, GrowthRule, KIB, MIB, OomReport, OwnerId, PoolView, Request, SplitRule,
    Stream, StreamAllocator, Tag, TimingCounter, Verdict,
};
use proptest::prelude::*;

fn owner(scope: u64, op: u64) -> OwnerId {
    let scope = OwnerId::intern(OwnerId::ROOT, &format!("scope{scope}"));
    OwnerId::intern(scope, &format!("op{op}"))
}

/// A pool that follows these options and does not wait.
fn pool(config: BfcConfig) -> BfcAllocator {
    BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config.with_retry(false))
}

fn fits(pool: &BfcAllocator, bytes: u64) -> bool {
    let block = pool.allocate(&Request::new(bytes));
    block.map(|block| free(pool, block)).is_ok()
}

/// A live block, as a caller sees it.
#[derive(Clone, Copy, Debug)]
struct Live {
    block: Block,
    requested: u64,
    tag: Tag,
}

/// Fills a pool at random, frees some blocks, and requests too much. Returns the live blocks and the report.
fn refused(pool: &BfcAllocator, seed: u64) -> (Vec<Live>, OomReport) {
    let mut random = Random(seed);
    let mut live: Vec<Live> = Vec::new();
    loop {
        let magnitude = 8 + random.below(10);
        let requested = 1 + random.below(1 << magnitude);
        let tag = Tag {
            owner: owner(random.below(3), random.below(3)),
            category: Category::ALL[random.below(8) as usize],
        };
        match pool.allocate(&Request::new(requested).with_tag(tag)) {
            Ok(block) => live.push(Live { block, requested, tag }),
            Err(_) => break,
        }
    }
    for _ in 0..random.below(1 + live.len() as u64) {
        free(pool, live.swap_remove(random.below(live.len() as u64) as usize).block);
    }
    let mut bytes = 256;
    loop {
        match pool.allocate(&Request::new(bytes)) {
            Ok(block) => free(pool, block),
            Err(error) => return (live, error.out_of_memory().unwrap().clone()),
        }
        bytes += 256 * (1 + random.below(64));
    }
}

fn configs() -> [BfcConfig; 4] {
    let limit = Bytes::mib(1);
    [
        BfcConfig::new(limit).with_allow_growth(false),
        BfcConfig::tensorflow(limit).with_allow_growth(false),
        BfcConfig::new(limit)
            .with_growth(GrowthRule::Fixed(Bytes::kib(64)))
            .with_first_region(Bytes::kib(64)),
        BfcConfig::tensorflow(limit).with_growth(GrowthRule::Fixed(Bytes::kib(128))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The sums by owner, scope and category match the live blocks, and the figures match the chunks.
    #[test]
    fn the_figures_are_those_of_a_shadow(seed: u64, config in 0_usize..4) {
        let pool = pool(configs()[config].clone());
        let (live, report) = refused(&pool, seed);
        let mut sums: [BTreeMap<String, u64>; 3] = Default::default();
        for live in &live {
            let (owner, category) = (live.tag.owner, live.tag.category.name());
            for (sums, name) in sums.iter_mut().zip([owner.path(), owner.parent().path(), category.to_owned()]) {
                *sums.entry(name).or_default() += live.block.bytes;
            }
        }
        let by_name = |rows: Vec<(OwnerId, u64)>| rows.into_iter().map(|(owner, bytes)| (owner.path(), bytes)).collect();
        prop_assert_eq!(&sums[0], &by_name(report.holdings.by_owner()));
        prop_assert_eq!(&sums[1], &by_name(report.holdings.by_scope()));
        let categories = report.holdings.by_category();
        prop_assert_eq!(&sums[2], &categories.into_iter().map(|(each, bytes)| (each.name().to_owned(), bytes)).collect());
        prop_assert_eq!(report.in_use, live.iter().map(|live| live.block.bytes).sum::<u64>());
        prop_assert_eq!(report.holdings.total(), report.in_use);
        prop_assert_eq!(report.reserved, report.in_use + report.free);
        let free = pool.chunks().into_iter().filter(|chunk| !chunk.in_use()).map(|chunk| chunk.bytes);
        prop_assert_eq!(report.largest_free, free.max().unwrap_or(0));
        let room = report.free + MIB.saturating_sub(report.reserved);
        let expected = if report.rounded > MIB { Verdict::OverLimit }
            else if report.rounded > room { Verdict::Exhausted } else { Verdict::Fragmented };
        prop_assert_eq!(report.verdict, expected);
        let regions = report.regions.map(|use_| (use_.regions, use_.unreserved, use_.tail));
        let unreserved = MIB.saturating_sub(report.reserved);
        let several = report.reserved > 0 && (pool.regions().len() > 1 || unreserved > 0);
        prop_assert_eq!(regions, several.then_some((pool.regions().len() as u64, unreserved, None)));
    }

    /// In a pool without growth the request fits if and only if the report predicted it.
    #[test]
    fn what_one_region_would_give_it_gives(seed: u64, config in 0_usize..4) {
        let (mut live, report) = refused(&pool(configs()[config].clone()), seed);
        let whole = pool(configs()[config].clone().with_allow_growth(false));
        live.sort_by_key(|live| live.block.id);
        let all = live.iter().all(|live| whole.allocate(&Request::new(live.requested)).is_ok());
        let fits = all && fits(&whole, report.requested);
        prop_assert_eq!(report.what_if.one_region, report.regions.map(|_| fits));
    }

    /// After a trim the request fits if and only if the report predicted it.
    #[test]
    fn what_trimming_would_give_it_gives(seed: u64, config in 0_usize..4) {
        let pool = pool(configs()[config].clone().with_garbage_collection(false).with_region_merging(false));
        let (_, report) = refused(&pool, seed);
        pool.trim(Bytes(0));
        prop_assert_eq!(Some(fits(&pool, report.requested)), report.what_if.trimmed);
    }

    /// Without the activations of the largest scope, the request fits if and only if the report predicted it.
    #[test]
    fn what_checkpointing_would_give_it_gives(seed: u64, config in 0_usize..4) {
        let pool = pool(configs()[config].clone());
        let (live, report) = refused(&pool, seed);
        let kept = |live: &&Live| live.tag.category == Category::Activation;
        let Some(checkpoint) = report.what_if.checkpointed else {
            prop_assert_eq!(live.iter().filter(kept).count(), 0);
            return Ok(());
        };
        let mut sums: BTreeMap<OwnerId, u64> = BTreeMap::new();
        for live in live.iter().filter(kept) {
            *sums.entry(live.tag.owner.parent()).or_default() += live.block.bytes;
        }
        prop_assert_eq!(sums.values().max(), Some(&checkpoint.bytes));
        prop_assert_eq!(sums[&checkpoint.scope], checkpoint.bytes);
        for live in live.iter().filter(kept).filter(|live| live.tag.owner.parent() == checkpoint.scope) {
            free(&pool, live.block);
        }
        prop_assert_eq!(fits(&pool, report.requested), checkpoint.fits);
    }

    /// The report predicts whether the request fits after a new placement of the blocks: the largest first,
    /// or in their order with the other rule.
    #[test]
    fn what_laying_blocks_anew_would_give_it_gives(seed: u64, config in 0_usize..2) {
        let first = pool(configs()[config].clone());
        let (mut live, report) = refused(&first, seed);
        let other = configs()[config].clone().with_split_rule(match config {
            0 => BfcConfig::tensorflow(Bytes::mib(1)).options.split,
            _ => SplitRule::Always,
        });
        let other = pool(other);
        live.sort_by_key(|live| live.block.id);
        let all = live.iter().all(|live| other.allocate(&Request::new(live.requested)).is_ok());
        prop_assert_eq!(all && fits(&other, report.requested), report.what_if.split[0].1);

        let again = pool(configs()[config].clone());
        live.sort_by_key(|live| std::cmp::Reverse(live.block.bytes));
        // Blocks of equal size follow the order of their addresses, as the pool takes them.
        live.sort_by_key(|live| (std::cmp::Reverse(live.block.bytes), live.block.address));
        let all = live.iter().all(|live| again.allocate(&Request::new(live.block.bytes)).is_ok());
        prop_assert_eq!(Some(all && fits(&again, report.requested)), report.what_if.compacted);
    }
}

#[test]
fn bytes_that_growth_left_unused_are_told() {
    let config = BfcConfig::new(Bytes::mib(24)).with_growth(GrowthRule::DOUBLING);
    let [separate, adjacent] = [false, true].map(|coalescing| {
        let source = Arc::new(AddressOnlyMemory::new().with_coalescing(coalescing));
        let pool = BfcAllocator::new("pool", source, config.clone().with_retry(false));
        for mib in [2, 4, 8] {
            pool.allocate(&Request::new(mib * MIB)).unwrap();
        }
        out_of_memory(&pool, 11 * MIB)
    });
    let regions = separate.regions.unwrap();
    assert_eq!((regions.regions, regions.unreserved, regions.tail), (3, 10 * MIB, None));
    assert_eq!(separate.what_if.one_region, Some(false), "10 MiB are no 11");
    let details = separate.details();
    let line = "  regions                     3  cover 14.00 MiB of the limit of 24.00 MiB; the remaining 10.00 MiB \
                would be a separate region, too small for 11.00 MiB\n";
    assert!(details.contains(line), "{details}");
    assert!(details.contains("no  in one region of the whole limit (HIGHWATER_GROWTH=off)"), "{details}");
    let regions = adjacent.regions.unwrap();
    assert_eq!((regions.regions, regions.unreserved, regions.tail), (1, 10 * MIB, Some(0)));
}

#[test]
fn the_report_says_what_the_memory_was_for() {
    let pool = pool(BfcConfig::new(Bytes::mib(1)));
    let contents = Contents { extents: &[1024, 1024], element: "f32" };
    let error = pool.allocate(&Request::new(4 * MIB).with_contents(contents)).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().subject.as_ref().unwrap().to_string(), "[1024, 1024] of f32");
}

#[test]
fn a_request_that_only_moving_blocks_would_serve_is_told_so() {
    let pool = pool(BfcConfig::new(Bytes::mib(1)).with_allow_growth(false));
    let blocks: Vec<Block> = (0..16).map(|_| pool.allocate(&Request::new(64 * KIB)).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|block| free(&pool, *block));
    let report = out_of_memory(&pool, 128 * KIB);
    assert_eq!((report.verdict, report.largest_free), (Verdict::Fragmented, 64 * KIB));
    assert_eq!((report.what_if.compacted, report.what_if.trimmed), (Some(true), Some(false)));
    assert_eq!(report.what_if.checkpointed, None, "there are no activations");
}

#[test]
fn a_rule_that_does_not_split_is_found_out() {
    let config = BfcConfig::tensorflow(Bytes::mib(1)).with_allow_growth(false);
    let pool = pool(config);
    // Holes of 320 KiB. By the rule, each block wastes 128 KiB of one.
    let whole: Vec<Block> = (0..3).map(|_| pool.allocate(&Request::new(320 * KIB)).unwrap()).collect();
    whole.iter().for_each(|block| free(&pool, *block));
    pool.allocate(&Request::new(576 * KIB)).unwrap();
    let report = out_of_memory(&pool, 300 * KIB);
    assert_eq!(report.in_use, MIB, "the block got all of it");
    assert_eq!(report.what_if.split, [("always".into(), true)]);
}

#[test]
fn unsafe_memory_pins_a_strict_request() {
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false);
    let pool = pool(config.with_timing_counter(Arc::new(TimingCounter::default())));
    let block = pool.allocate(&Request::new(MIB)).unwrap();
    free(&pool, block);
    let before = || 0;
    let attributes = AllocationAttributes { freed_before: Some(&before), ..AllocationAttributes::no_retry() };
    let error = pool.allocate(&Request::new(MIB).with_attributes(attributes)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.verdict, report.pending.blocks, report.pending.bytes), (Verdict::Pinned, 1, MIB));
    assert_eq!(report.what_if.pending_done, Some(true));
    pool.set_safe_frontier(u64::MAX);
    assert!(fits(&pool, MIB), "as the report said");
}

/// A device of 64 MiB, of which another process uses 20, and a pool of 8 MiB that other streams use.
fn streams() -> (Arc<SimDevice>, StreamAllocator, Arc<Stream>) {
    let device = Arc::new(SimDevice::new(Bytes::mib(64)).with_pace(Pace::OnDemand));
    device.allocate_device(20 * MIB).unwrap();
    let stream = || Stream::new(device.clone()).unwrap();
    let config = BfcConfig::new(Bytes::mib(8)).with_allow_growth(false);
    let pool = BfcAllocator::new("sim", Arc::new(DeviceMemory::new(device.clone())), config);
    (
        device.clone(),
        StreamAllocator::new(Arc::new(pool), stream()).with_retry_timeout(Duration::ZERO),
        stream(),
    )
}

#[test]
fn pending_frees_and_what_others_have_are_told() {
    let (_, pool, other) = streams();
    let block = pool.allocate(&Request::new(6 * MIB)).unwrap();
    pool.record_stream(&block, &other).unwrap();
    let _kept = pool.allocate(&Request::new(2 * MIB)).unwrap();
    // SAFETY: the addresses have no memory behind them, and no code uses the block any more.
    unsafe { pool.deallocate(block) }.unwrap();
    let error = pool.allocate(&Request::new(7 * MIB)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.pending.blocks, report.pending.bytes), (1, 6 * MIB));
    assert_eq!(report.what_if.pending_done, Some(false), "6 MiB are no 7");
    assert_eq!((report.verdict, report.reserved_by_others), (Verdict::Exhausted, Some(20 * MIB)));
    assert_eq!(report.holdings.total(), report.in_use, "pending frees are in use until they are done");
}

#[test]
fn memory_without_a_completion_event_pins_requests() {
    let (device, pool, other) = streams();
    let block = pool.allocate(&Request::new(6 * MIB)).unwrap();
    pool.record_stream(&block, &other).unwrap();
    device.inject(Fault::new(DeviceCall::Record, FaultTime::Call(1)));
    device.inject(Fault::new(DeviceCall::Synchronize, FaultTime::Call(1)));
    // SAFETY: the addresses have no memory behind them, and no code uses the block any more.
    unsafe { pool.deallocate(block) }.unwrap();
    let error = pool.allocate(&Request::new(7 * MIB)).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.verdict, report.pending.stranded_bytes), (Verdict::Pinned, 6 * MIB));
    assert!(report.details().contains("6.00 MiB are freed but still in use"), "{}", report.details());
}
