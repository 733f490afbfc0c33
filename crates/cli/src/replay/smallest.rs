//! Finds the smallest single-region pool that serves a trace.

use bfc_core::{Bytes, KIB};
use highwater_traces::Replayer;
use serde::Serialize;

use crate::pools::policies::MakePool;
use crate::pools::spec::PoolSpec;

/// The step between pool sizes: 256 bytes for small traces, 64 KiB for large ones.
const STEPS: std::ops::RangeInclusive<u64> = 256..=64 * KIB;

/// How many larger pools to try, in steps of one percent. With some policies a trace fits into a pool and not into a
/// larger one.
const LARGER_POOLS: u64 = 10;

/// The result; fields of the object of `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SmallestPool {
    /// `None` if no pool serves the trace.
    pub(crate) smallest_pool_bytes: Option<u64>,
    /// `smallest_pool_bytes / peak_live_bytes`.
    pub(crate) smallest_pool_waste: Option<f64>,
    /// The step between the tried sizes.
    pub(crate) smallest_pool_step_bytes: u64,
    /// The first larger pool that failed.
    pub(crate) larger_pool_that_fails_bytes: Option<u64>,
}

pub(crate) fn smallest_pool(
    replayer: &mut Replayer<'_>,
    pool: &MakePool,
    spec: PoolSpec,
    say: &dyn Fn(&str),
) -> SmallestPool {
    let peak = replayer.trace().peak_live_bytes();
    let step = step(peak);
    let mut fits = |bytes: u64| {
        say(&format!("trying a pool of {}", Bytes(bytes)));
        replayer.run(&*pool(spec.fixed(bytes))).is_ok()
    };
    let smallest = search(peak, step, &mut fits);
    let larger =
        |bytes: u64| (1..=LARGER_POOLS).map(move |n| bytes + (bytes / 100 * n).next_multiple_of(step));
    SmallestPool {
        smallest_pool_bytes: smallest,
        smallest_pool_waste: smallest.filter(|_| peak > 0).map(|bytes| bytes as f64 / peak as f64),
        smallest_pool_step_bytes: step,
        larger_pool_that_fails_bytes: smallest.and_then(|bytes| larger(bytes).find(|&bytes| !fits(bytes))),
    }
}

/// A power of two of about 1/16,384 of the peak.
fn step(peak: u64) -> u64 {
    (peak >> 14).clamp(*STEPS.start(), *STEPS.end()).next_power_of_two()
}

/// Finds the smallest multiple of `step` that fits, if all larger ones fit. Otherwise finds one that fits while the
/// next smaller one does not. No size below `peak` fits.
fn search(peak: u64, step: u64, fits: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
    const MOST: u64 = 1 << 60;
    let mut large = peak.max(1).checked_next_multiple_of(step).filter(|&bytes| bytes <= MOST)?;
    let mut small = large - step;
    // First find a pool that is large enough, with strides that double from an eighth of a percent.
    let mut stride = (peak >> 9).next_multiple_of(step).max(step);
    while !fits(large) {
        small = large;
        large = large.saturating_add(stride);
        stride = stride.saturating_mul(2);
        if large > MOST {
            return None;
        }
    }
    while large - small > step {
        let middle = small + (large - small) / 2 / step * step;
        if fits(middle) { large = middle } else { small = middle }
    }
    Some(large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_is_exact_and_never_tries_less_than_the_peak() {
        for smallest in [1000, 1024, 1025, 5000, 1 << 20, (1 << 40) + 77] {
            let mut tries = 0;
            let found = search(1000, 256, &mut |bytes| {
                tries += 1;
                assert!(bytes >= 1000 && bytes.is_multiple_of(256), "{bytes}");
                bytes >= smallest
            });
            assert_eq!(found, Some(smallest.next_multiple_of(256)));
            assert!(tries < 100, "{tries} tries for {smallest}");
        }
    }

    #[test]
    fn a_trace_that_fits_nowhere_ends_the_search() {
        assert_eq!(search(1000, 256, &mut |_| false), None);
        assert_eq!(search(u64::MAX, 256, &mut |_| true), None);
        assert_eq!(search(0, 256, &mut |_| true), Some(256));
    }

    #[test]
    fn the_result_fits_even_if_larger_pools_fail() {
        let mut fits = |bytes: u64| bytes >= 1 << 20 && !(3 << 20..4 << 20).contains(&bytes);
        let found = search(1000, 256, &mut fits).unwrap();
        assert!(fits(found) && !fits(found - 256));
    }

    #[test]
    fn steps_are_powers_of_two_from_256_bytes_to_64_kib() {
        assert_eq!([0, 1 << 22, 5 << 20, 1 << 30, u64::MAX].map(step), [256, 256, 512, 1 << 16, 1 << 16]);
    }
}
