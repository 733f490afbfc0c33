//! Measures one trace with one policy: times, peaks and fragmentation.

use std::num::NonZero;
use std::time::{Duration, Instant};

use bfc_core::Allocator;
use highwater_traces::{ReplayError, Replayer, Trace};
use serde::Serialize;

use super::smallest::SmallestPool;
use crate::pools::policies::MakePool;
use crate::pools::spec::PoolSpec;

/// How many events are timed together: short enough that other processes rarely interrupt.
const STRETCH: NonZero<usize> = NonZero::new(1024).unwrap();

/// The most new pools to time: creating one may cost more than the replay.
const MOST_COLD: u32 = 5;

/// The number of samples of a pool's state.
const SAMPLES: usize = 64;

/// The result of a replay; an object of `--json`. All sizes in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measurement {
    pub(super) trace: String,
    pub(super) policy: &'static str,
    pub(super) events: usize,
    /// Through a warm pool: the best time of each stretch. `None` if a replay failed or there are no events.
    pub(super) ns_per_event: Option<f64>,
    /// Through new pools.
    pub(super) cold_ns_per_event: Option<f64>,
    pub(super) repeats: u32,
    /// The peak of live requested bytes: the lower bound of every pool.
    pub(super) peak_live_bytes: u64,
    /// The peak of bytes in use.
    pub(super) peak_in_use_bytes: u64,
    /// The peak of reserved bytes in the first replay.
    pub(super) peak_reserved_bytes: u64,
    /// `peak_reserved_bytes / peak_live_bytes`.
    pub(super) waste: Option<f64>,
    #[serde(flatten)]
    pub(super) smallest: Option<SmallestPool>,
    /// Of a pool that follows a packing: the allocations in the packing's range, and those beside it.
    #[serde(flatten)]
    pub(super) packing: Option<PackingUse>,
    /// The first refused event.
    pub(super) failed_at: Option<usize>,
    pub(super) failure: Option<Failure>,
    pub(super) timeline: Vec<Sample>,
}

/// How much of a replay followed a packing.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PackingUse {
    pub(super) packed_allocations: u64,
    /// Allocations that the packing does not contain, or whose place was occupied.
    pub(super) allocations_beside_packing: u64,
}

/// The reason why an event was refused.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Failure {
    pub(super) label: Option<String>,
    pub(super) bytes: Option<u64>,
    /// The cause, if memory ran out.
    pub(super) verdict: Option<&'static str>,
    pub(super) message: String,
}

/// A sample of a pool's state.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    /// Events so far.
    pub(super) event: usize,
    pub(super) in_use_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) largest_free_bytes: u64,
    /// The share of free bytes outside of the largest free block, from 0 to 1.
    pub(super) fragmentation: f64,
}

impl Measurement {
    /// Creates the measurement of a policy that has not replayed the trace yet.
    pub(super) fn new(name: &str, policy: &'static str, trace: &Trace) -> Self {
        Self {
            trace: name.to_owned(),
            policy,
            events: trace.events().len(),
            peak_live_bytes: trace.peak_live_bytes(),
            ..Self::default()
        }
    }

    /// Notes that the policy failed at an event.
    pub(super) fn fail(&mut self, event: usize, message: String) {
        self.failed_at = Some(event);
        self.failure = Some(Failure { message, ..Failure::default() });
    }
}

/// Replays a trace through new pools, `repeats` times through a warm one, and once more to sample it.
pub(super) fn measure(
    measurement: &mut Measurement,
    replayer: &mut Replayer<'_>,
    pool: &MakePool,
    spec: PoolSpec,
    repeats: u32,
) {
    measurement.repeats = repeats;
    let events = measurement.events;
    let per_event = |time: Duration| (events > 0).then(|| time.as_secs_f64() * 1e9 / events as f64);
    match time(replayer, pool, spec, repeats) {
        Ok(Times { cold, warm }) => {
            (measurement.cold_ns_per_event, measurement.ns_per_event) = (per_event(cold), per_event(warm));
        }
        Err(error) => {
            measurement.failed_at = Some(error.event());
            measurement.failure = Some(Failure::of(&error));
        }
    }
    watch(measurement, replayer, &*pool(spec));
    let live = measurement.peak_live_bytes;
    measurement.waste = (live > 0).then(|| measurement.peak_reserved_bytes as f64 / live as f64);
}

#[derive(Clone, Copy)]
struct Times {
    cold: Duration,
    warm: Duration,
}

/// The best times: through new pools, and through the last of these again.
fn time(
    replayer: &mut Replayer<'_>,
    make: &MakePool,
    spec: PoolSpec,
    repeats: u32,
) -> Result<Times, ReplayError> {
    let mut pool = make(spec);
    let (mut cold, mut warm) = (BestTime::default(), BestTime::default());
    cold.replay(replayer, &*pool)?;
    for _ in 1..repeats.min(MOST_COLD) {
        pool = make(spec);
        cold.replay(replayer, &*pool)?;
    }
    for _ in 0..repeats {
        warm.replay(replayer, &*pool)?;
    }
    Ok(Times { cold: cold.total(), warm: warm.total() })
}

/// How long a replay takes where nothing interrupts it: the best time of each stretch, added up.
#[derive(Debug, Default)]
struct BestTime {
    stretches: Vec<Duration>,
}

impl BestTime {
    fn replay(&mut self, replayer: &mut Replayer<'_>, pool: &dyn Allocator) -> Result<(), ReplayError> {
        let mut stretch = 0;
        let mut last = Instant::now();
        replayer.run_watched(pool, STRETCH, |_, _| {
            let now = Instant::now();
            let time = now - last;
            match self.stretches.get_mut(stretch) {
                Some(best) => *best = time.min(*best),
                None => self.stretches.push(time),
            }
            stretch += 1;
            last = now;
        })?;
        Ok(())
    }

    fn total(&self) -> Duration {
        self.stretches.iter().sum()
    }
}

/// Replays and looks at the pool at regular intervals. The peaks of a replay that fails are those until then.
fn watch(measurement: &mut Measurement, replayer: &mut Replayer<'_>, pool: &dyn Allocator) {
    let interval = NonZero::new(measurement.events.div_ceil(SAMPLES)).unwrap_or(NonZero::<usize>::MIN);
    let summary = replayer.run_watched(pool, interval, |event, pool| {
        let stats = pool.stats();
        measurement.timeline.push(Sample {
            event,
            in_use_bytes: stats.bytes_in_use,
            reserved_bytes: stats.bytes_reserved,
            largest_free_bytes: stats.largest_free_block_bytes,
            fragmentation: stats.fragmentation(),
        });
    });
    let stats = pool.stats();
    measurement.peak_in_use_bytes = summary.map_or(stats.peak_bytes_in_use, |summary| summary.peak_in_use);
    measurement.peak_reserved_bytes = stats.peak_bytes_reserved;
    measurement.packing = pool.packing_counts().map(|counts| PackingUse {
        packed_allocations: counts.packed,
        allocations_beside_packing: counts.left + counts.refused + counts.unexpected,
    });
}

impl Failure {
    fn of(error: &ReplayError) -> Self {
        let mut failure = Self { message: format!("failed at {error}"), ..Self::default() };
        if let ReplayError::Alloc { label, bytes, error, .. } = error {
            (failure.label, failure.bytes) = (Some(label.clone()), Some(*bytes));
            failure.verdict = error.out_of_memory().map(|report| report.verdict.name());
        }
        failure
    }
}
