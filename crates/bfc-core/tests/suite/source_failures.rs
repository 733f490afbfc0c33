//! Each of the first ten thousand calls into a source fails, one at a time, and many fail at random. The pool
//! loses no memory, stays consistent, and serves later requests.

use std::any::type_name;
use std::collections::BTreeSet;
use std::sync::Arc;

use bfc_core::{
    Allocator, Block, Bytes, ConfiguredPolicy, GrowthRule, Policy, PolicyAllocator, PoolConfig, Request,
};

use crate::common::scenario::{LIMIT, policies, with_policy};
use crate::common::source::{Fails, FakeSource, Nature};
use crate::common::{Random, assert_disjoint, try_free};

/// How a pool takes memory from its source.
#[derive(Clone, Copy, Debug)]
enum Regions {
    /// Separate regions of a few granules.
    Separate,
    /// Regions of a few granules that the pool merges.
    Merged,
    /// One region of the whole limit. After a failure, separate regions cover the rest.
    One,
    /// One region of the whole limit, which what a failure leaves out extends.
    OneExtended,
}

impl Regions {
    const ALL: [Self; 4] = [Self::Separate, Self::Merged, Self::One, Self::OneExtended];

    const fn coalescing(self) -> bool {
        matches!(self, Self::Merged | Self::OneExtended)
    }

    const fn grow(self) -> bool {
        matches!(self, Self::Separate | Self::Merged)
    }
}

/// A pool that calls its source at almost every request, because it is trimmed all the time.
struct Workload<P: ConfiguredPolicy> {
    pool: PolicyAllocator<P>,
    source: Arc<FakeSource>,
    random: Random,
    live: Vec<Block>,
    /// How many blocks a step leaves: none if all regions are one, so that the pool can return it.
    kept: usize,
    /// The number of calls at the last frees. Without later ones, a step frees all blocks, which may share one region.
    calls: u64,
    /// Refused requests.
    refused: u64,
}

impl<P: ConfiguredPolicy> Workload<P> {
    fn new(options: &P::Options, fails: Fails, broken: bool, regions: Regions) -> Self {
        let coalescing = regions.coalescing();
        let source = FakeSource::new(Nature { fails, broken, coalescing, ..Nature::default() });
        let exact = GrowthRule::AsRequested { granule: Bytes(256) };
        let config = PoolConfig::with_options(LIMIT, options.clone()).with_region_merging(true);
        let config = config.with_first_region(Bytes(256)).with_growth(exact);
        let config = config.with_allow_growth(regions.grow());
        let pool = PolicyAllocator::new("failing", source.clone(), config.with_retry(false));
        Self {
            pool,
            source,
            random: Random(3),
            live: Vec::new(),
            kept: if matches!(regions, Regions::Separate) { 2 } else { 0 },
            calls: 0,
            refused: 0,
        }
    }

    fn step(&mut self) {
        let bytes = 1 + self.random.below(1200);
        match self.pool.allocate(&Request::new(bytes)) {
            Ok(block) => self.live.push(block),
            Err(_) => self.refused += 1,
        }
        if self.live.len() > 6 || self.random.below(3) == 0 {
            let calls = self.source.calls();
            let kept = if calls == self.calls { 0 } else { self.kept };
            self.calls = calls;
            while self.live.len() > kept {
                let pick = self.random.below(self.live.len() as u64) as usize;
                try_free(&self.pool, self.live.swap_remove(pick)).unwrap();
            }
            self.pool.trim(Bytes(0));
        }
    }

    fn check(&self) {
        self.pool.check_invariants().unwrap();
        self.source.assert_sound();
        assert_disjoint(&self.live);
        let stats = self.pool.stats();
        assert_eq!(stats.bytes_in_use, self.live.iter().map(|block| block.bytes).sum::<u64>());
        assert_eq!(stats.bytes_reserved, self.source.bytes_out());
    }

    /// Without further failures, the pool can reserve up to its limit, and all memory returns to the source.
    fn finish(mut self) {
        self.source.set_fails(Fails::Never);
        for block in self.live.drain(..) {
            try_free(&self.pool, block).unwrap();
        }
        let whole = self.pool.allocate(&Request::new(LIMIT.0)).unwrap();
        try_free(&self.pool, whole).unwrap();
        self.pool.check_invariants().unwrap();
        drop(self.pool);
        self.source.assert_all_returned();
    }
}

/// Runs up to the failing call and some steps beyond, and checks everything after the failure.
fn fail_at<P: ConfiguredPolicy>(options: &P::Options, call: u64, broken: bool, regions: Regions) {
    let mut workload = Workload::<P>::new(options, Fails::Only(call), broken, regions);
    while workload.source.calls() < call {
        workload.step();
    }
    workload.check();
    for _ in 0..20 {
        workload.step();
    }
    workload.check();
    workload.finish();
}

/// Fails every call at the start, then every 997th; the test of all ten thousand covers the rest.
fn some_calls_fail<P: ConfiguredPolicy>(options: &P::Options) {
    for call in (1..100).chain((100..10_000).step_by(997)) {
        for regions in Regions::ALL {
            fail_at::<P>(options, call, false, regions);
            fail_at::<P>(options, call, true, regions);
        }
    }
}

fn all_calls_fail<P: ConfiguredPolicy>(options: &P::Options) {
    for call in 1..=10_000 {
        let regions = Regions::ALL[(call / 2 % 4) as usize];
        fail_at::<P>(options, call, call % 2 == 0, regions);
    }
}

fn calls_fail_by_chance<P: ConfiguredPolicy>(options: &P::Options) {
    let mut refused = 0;
    for seed in 0..200 {
        let one_in = 2 + seed % 5;
        let fails = Fails::Random { seed, one_in };
        let regions = Regions::ALL[(seed % 4) as usize];
        let mut workload = Workload::<P>::new(options, fails, seed % 3 == 0, regions);
        for _ in 0..60 {
            workload.step();
            workload.check();
        }
        refused += workload.refused;
        workload.finish();
    }
    assert!(refused > 100, "only {refused} requests were refused");
}

/// Runs a check with the options of each scenario. Scenarios with equal options differ in what a workload sets itself.
macro_rules! on_all {
    ($check:ident) => {
        let mut seen = BTreeSet::new();
        for (_, chosen) in policies() {
            with_policy!(chosen, |P, config| {
                // The regions of some policies are larger than these pools.
                let is_too_large = P::configured(&config.options).capabilities().exact_regions;
                if !is_too_large && seen.insert((type_name::<P>(), format!("{:?}", config.options))) {
                    $check::<P>(&config.options);
                }
            });
        }
    };
}

#[test]
fn nothing_is_lost_whichever_call_fails() {
    on_all!(some_calls_fail);
}

#[test]
#[ignore = "takes minutes: all ten thousand calls, one at a time, for each policy"]
fn nothing_is_lost_whichever_of_ten_thousand_calls_fails() {
    on_all!(all_calls_fail);
}

#[test]
fn nothing_is_lost_when_calls_fail_by_chance() {
    on_all!(calls_fail_by_chance);
}
