//! Very long random runs on every kind of pool. Each step is followed by all invariants and the comparison
//! with the shadow.
//!
//! `HIGHWATER_SOAK_STEPS=100000000 cargo test --release -p bfc-core --test soak random_steps:: -- --ignored --nocapture`
//!
//! The run starts a new pool at regular intervals, cycles through the scenarios, and reports its progress. A
//! failed run prints the scenario and the seed: `HIGHWATER_SOAK_SEED` starts there.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests may panic as tests may")]

use std::time::Instant;

use bfc_core::Environment;
use bfc_core::setting::{SOAK_SEED, SOAK_STEPS, Setting};

use crate::common::Random;
use crate::common::interpreter::Tally;
use crate::common::op::ops_from_bytes;
use crate::common::scenario::scenarios;

/// The bytes for one pool's steps: some 1500 steps.
const BYTES: usize = 4096;

/// The value of a setting of this test: of its variable, else the default.
fn from_environment(setting: &Setting) -> u64 {
    let set = Environment::read().and_then(|environment| environment.number(setting)).unwrap();
    set.unwrap_or_else(|| setting.number(setting.default).unwrap())
}

/// If a check fails, prints on drop how to reproduce the failure.
struct Placement {
    scenario: String,
    seed: u64,
}

impl Drop for Placement {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("HIGHWATER_SOAK_SEED={} in {}", self.seed, self.scenario);
        }
    }
}

#[test]
#[ignore = "takes from seconds to many minutes: run in release"]
fn every_pool_holds_what_its_shadow_holds_for_very_long() {
    let steps = from_environment(&SOAK_STEPS);
    let first_seed = from_environment(&SOAK_SEED);
    let (scenarios, begun) = (scenarios(), Instant::now());
    let (mut sum, mut seed, mut reported) = (Tally::default(), first_seed, 0);
    while sum.steps < steps {
        let scenario = &scenarios[(seed % scenarios.len() as u64) as usize];
        let place = Placement { scenario: format!("{} over {:?}", scenario.name, scenario.nature), seed };
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        sum += scenario.run(&ops_from_bytes(&bytes));
        drop(place);
        seed += 1;
        if sum.steps - reported >= 1_000_000 || sum.steps >= steps {
            reported = sum.steps;
            eprintln!(
                "{} steps in {:.0} s, {} met, {} refused, {:.1} chunks on average, seeds {first_seed} to {}",
                sum.steps,
                begun.elapsed().as_secs_f64(),
                sum.met,
                sum.refused,
                sum.chunks as f64 / sum.steps as f64,
                seed - 1
            );
        }
    }
    assert!(sum.met > sum.steps / 10 && sum.refused > sum.steps / 1000, "{sum:?}");
}
