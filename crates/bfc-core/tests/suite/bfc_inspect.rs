//! A pool's own reports: accounts and figures.

use std::sync::Arc;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Block, Bytes, Category, CutRule, KIB, MIB, OwnerId, PoolView,
    Request, Tag, Verdict,
};

use crate::common::source::{FakeSource, Nature};
use crate::common::{allocate, free, out_of_memory};

fn pool(config: BfcConfig) -> BfcAllocator {
    BfcAllocator::new("test", FakeSource::new(Nature::default()), config)
}

fn one_region(limit: u64) -> BfcAllocator {
    pool(BfcConfig::new(Bytes(limit)).with_cut_rule(CutRule::Low).with_allow_growth(false))
}

fn tag(name: &str, category: Category) -> Tag {
    Tag { owner: OwnerId::intern(OwnerId::ROOT, name), category }
}

#[test]
fn a_request_above_the_limit_fails_in_an_empty_pool() {
    let report = out_of_memory(&one_region(4096), 4097);
    assert_eq!((report.verdict, report.rounded, report.limit), (Verdict::OverLimit, 4352, Some(4096)));
}

#[test]
fn a_pool_that_live_memory_fills_is_exhausted() {
    let pool = one_region(4096);
    let _live = allocate(&pool, 3072);
    let report = out_of_memory(&pool, 2048);
    assert_eq!((report.verdict, report.in_use, report.free), (Verdict::Exhausted, 3072, 1024));
}

#[test]
fn a_source_that_has_no_more_exhausts_a_pool_below_its_limit() {
    let source = FakeSource::new(Nature { capacity: Some(4096), ..Nature::default() });
    let pool =
        BfcAllocator::new("test", source, BfcConfig::new(Bytes::mib(1)).with_first_region(Bytes(4096)));
    let _live = allocate(&pool, 3072);
    assert_eq!(out_of_memory(&pool, 2048).verdict, Verdict::Exhausted);
}

#[test]
fn enough_bytes_in_pieces_are_fragmented() {
    let pool = one_region(4096);
    let blocks: Vec<Block> = (0..4).map(|_| allocate(&pool, 1024)).collect();
    free(&pool, blocks[0]);
    free(&pool, blocks[2]);
    let report = out_of_memory(&pool, 2048);
    assert_eq!((report.verdict, report.free, report.largest_free), (Verdict::Fragmented, 2048, 1024));
    assert_eq!(pool.stats().fragmentation(), 0.5);
}

#[test]
fn free_and_unreserved_bytes_that_do_not_meet_are_fragmented() {
    let pool = pool(BfcConfig::tensorflow(Bytes(6144)).with_first_region(Bytes(4096)));
    let blocks: Vec<Block> = (0..4).map(|_| allocate(&pool, 1024)).collect();
    free(&pool, blocks[0]);
    let report = out_of_memory(&pool, 2560);
    assert_eq!((report.verdict, report.free, report.reserved), (Verdict::Fragmented, 1024, 4096));
}

#[test]
fn enough_bytes_out_of_line_are_fragmented() {
    let pool = one_region(8192);
    let first = allocate(&pool, 256);
    let report = match pool.allocate(&Request::new(4096).with_alignment(8192)) {
        Err(bfc_core::AllocError::OutOfMemory(report)) => report,
        other => panic!("{other:?}"),
    };
    assert_eq!((report.verdict, report.alignment), (Verdict::Fragmented, 8192));
    free(&pool, first);
}

#[test]
fn the_report_names_the_five_who_hold_most_themselves() {
    let pool = one_region(MIB);
    for index in 1..=7 {
        let tag = tag(&format!("holder{index}"), Category::Output);
        pool.allocate(&Request::new(index * 1024).with_tag(tag)).unwrap();
    }
    let report = out_of_memory(&pool, MIB);
    let names: Vec<String> = report.holders.iter().map(|(owner, _)| owner.path()).collect();
    assert_eq!(names, ["holder7", "holder6", "holder5", "holder4", "holder3"]);
    assert_eq!(report.holders[0].1, 7 * KIB);
    assert!(report.waited.is_zero());
}

