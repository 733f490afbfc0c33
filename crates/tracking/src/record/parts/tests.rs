use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Request, Tag,
};
use proptest::prelude::*;

use super::*;
use crate::account::Tracker;
use crate::scope::module;

/// Runs of ops in one of four nested modules; each takes blocks, frees some that live, and passes some on.
#[derive(Clone, Debug)]
struct ModuleRun {
    module: usize,
    blocks: Vec<(u64, usize)>,
    frees: Vec<usize>,
    kept: Option<(usize, usize)>,
}

fn runs() -> impl Strategy<Value = Vec<ModuleRun>> {
    let blocks = prop::collection::vec((1_u64..20_000, 0..Category::COUNT), 0..4);
    let frees = prop::collection::vec(any::<usize>(), 0..4);
    let kept = prop::option::of((any::<usize>(), 0..Category::COUNT));
    let run = (0_usize..4, blocks, frees, kept).prop_map(|(module, blocks, frees, kept)| ModuleRun {
        module,
        blocks,
        frees,
        kept,
    });
    prop::collection::vec(run, 1..30)
}

fn parts_of(recording: &Recording) -> PeakParts {
    peak_parts(recording).unwrap_or_default()
}

fn record(runs: &[ModuleRun]) -> Recording {
    let config = BfcConfig::new(Bytes::gib(1));
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("cpu", Arc::new(AddressOnlyMemory::new()), config));
    let tracker = Tracker::new();
    tracker.start_log(Bytes::mib(4));
    let mut held: Vec<Allocation> = Vec::new();
    for each in runs {
        let _module = module(["parts", "parts.a", "parts.a.b", "parts.c"][each.module]);
        let run = tracker.begin("op");
        for &(bytes, category) in &each.blocks {
            let request = Request::new(bytes).with_category(Category::ALL[category]);
            held.push(Allocation::new(&run.track(&pool), &request).unwrap());
        }
        for &which in &each.frees {
            if !held.is_empty() {
                drop(held.swap_remove(which % held.len()));
            }
        }
        if let Some((which, category)) = each.kept.filter(|_| !held.is_empty()) {
            let allocation = &held[which % held.len()];
            let tag = Tag { owner: run.owner(), category: Category::ALL[category] };
            allocation.allocator().retag(&allocation.block(), tag).unwrap();
        }
    }
    tracker.take_log()
}

/// The highest level of what `counts` says yes to, asked of every live block after every event.
fn highest(recording: &Recording, counts: impl Fn(u32, Category) -> bool) -> u64 {
    let level = |moment: super::super::Moment| {
        let live = recording.live_after(moment.event);
        live.iter().filter(|block| counts(block.owner, block.category)).map(|block| block.bytes).sum()
    };
    recording.timeline().map(level).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_next_peak_is_the_highest_level_without_the_holder(runs in runs()) {
        let recording = record(&runs);
        let parts = parts_of(&recording);
        prop_assert_eq!(parts.bytes, highest(&recording, |_, _| true));
        prop_assert_eq!(parts.places.iter().map(|part| part.bytes).sum::<u64>(), parts.bytes);
        prop_assert_eq!(parts.categories.iter().map(|part| part.bytes).sum::<u64>(), parts.bytes);
        for part in &parts.places {
            let next = highest(&recording, |owner, _| recording.owner_path(owner) != part.name);
            prop_assert_eq!((part.next_peak, part.falls), (next, parts.bytes - next), "{}", &part.name);
        }
        for part in &parts.scopes {
            let within = |owner| recording.lineage(owner).into_iter().any(|above| recording.owner_path(above) == part.name);
            prop_assert_eq!(part.next_peak, highest(&recording, |owner, _| !within(owner)), "{}", &part.name);
        }
        for part in &parts.categories {
            let next = highest(&recording, |_, category| category.name() != part.name);
            prop_assert_eq!(part.next_peak, next, "{}", &part.name);
        }
    }
}

#[test]
fn savings_are_limited_by_the_next_highest_moment() {
    let run = |module, bytes, frees: usize| ModuleRun {
        module,
        blocks: vec![(bytes, 0)],
        frees: vec![0; frees],
        kept: None,
    };
    // 4096 bytes in one module, gone again, then 3072 in another.
    let recording = record(&[run(1, 4096, 1), run(3, 3072, 0)]);
    let parts = parts_of(&recording);
    let [part] = &parts.places[..] else { panic!("one held the peak: {parts:?}") };
    assert_eq!((part.name.as_str(), part.bytes, part.blocks), ("parts.a.op", 4096, 1));
    assert_eq!((part.next_peak, part.falls, part.next_owner.as_str()), (3072, 1024, "parts.c.op"));
}
