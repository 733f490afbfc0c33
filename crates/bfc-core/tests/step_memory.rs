//! Parts of a pool that are a step's own: same addresses each time, nobody else in them, and accounts as without.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::collections::BTreeMap;
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, AllocError, Allocation, Allocator, BfcOptions, Bytes, KIB, PlannedAllocator,
    PlannedConfig, PlannedOptions, Request, StepMemory, StepRequests,
};
use proptest::prelude::*;

const STEP: u64 = 7;

fn pool(limit: u64) -> Arc<PlannedAllocator> {
    let options = PlannedOptions::for_steps(BfcOptions::default());
    let config = PlannedConfig::with_options(Bytes(limit), options).with_retry(false);
    Arc::new(PlannedAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config))
}

fn take(pool: &Arc<PlannedAllocator>, bytes: u64) -> Result<Allocation, AllocError> {
    let allocator: Arc<dyn Allocator> = pool.clone();
    Allocation::new(&allocator, &Request::new(bytes))
}

fn steps(pool: &PlannedAllocator) -> &dyn StepMemory {
    pool.step_memory().unwrap()
}

/// Blocks of several sizes, of which at most three live at a time; the addresses. The last one outlives the step.
fn run(pool: &Arc<PlannedAllocator>, sizes: &[u64]) -> (Vec<u64>, Allocation) {
    assert!(steps(pool).begin_run(STEP));
    let (mut live, mut addresses): (Vec<Allocation>, Vec<u64>) = Default::default();
    for &bytes in sizes {
        if live.len() == 3 {
            live.remove(0);
        }
        live.push(take(pool, bytes).unwrap());
        addresses.push(live.last().unwrap().block().address);
        pool.check_invariants().unwrap();
    }
    let last = live.pop().unwrap();
    drop(live);
    addresses.pop();
    (addresses, last)
}

fn learn(pool: &Arc<PlannedAllocator>, sizes: &[u64]) -> StepRequests {
    let (_, _outlives) = run(pool, sizes);
    steps(pool).end_run(STEP).unwrap()
}

const SIZES: [u64; 8] = [1000, 70_000, 3000, 500, 9000, 40_000, 256, 300];

/// The pool with a part for the step, and the part's bytes.
fn kept(limit: u64) -> (Arc<PlannedAllocator>, u64) {
    let pool = pool(limit);
    let learnt = learn(&pool, &SIZES);
    assert_eq!((learn(&pool, &SIZES), learnt.len()), (learnt.clone(), SIZES.len()));
    let plan = learnt.plan().unwrap();
    assert_eq!((plan.planned_blocks(), plan.capacity()), (SIZES.len() - 1, plan.lower_bound()));
    assert_eq!(steps(&pool).keep(STEP, &plan), Ok(true));
    pool.check_invariants().unwrap();
    (pool, plan.capacity())
}

#[test]
fn a_step_finds_its_blocks_where_they_were_whatever_became_of_the_rest() {
    let (pool, _) = kept(1 << 20);
    let (expected, _) = run(&pool, &SIZES);
    assert_eq!(steps(&pool).end_run(STEP), None, "it is learnt no more");
    let mut others = Vec::new();
    for turn in 0..20_u64 {
        others.push(take(&pool, 700 + turn * 3000).unwrap());
        if turn % 3 == 0 {
            others.remove(0);
        }
        let (addresses, outlives) = run(&pool, &SIZES);
        assert_eq!(addresses, expected, "{turn}");
        steps(&pool).end_run(STEP);
        others.push(outlives);
    }
    assert_eq!(pool.counts().refused, 0);
}

#[test]
fn without_a_part_the_same_step_moves() {
    let pool = pool(1 << 20);
    let (expected, _) = run(&pool, &SIZES);
    steps(&pool).end_run(STEP);
    let _other = take(&pool, 3700).unwrap();
    assert_ne!(run(&pool, &SIZES).0, expected);
}

#[test]
fn nobody_else_is_served_from_the_part_and_an_error_says_that_it_is_kept() {
    let (pool, part) = kept(256 * KIB);
    let (inside, _) = run(&pool, &SIZES);
    steps(&pool).end_run(STEP);
    let inside = *inside.iter().min().unwrap();
    let inside = inside..inside + part;
    let mut others = Vec::new();
    let error = loop {
        match take(&pool, 256) {
            Ok(other) => others.push(other),
            Err(error) => break error,
        }
        assert!(!inside.contains(&others.last().unwrap().block().address));
    };
    let stats = pool.stats();
    assert_eq!((stats.bytes_in_use, stats.bytes_reserved), (256 * KIB - part, 256 * KIB));
    assert!(matches!(&error, AllocError::OutOfMemory(report) if report.other_end == part), "{error}");
    assert!(error.to_string().contains("kept for the other end or for a step"), "{error}");
    // And nothing of it goes back to the source.
    drop(others);
    pool.trim(Bytes(0));
    assert!(pool.stats().bytes_reserved >= part);
    assert_eq!(run(&pool, &SIZES).0.iter().min(), Some(&inside.start));
}

