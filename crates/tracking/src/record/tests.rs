use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Category, Ledger, OwnerId,
    Request, Tag,
};
use proptest::prelude::*;

use super::*;
use crate::account::Tracker;
use crate::scope::{Phase, module, phase};
use crate::test_pool::TestPool;

fn pool(name: &str) -> Arc<dyn Allocator> {
    Arc::new(BfcAllocator::new(name, Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::gib(1))))
}

/// A random next step of a program.
#[derive(Clone, Debug)]
enum Step {
    Alloc { pool: usize, bytes: u64, category: usize },
    Free(prop::sample::Index),
    Retag(prop::sample::Index, usize, bool),
    NextOp { module: usize, backward: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..2, 1_u64..100_000, 0..Category::COUNT)
            .prop_map(|(pool, bytes, category)| Step::Alloc { pool, bytes, category }),
        3 => any::<prop::sample::Index>().prop_map(Step::Free),
        2 => (any::<prop::sample::Index>(), 0..Category::COUNT, any::<bool>())
            .prop_map(|(which, category, owner)| Step::Retag(which, category, owner)),
        1 => (0_usize..3, any::<bool>()).prop_map(|(module, backward)| Step::NextOp { module, backward }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Runs a program, and returns what the ledgers of its pools said after each event that changed them.
fn run(tracker: &Arc<Tracker>, pools: &[Arc<dyn Allocator>; 2], steps: &[Step]) -> Vec<[Ledger; 2]> {
    const MODULES: &[&str] = &["record-net", "record-net.fc1", "record-net.block.attention"];
    let mut held: Vec<Allocation> = Vec::new();
    let mut ledgers = Vec::new();
    let mut places = vec![(0, false)];
    places.extend(steps.iter().filter_map(|step| match step {
        Step::NextOp { module, backward } => Some((*module, *backward)),
        _ => None,
    }));
    let parts = steps.split(|step| matches!(step, Step::NextOp { .. }));
    for ((name, backward), steps) in places.into_iter().zip(parts) {
        let _module = module(MODULES[name]);
        let _phase = backward.then(|| phase(Phase::Backward));
        let run = tracker.begin("op");
        for step in steps {
            match step {
                Step::Alloc { pool, bytes, category } => {
                    let request = Request::new(*bytes).with_category(Category::ALL[*category]);
                    held.push(Allocation::new(&run.track(&pools[*pool]), &request).unwrap());
                }
                Step::Free(which) if !held.is_empty() => drop(held.swap_remove(which.index(held.len()))),
                Step::Retag(which, category, root) if !held.is_empty() => {
                    let allocation = &held[which.index(held.len())];
                    let owner = if *root { OwnerId::ROOT } else { run.owner() };
                    let tag = Tag { owner, category: Category::ALL[*category] };
                    allocation.allocator().retag(&allocation.block(), tag).unwrap();
                }
                _ => continue,
            }
            ledgers.push([pools[0].ledger(), pools[1].ledger()]);
        }
    }
    while let Some(allocation) = held.pop() {
        drop(allocation);
        ledgers.push([pools[0].ledger(), pools[1].ledger()]);
    }
    ledgers
}

fn categories(ledger: &Ledger) -> [u64; Category::COUNT] {
    Category::ALL.map(|category| ledger.category(category))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_sums_over_events_are_the_pools_own_at_every_event(steps in steps()) {
        let (tracker, pools) = (Tracker::new(), [pool("one"), pool("two")]);
        tracker.start_log(Bytes::mib(4));
        let ledgers = run(&tracker, &pools, &steps);
        let recording = tracker.take_log();
        prop_assert_eq!(recording.skipped_events(), 0);
        let moments: Vec<Moment> = recording.timeline().collect();
        prop_assert_eq!(moments.len(), ledgers.len());
        for (moment, [one, two]) in moments.iter().zip(&ledgers) {
            let (one, two) = (categories(one), categories(two));
            for category in Category::ALL.map(Category::index) {
                prop_assert_eq!(moment.categories[category], one[category] + two[category]);
            }
            prop_assert_eq!(moment.bytes, moment.categories.iter().sum::<u64>());
        }
        let peak = moments.iter().map(|moment| moment.bytes).max().unwrap_or(0);
        prop_assert_eq!(recording.peak().map_or(0, |peak| peak.bytes), peak);
        prop_assert_eq!(recording.live_at_peak().iter().map(|block| block.bytes).sum::<u64>(), peak);
    }

    #[test]
    fn live_blocks_after_an_event_equal_the_ledger(steps in steps()) {
        let (tracker, pools) = (Tracker::new(), [pool("one"), pool("two")]);
        tracker.start_log(Bytes::mib(4));
        let ledgers = run(&tracker, &pools, &steps);
        let recording = tracker.take_log();
        for (moment, ledgers) in recording.timeline().zip(&ledgers) {
            let mut live: Vec<(String, u64)> = Vec::new();
            for block in recording.live_after(moment.event) {
                let path = recording.owner_path(block.owner);
                match live.iter_mut().find(|(known, _)| *known == path) {
                    Some((_, bytes)) => *bytes += block.bytes,
                    None => live.push((path, block.bytes)),
                }
            }
            live.sort();
            let mut expected: Vec<(String, u64)> = Vec::new();
            for (owner, bytes) in ledgers.iter().flat_map(Ledger::owners).filter(|(_, bytes)| bytes.own > 0) {
                match expected.iter_mut().find(|(known, _)| *known == owner.path()) {
                    Some((_, sum)) => *sum += bytes.own,
                    None => expected.push((owner.path(), bytes.own)),
                }
            }
            expected.sort();
            prop_assert_eq!(live, expected);
        }
    }

    #[test]
    fn a_ring_that_lost_events_still_tells_every_live_byte(steps in steps(), capacity in 0_u64..1500) {
        let (tracker, pools) = (Tracker::new(), [pool("one"), pool("two")]);
        tracker.start_log(Bytes(capacity));
        let ledgers = run(&tracker, &pools, &steps);
        let recording = tracker.take_log();
        let moments: Vec<Moment> =
            recording.timeline().filter(|moment| moment.event as usize >= recording.carried_events()).collect();
        let lost = ledgers.len() - moments.len();
        prop_assert!(lost == 0 || recording.overflowed());
        for (moment, ledgers) in moments.iter().zip(&ledgers[lost..]) {
            for category in Category::ALL {
                let sum = ledgers[0].category(category) + ledgers[1].category(category);
                prop_assert_eq!(moment.categories[category.index()], sum);
            }
        }
    }
}

#[test]
fn blocks_without_ids_are_distinguished_by_address() {
    let (tracker, host) = (Tracker::new(), TestPool::not_tracking());
    tracker.start_log(Bytes::mib(1));
    let run = tracker.begin("record-host");
    let kept: Vec<Allocation> =
        (1..5).map(|size| Allocation::new(&run.track(&host), &Request::new(size * 100)).unwrap()).collect();
    drop(kept);
    let recording = tracker.take_log();
    assert_eq!((recording.blocks().len(), recording.skipped_events()), (4, 0));
    assert!(recording.blocks().iter().all(|block| block.freed.is_some()));
}

#[test]
fn a_scope_knows_the_live_bytes_before_and_at_its_peak() {
    let (tracker, pool) = (Tracker::new(), pool("cpu"));
    tracker.start_log(Bytes::mib(1));
    let take =
        |allocator: &Arc<dyn Allocator>, bytes| Allocation::new(allocator, &Request::new(bytes)).unwrap();
    let first = {
        let run = tracker.begin("record-first");
        take(&run.track(&pool), 512)
    };
    let second = {
        let run = tracker.begin("record-second");
        let scratch = take(&run.track(&pool), 1024);
        drop(first);
        drop(scratch);
        take(&run.track(&pool), 256)
    };
    let recording = tracker.take_log();
    let [one, two] = recording.executions() else { panic!("two ops ran") };
    assert_eq!((one.live_before, one.live_peak, one.high_water, one.outliving), (0, 512, 512, 512));
    assert_eq!((two.live_before, two.live_peak, two.high_water, two.outliving), (512, 1536, 1024, 256));
    assert_eq!(recording.peak().unwrap().execution, Some(1));
    drop(second);
}

#[test]
fn an_op_name_stands_without_its_phase() {
    let owner = |name: &str, phase| Owner::new(name, 0, phase);
    assert_eq!(owner("matmul:backward", Some(Phase::Backward)).op_name(), "matmul");
    assert_eq!(owner("adam", Some(Phase::Optimizer)).op_name(), "adam");
    assert_eq!(owner("x:backward", Some(Phase::Forward)).op_name(), "x:backward");
    assert_eq!(owner("backward", None).op_name(), "backward");
}

#[test]
fn deep_module_paths_use_the_last_named_module() {
    let (tracker, pool) = (Tracker::new(), pool("cpu"));
    tracker.start_log(Bytes::mib(1));
    let deep = (0..1000).fold(OwnerId::ROOT, |owner, _| OwnerId::intern(owner, "record-deep"));
    let tag = Tag { owner: deep, ..Tag::default() };
    let run = tracker.begin("op");
    drop(Allocation::new(&run.track(&pool), &Request::new(1).with_tag(tag)).unwrap());
    let recording = tracker.take_log();
    assert_eq!(recording.lineage(recording.block(0).owner).len(), OwnerId::MAX_DEPTH as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_block_of_events_is_read_or_refused(
        bytes in prop::collection::vec(prop_oneof![4 => 0_u8..16, 2 => any::<u8>(), 1 => Just(0_u8)], 0..120),
    ) {
        // Names first, so that events are not all refused for want of them.
        let names = [10, 1, 0, 0, 0, 10, 2, 1, 1, 0, 11, 0, 0, 0, 11, 1, 0, 0];
        crate::fuzz::hwm_events(&bytes);
        crate::fuzz::hwm_events(&[&names[..], &bytes].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_recording_that_is_read_can_be_shown(
        bytes in prop::collection::vec(prop_oneof![4 => 0_u8..16, 2 => any::<u8>(), 1 => Just(0_u8)], 0..120),
    ) {
        let names = [10, 1, 0, 0, 0, 10, 2, 1, 1, 0, 11, 0, 0, 0, 11, 1, 0, 0];
        let bytes = [&names[..], &bytes].concat();
        crate::fuzz::hwm_shown(&bytes);
        crate::fuzz::hwm_followed(&bytes);
    }
}
