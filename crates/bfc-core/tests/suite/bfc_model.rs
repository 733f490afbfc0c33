//! Random sequences of operations on every configuration of pool and every source behavior, beside a shadow.

use std::sync::Arc;

use bfc_core::{BfcConfig, Bytes, TimingCounter};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::interpreter::{Interpreter, Op, Tally};
use crate::common::source::{Fails, Nature};

const LIMIT: Bytes = Bytes::kib(256);

/// The sizes for a pool of 256 KiB: mostly small, some large, a few impossible.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 1..2048u64,
        4 => (1..64u64).prop_map(|granules| granules * 256),
        3 => 4096..65_536u64,
        1 => 65_536..300_000u64,
        1 => Just(0),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (bytes(), 0..14u8, any::<u8>())
            .prop_map(|(bytes, alignment_log2, owner)| Op::Allocate { bytes, alignment_log2, owner }),
        3 => (bytes(), 0..8u8).prop_map(|(bytes, lag)| Op::AllocateFreedBefore { bytes, lag }),
        12 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        4 => (any::<usize>(), bytes()).prop_map(|(pick, bytes)| Op::Resize { pick, bytes }),
        1 => any::<usize>().prop_map(|pick| Op::FreeTwice { pick }),
        1 => any::<usize>().prop_map(|pick| Op::FreeStale { pick }),
        1 => any::<usize>().prop_map(|pick| Op::FreeForeign { pick }),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(pick, twist)| Op::FreeMadeUp { pick, twist }),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(pick, owner)| Op::Retag { pick, owner }),
        1 => (any::<usize>(), 0..8192u64).prop_map(|(pick, offset)| Op::LookUp { pick, offset }),
        1 => Just(Op::ClearStats),
        1 => Just(Op::ReleaseIdle),
        1 => (0..300_000u64).prop_map(|keep| Op::Trim { keep }),
        3 => (0..12u8).prop_map(|lag| Op::Advance { lag }),
    ]
}

/// Configurations, and whether each always splits.
fn config() -> impl Strategy<Value = (BfcConfig, bool)> {
    let upstream = BfcConfig::tensorflow(LIMIT);
    let small_steps = BfcConfig::new(LIMIT).with_first_region(Bytes(1024));
    prop_oneof![
        Just((BfcConfig::new(LIMIT), true)),
        Just((small_steps.clone(), true)),
        Just((small_steps.with_garbage_collection(false), true)),
        Just((BfcConfig::new(LIMIT).with_allow_growth(false), true)),
        Just((upstream.clone().with_allow_growth(false), false)),
        Just((upstream.with_first_region(Bytes(4096)).with_fragmentation_fraction(0.05), false)),
    ]
}

fn nature() -> impl Strategy<Value = Nature> {
    let plain = Nature::default();
    prop_oneof![
        Just(plain),
        Just(Nature { gap: 4096, ..plain }),
        Just(Nature { coalescing: true, ..plain }),
        Just(Nature { coalescing: true, downward: true, ..plain }),
        Just(Nature { fixed_alignment: Some(256), ..plain }),
        Just(Nature { offset: 256, ..plain }),
        Just(Nature { capacity: Some(100_000), ..plain }),
        Just(Nature { extra: 1000, ..plain }),
        Just(Nature { extra: 1024, coalescing: true, ..plain }),
        Just(Nature { fails: Fails::Every(2), ..plain }),
        Just(Nature { fails: Fails::Every(3), broken: true, ..plain }),
        Just(Nature { missing: 256, ..plain }),
        Just(Nature { offset: 64, ..plain }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pool_holds_what_its_shadow_holds(
        (config, always_splits) in config(),
        nature in nature(),
        ops in vec(op(), 1..120),
    ) {
        Interpreter::new(config, nature, always_splits, None).run(&ops);
    }

    #[test]
    fn a_pool_with_a_timing_counter_holds_what_its_shadow_holds(
        (config, always_splits) in config(),
        nature in nature(),
        ops in vec(op(), 1..120),
    ) {
        let counter = Some(Arc::new(TimingCounter::default()));
        Interpreter::new(config, nature, always_splits, counter).run(&ops);
    }

    #[test]
    fn the_same_requests_in_the_same_order_give_the_same_addresses(
        (config, always_splits) in config(),
        nature in nature(),
        ops in vec(op(), 1..80),
    ) {
        let counter = || Some(Arc::new(TimingCounter::default()));
        let mut first = Interpreter::new(config.clone(), nature, always_splits, counter());
        let mut second = Interpreter::new(config, nature, always_splits, counter());
        for op in &ops {
            first.step(op);
            second.step(op);
            prop_assert_eq!(first.spans(), second.spans());
        }
    }
}

/// The random sequences must include both successful and refused requests.
#[test]
fn sequences_meet_and_refuse_requests() {
    let mut random = crate::common::Random(7);
    let ops: Vec<Op> = (0..4000)
        .map(|_| match random.below(9) {
            0..=4 => Op::Allocate { bytes: 1 + random.below(40_000), alignment_log2: 6, owner: 3 },
            _ => Op::Free { pick: random.next() as usize },
        })
        .collect();
    let tally = Interpreter::new(BfcConfig::new(LIMIT), Nature::default(), true, None).run(&ops);
    let Tally { met, refused, .. } = tally;
    assert!(met > 1000 && refused > 100, "{met} met, {refused} refused");
}