#[test]
fn what_outlives_the_run_lies_beside_the_part() {
    let (pool, part) = kept(1 << 20);
    let kept: Vec<Allocation> = (0..5)
        .map(|_| {
            let (addresses, outlives) = run(&pool, &SIZES);
            steps(&pool).end_run(STEP);
            let start = addresses.iter().min().unwrap();
            assert!(!(*start..start + part).contains(&outlives.block().address));
            outlives
        })
        .collect();
    assert_eq!(kept.len(), 5);
}

#[test]
fn a_part_goes_back_when_its_step_is_forgotten_and_what_lies_in_it_is_gone() {
    for late in [false, true] {
        let (pool, _) = kept(256 * KIB);
        assert!(take(&pool, 256 * KIB).is_err());
        assert!(steps(&pool).begin_run(STEP));
        let inside = take(&pool, SIZES[0]).unwrap();
        steps(&pool).end_run(STEP);
        if late {
            steps(&pool).forget(STEP);
            assert!(take(&pool, 256 * KIB).is_err());
            assert!(!steps(&pool).begin_run(8), "its part is still used");
            drop(inside);
        } else {
            drop(inside);
            steps(&pool).forget(STEP);
        }
        pool.check_invariants().unwrap();
        drop(take(&pool, 256 * KIB).unwrap());
        assert!(steps(&pool).begin_run(8));
    }
}

#[test]
fn a_part_that_cannot_be_had_is_out_of_memory_and_leaves_all_as_it_was() {
    let pool = pool(256 * KIB);
    let learnt = learn(&pool, &SIZES);
    let plan = learnt.plan().unwrap();
    let other = take(&pool, 200 * KIB).unwrap();
    let before = pool.stats();
    let error = steps(&pool).keep(STEP, &plan).unwrap_err();
    assert!(
        matches!(&error, AllocError::OutOfMemory(report) if report.requested == plan.capacity()),
        "{error}"
    );
    assert_eq!(pool.stats(), before);
    pool.check_invariants().unwrap();
    drop(other);
    drop(take(&pool, 256 * KIB).unwrap());
    assert_eq!(learn(&pool, &SIZES[..3]).len(), 3, "it is learnt from the beginning");
}

#[test]
fn the_part_is_for_one_step_at_a_time_and_one_run_of_it() {
    let pool = pool(1 << 20);
    assert!(steps(&pool).begin_run(STEP));
    assert!(!steps(&pool).begin_run(STEP) && !steps(&pool).begin_run(8));
    assert_eq!(steps(&pool).end_run(8), None);
    assert!(steps(&pool).end_run(STEP).unwrap().is_empty());
    assert!(!steps(&pool).begin_run(8));
    steps(&pool).forget(8);
    assert!(!steps(&pool).begin_run(8));
    let other = learn(&pool, &[1000, 2000]).plan().unwrap();
    assert_eq!(steps(&pool).keep(8, &other), Ok(false));
    steps(&pool).forget(STEP);
    assert!(steps(&pool).begin_run(8));
}

#[test]
fn pools_with_a_plan_from_the_beginning_and_others_have_no_such_parts() {
    let plan = Arc::new(learn(&pool(1 << 20), &SIZES).plan().unwrap());
    let source = Arc::new(AddressOnlyMemory::new());
    let config = PlannedConfig::planned(Bytes::mib(1), plan);
    assert!(PlannedAllocator::new("planned", source, config).step_memory().is_none());
}

proptest! {
    /// Whatever a run asks for, and whatever is asked for between the runs: no two blocks overlap, and the accounts are those of what lives.
    #[test]
    fn runs_that_depart_from_the_plan_share_no_byte_with_anyone(
        turns in prop::collection::vec((any::<bool>(), prop::collection::vec((0..6_usize, 0..12_usize), 0..40)), 1..12),
    ) {
        let (pool, _) = kept(4 << 20);
        let mut live: BTreeMap<u64, (u64, Allocation)> = BTreeMap::new();
        let mut numbers = 0_usize;
        for (inside, actions) in turns {
            if inside {
                prop_assert!(steps(&pool).begin_run(STEP));
            }
            for (action, which) in actions {
                if action < 4 {
                    // Mostly as planned, in order.
                    let bytes = if action == 0 { 100 + 900 * which as u64 } else { SIZES[numbers % SIZES.len()] };
                    numbers += 1;
                    let block = take(&pool, bytes).unwrap();
                    let (start, end) = (block.block().address, block.block().address + block.block().bytes);
                    let before = live.range(..end).next_back().map(|(_, (end, _))| *end);
                    prop_assert!(before.is_none_or(|before| before <= start));
                    live.insert(start, (end, block));
                } else if let Some(&address) = live.keys().nth(which % live.len().max(1)) {
                    live.remove(&address);
                }
                pool.check_invariants().unwrap();
                let in_use: u64 = live.iter().map(|(start, (end, _))| end - start).sum();
                prop_assert_eq!(pool.stats().bytes_in_use, in_use);
            }
            steps(&pool).end_run(STEP);
            numbers = 0;
        }
        steps(&pool).forget(STEP);
        live.clear();
        pool.check_invariants().unwrap();
        prop_assert_eq!(pool.trim(Bytes(0)), pool.stats().peak_bytes_reserved);
    }
}
