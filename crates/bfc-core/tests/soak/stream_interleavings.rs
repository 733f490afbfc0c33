//! No stream reuses a byte before its last use has ended. Random interleavings run several streams on a device
//! that ends work in an order chosen by a seed. The device watches every use, and the same checks find
//! planted bugs.

use std::sync::Arc;

use bfc_core::sim::{MemoryUse, Pace, SimDevice, Violation};
use bfc_core::{Block, Bytes, Driver, Stream};

use crate::common::interleaving::{Bug, LARGEST, Watched};
use crate::common::liar::{Liar, Lie};

const STEPS: usize = 32;

/// The simulated device and its driver, which may lie.
struct Simulated {
    device: Arc<SimDevice>,
    driver: Arc<dyn Driver>,
    is_honest: bool,
}

impl Simulated {
    fn new(seed: u64, lie: Option<Lie>) -> Self {
        let device = Arc::new(SimDevice::new(Bytes(12 * LARGEST)).with_pace(Pace::Random { seed }));
        let driver: Arc<dyn Driver> = match lie {
            Some(lie) => Arc::new(Liar { device: device.clone(), lie }),
            None => device.clone(),
        };
        Self { device, driver, is_honest: lie.is_none() }
    }
}

impl Watched for Simulated {
    type Violation = Violation;

    fn driver(&self) -> Arc<dyn Driver> {
        self.driver.clone()
    }

    fn stream(&self, _: usize) -> Arc<Stream> {
        Stream::new(self.driver()).unwrap()
    }

    fn launch(&self, _: usize, stream: &Stream, block: &Block) {
        self.device.launch(stream.handle(), &[MemoryUse::of(block)]).unwrap();
    }

    fn violations(&self) -> Vec<Violation> {
        self.device.violations()
    }

    fn end(&self, all_free: bool) {
        // With a lying driver, the pool may never learn that a block is free.
        if self.is_honest {
            assert!(all_free);
            assert_eq!(self.device.open_streams_and_events(), 0);
            assert_eq!(self.device.memory_info().unwrap().free, 12 * LARGEST);
        }
    }
}

/// Runs the interleaving of a seed on a new device.
fn run(seed: u64, bug: Bug) -> Vec<Violation> {
    crate::common::interleaving::run(&Simulated::new(seed, None), seed, STEPS, bug)
}

/// Returns how many interleavings it takes to find a bug; tries at most `most`.
fn found_after(bug: Bug, most: u64) -> Option<u64> {
    (0..most).find(|&seed| !run(seed, bug).is_empty()).map(|seed| seed + 1)
}

/// Returns how many interleavings it takes to find a lying driver; tries at most `most`.
fn lie_found_after(lie: Lie, most: u64) -> Option<u64> {
    let run =
        |seed| crate::common::interleaving::run(&Simulated::new(seed, Some(lie)), seed, STEPS, Bug::None);
    (0..most).find(|&seed| !run(seed).is_empty()).map(|seed| seed + 1)
}

#[test]
fn no_interleaving_reuses_memory_before_its_last_use_ended() {
    for seed in 0..20_000 {
        assert_eq!(run(seed, Bug::None), [], "seed {seed}");
    }
}

#[test]
#[ignore = "a million interleavings: minutes, in a release build"]
fn a_million_interleavings_never_reuse_memory_early() {
    let interleavings =
        std::env::var("STREAM_INTERLEAVINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for seed in (thread..interleavings).step_by(threads as usize) {
                    assert_eq!(run(seed, Bug::None), [], "seed {seed}");
                }
            });
        }
    });
    println!("{interleavings} interleavings of {STEPS} steps, no violation");
}

/// After a wait, the pool still queries the event before it reuses the memory.
#[test]
fn a_driver_that_returns_early_from_waiting_harms_nothing() {
    assert_eq!(lie_found_after(Lie::SynchronizeEvent, 2000), None);
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [Bug::FreeAtOnce, Bug::UseAtOnce].map(|bug| (format!("{bug:?}"), found_after(bug, 10_000)));
    let lies = [Lie::Query, Lie::Synchronize];
    let lies = lies.map(|lie| (format!("a lie of {lie:?}"), lie_found_after(lie, 10_000)));
    for (bug, found) in bugs.into_iter().chain(lies) {
        println!("{bug} found after {found:?} interleavings");
        assert!(found.is_some(), "{bug}");
    }
}

#[test]
fn one_seed_gives_one_interleaving() {
    let seed = found_after(Bug::FreeAtOnce, 10_000).unwrap() - 1;
    let spans = || -> Vec<String> {
        // Each device numbers its handles anew; the events on each byte are the same.
        let text = |violation| format!("{violation:?}");
        let violations: Vec<String> = run(seed, Bug::FreeAtOnce).into_iter().map(text).collect();
        violations.iter().map(|text| text.split("first").next().unwrap().to_owned()).collect()
    };
    assert_eq!(spans(), spans());
}