#[test]
fn the_peak_remembers_whose_request_raised_it() {
    let pool = one_region(MIB);
    let (a, b) = (tag("peak-a", Category::Output), tag("peak-b", Category::Workspace));
    let first = pool.allocate(&Request::new(1000).with_tag(a)).unwrap();
    let second = pool.allocate(&Request::new(1000).with_tag(b)).unwrap();
    free(&pool, first);
    pool.allocate(&Request::new(500).with_tag(a)).unwrap();
    assert_eq!(pool.stats().peak_tag, b);
    free(&pool, second);
    pool.clear_stats();
    assert_eq!(
        pool.stats().peak_tag,
        Tag::default(),
        "who raised the pool to where it stands now is not known"
    );
}

#[test]
fn the_peak_knows_how_much_of_it_was_asked_for() {
    let pool = one_region(MIB);
    let [first, second] = [1000, 500].map(|bytes| pool.allocate(&Request::new(bytes)).unwrap());
    free(&pool, second);
    // The pool reaches the same peak again but does not exceed it: the first moment counts.
    let third = pool.allocate(&Request::new(512)).unwrap();
    let stats = pool.stats();
    assert_eq!(
        (stats.peak_bytes_in_use, stats.peak_bytes_requested, stats.bytes_requested),
        (1536, 1500, 1512)
    );
    free(&pool, third);
    pool.clear_stats();
    assert_eq!(pool.stats().peak_bytes_requested, 1000);
    free(&pool, first);
}

#[test]
fn clearing_resets_all_peaks() {
    let pool = one_region(MIB);
    let tag = tag("clear", Category::Output);
    let block = pool.allocate(&Request::new(1000).with_tag(tag)).unwrap();
    free(&pool, block);
    assert_eq!(pool.trim(Bytes(0)), MIB);
    assert_eq!((pool.stats().peak_bytes_reserved, pool.ledger().owner(tag.owner).peak), (MIB, 1024));
    assert!(pool.clear_stats());
    assert_eq!((pool.stats().peak_bytes_reserved, pool.ledger().owner(tag.owner).peak), (0, 0));
}

#[test]
fn retagging_moves_the_bytes_between_owners_and_categories() {
    let pool = one_region(MIB);
    let (output, kept) = (tag("retag", Category::Output), tag("retag", Category::Activation));
    let block = pool.allocate(&Request::new(1000).with_tag(output)).unwrap();
    pool.retag(&block, kept).unwrap();
    assert_eq!(pool.tag(&block), Ok(kept));
    assert_eq!(pool.ledger().category(Category::Activation), 1024);
    assert_eq!(pool.ledger().category(Category::Output), 0);
    assert_eq!((pool.stats().bytes_in_use, pool.stats().bytes_requested), (1024, 1000));
    assert_eq!(pool.retag(&Block::EMPTY, kept), Ok(()), "an empty tensor may be retagged like any other");
    pool.check_invariants().unwrap();
}

#[test]
fn regions_and_ids_are_as_the_source_and_the_blocks_say() {
    let source = FakeSource::new(Nature::default());
    let pool = Arc::new(BfcAllocator::new("test", source.clone(), BfcConfig::new(Bytes::mib(1))));
    assert!(pool.regions().is_empty(), "nothing is taken before the first request");
    let block = allocate(&pool, 1);
    assert_eq!(block.pool, pool.id());
    assert_eq!(pool.regions().iter().map(|region| region.bytes).sum::<u64>(), source.bytes_out());
    assert_eq!(pool.memory_kind(), bfc_core::MemoryKind::AddressOnly);
    assert_eq!(pool.name(), "test");
}

#[test]
fn a_fraction_of_the_memory_is_the_limit() {
    let pool = pool(BfcConfig::fraction_of(Bytes::kib(16), 0.25).unwrap());
    let block = allocate(&pool, 4096);
    assert_eq!(out_of_memory(&pool, 1).verdict, Verdict::Exhausted);
    free(&pool, block);
}
