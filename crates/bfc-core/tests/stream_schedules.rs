//! No byte is used again before its last use has ended: random schedules of several streams on a device that ends its
//! work in an order chosen by a seed, watched by that device. The same checks find planted bugs.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod common;

use common::liar::Lie;
use common::schedule::{Bug, run};

const STEPS: usize = 32;

/// How many schedules it takes to find a bug, of at most so many.
fn found_after(bug: Bug, most: u64) -> Option<u64> {
    (0..most).find(|&seed| !run(seed, STEPS, bug).is_empty()).map(|seed| seed + 1)
}

#[test]
fn no_schedule_reuses_memory_before_its_last_use_ended() {
    for seed in 0..20_000 {
        assert_eq!(run(seed, STEPS, Bug::None), [], "seed {seed}");
    }
}

#[test]
#[ignore = "a million schedules: minutes, in a release build"]
fn no_schedule_of_a_million_reuses_memory_before_its_last_use_ended() {
    let schedules =
        std::env::var("STREAM_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for seed in (thread..schedules).step_by(threads as usize) {
                    assert_eq!(run(seed, STEPS, Bug::None), [], "seed {seed}");
                }
            });
        }
    });
    println!("{schedules} schedules of {STEPS} steps, no violation");
}

/// What was waited for is still looked at before its memory is given away.
#[test]
fn a_driver_that_returns_early_from_waiting_harms_nothing() {
    assert_eq!(found_after(Bug::Driver(Lie::SynchroniseEvent), 2000), None);
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [Bug::FreeAtOnce, Bug::UseAtOnce, Bug::Driver(Lie::Query), Bug::Driver(Lie::Synchronise)];
    for bug in bugs {
        let found = found_after(bug, 10_000);
        println!("{bug:?} found after {found:?} schedules");
        assert!(found.is_some(), "{bug:?}");
    }
}

#[test]
fn one_seed_gives_one_schedule() {
    let seed = found_after(Bug::FreeAtOnce, 10_000).unwrap() - 1;
    let spans = || -> Vec<String> {
        // Handles are numbered anew for each device; what happened to which bytes is the same.
        let text = |violation| format!("{violation:?}");
        let violations: Vec<String> = run(seed, STEPS, Bug::FreeAtOnce).into_iter().map(text).collect();
        violations.iter().map(|text| text.split("first").next().unwrap().to_owned()).collect()
    };
    assert_eq!(spans(), spans());
}
